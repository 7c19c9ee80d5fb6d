#pragma once
#include <memory>
#include <string>
#include <vector>

#include "halftone/storage/request.h"

// Internals of byte_file.h.
namespace halftone::storage {

std::shared_ptr<const ByteFile> open_remote(const std::string& address);
std::shared_ptr<const ByteFile> open_local(const std::string& path, const std::string& shown);
// Opening one of these files asks the server nothing; a change since is found when it is read.
void remember(const std::vector<RemoteFile>& files);

}  // namespace halftone::storage
