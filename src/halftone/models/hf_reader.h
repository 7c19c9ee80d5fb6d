#pragma once
#include <span>

#include "halftone/base/json_reader.h"

// Reads config.json of Hugging Face folders; errors start with `what`.
namespace halftone {

// An unsupported entry that changes what a model computes, with the values, as a JSON list, for which it has no effect.
struct NeutralEntry {
  const char *key, *values;
};
void refuse_entries(const Json& config, std::span<const NeutralEntry> entries, const std::string& what);
// Error unless the value is null, one of `neutral`, or a list of these.
void refuse_unless(const Json& value, const Json& neutral, const std::string& name, const std::string& what);

double positive_member(const Json& object, const char* key, const std::string& what);
int64_t size_member(const Json& object, const char* key, const std::string& what);  // 1 .. 2^31

}  // namespace halftone
