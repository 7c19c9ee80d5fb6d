#pragma once
#include <span>

#include "halftone/base/json_reader.h"

// Reading config.json of Hugging Face's folders; errors start with `what`.
namespace halftone {

// An entry that changes what a model computes and that is not honoured, with a list of the values at which it changes nothing, as JSON.
struct NeutralEntry {
  const char *key, *values;
};
void refuse_entries(const Json& config, std::span<const NeutralEntry> entries, const std::string& what);
// Refuses a value unless it is null, one of `neutral`, or a list of these.
void refuse_unless(const Json& value, const Json& neutral, const std::string& name, const std::string& what);

double positive_member(const Json& object, const char* key, const std::string& what);
int64_t size_member(const Json& object, const char* key, const std::string& what);  // 1 .. 2^31

}  // namespace halftone
