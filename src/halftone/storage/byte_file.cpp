#include "halftone/storage/byte_file.h"

#include <string_view>

namespace halftone {

bool is_remote(const std::string& path) {
  for (const std::string_view scheme : {"s3://", "gs://", "https://", "http://"}) {
    if (path.starts_with(scheme)) return true;
  }
  return false;
}

}  // namespace halftone
