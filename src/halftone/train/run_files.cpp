#include "halftone/train/run_files.h"

#include <filesystem>
#include <fstream>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/config/load.h"

namespace halftone {

void write_config_files(const JobConfig& config) {
  namespace fs = std::filesystem;
  const fs::path folder = config.job.dump_folder;
  const auto write = [&](const char* option, const std::string& name, const std::string& text) {
    std::ofstream file(folder / name, std::ios::binary);
    file << text;
    file.close();
    check(file.good(), "{}: cannot write {}; choose a writable folder with free space", option, (folder / name).string());
  };
  constexpr const char *kFolder = "job.dump_folder", *kRecipe = "recipe.resolved.yaml";
  write(kFolder, "config.resolved.toml", to_toml(config));
  if (config.quantize.recipe_text) {
    write(kFolder, kRecipe, *config.quantize.recipe_text);
  } else {
    std::error_code error;
    fs::remove(folder / kRecipe, error);  // from an earlier start
  }
  if (config.job.save_config_file) write("job.save_config_file", *config.job.save_config_file, to_json(config));
  // A run that will be sized (sizing.h) calls this again.
  if (config.job.print_config && config.training.minutes == 0) log_info("configuration:\n{}", to_toml(config));
}

}  // namespace halftone
