#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/config/load.h"

namespace halftone {

using Args = std::vector<std::string>;

inline LoadedConfig load(const Args& args, int64_t world_size = 1) { return load_config_text("", "X.toml", args, {world_size}); }
inline LoadedConfig load_toml(const std::string& toml, const Args& args = {}, int64_t world_size = 1) {
  return load_config_text(toml, "X.toml", args, {world_size});
}

// The error text of loading; "" if it succeeds.
inline std::string problems(const std::string& toml, const Args& args = {}, int64_t world_size = 1) {
  try {
    load_toml(toml, args, world_size);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace halftone
