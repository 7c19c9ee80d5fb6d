#pragma once
#include <optional>
#include <string>

#include "halftone/config/job_config.h"

namespace halftone {

// One data set of a run: training's, validation's, or a source of a mixture.
struct DatasetSettings {
  std::string name;  // for messages: of the source, else the dataset
  std::string dataset = "auto";
  std::optional<std::string> path;
  DataloaderConfig loader;
  std::string path_field = "dataset_path";  // for messages
};

// Options of a mixture's source beside dataset, path and those of training.dataloader.
struct SourceShare {
  std::string weight = "1";  // by tokens; "0.7, 10000: 0.3" from steps on (mixture.h)
  int64_t epochs = 0;        // > 0: the source ends behind so many
  int64_t tokens = 0;        // > 0: the source ends behind about so many
};

// Applies a table of [data.names] or [training.sources]: dataset, path, and options of training.dataloader that say how documents are read;
// weight, epochs and tokens if `share` is not null. Errors name `field` and what is known.
void apply_dataset_table(const OptionTable& table, const std::string& field, DatasetSettings& settings, SourceShare* share);

}  // namespace halftone
