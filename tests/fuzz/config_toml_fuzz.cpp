// links: config base
// seeds: tests/fuzz/seeds/config_toml
// dict: [training] [quantize] [[quantize.phases]] from "90%" last_layers [model] scheme seq_len overrides = { } [ ] " ' , true inf
// dict: 1_000 1e-4 None --training.steps \x00 \n #
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/config/load.h"

// A TOML text, then after a NUL byte the words of a command line, one per NUL. Yields an Error, or a configuration that reads back the
// same from its TOML and its JSON.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return word;
  };
  const std::string_view toml = next();
  std::vector<std::string> args;
  while (!rest.empty()) args.emplace_back(next());

  LoadedConfig loaded;
  try {
    loaded = load_config_text(toml, "X.toml", args, {.world_size = 0});
  } catch (const Error&) {
    try {
      config_from_json(toml);
    } catch (const Error&) {}
    return 0;
  }
  if (size % 4 != 0) return 0;  // the rest costs ten times as much; mutation changes the size often enough
  const std::string json = to_json(loaded.config);
  if (to_json(config_from_json(json)) != json) std::abort();
  if (to_json(load_config_text(to_toml(loaded.config), "Y.toml", {}, {.world_size = 0}).config) != json) std::abort();
  if (print_config(loaded).empty()) std::abort();
  return 0;
}
