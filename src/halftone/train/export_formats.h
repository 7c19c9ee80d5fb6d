#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/checkpoint/loaded_step.h"
#include "halftone/models/family.h"

namespace halftone {

inline constexpr int64_t kDefaultShardBytes = int64_t{5} << 30;

// The contents that `halftone convert` writes, and their source.
struct ExportInput {
  const LoadedStep& step;
  std::shared_ptr<const ModelDescription> model;
  std::vector<NamedTensor> tensors;  // native names; without data
  TensorSource read;                 // in the type of --dtype; several threads may call it
  TensorSource read_stored;          // in the type that the checkpoint has; float32 for codes
  HfTokenIds token_ids;
  std::vector<std::pair<std::string, std::filesystem::path>> copy_files;  // name in the folder, file
  std::filesystem::path to;
  std::optional<at::ScalarType> dtype;  // --dtype
  std::string codes;                    // --codes; empty: those that the run multiplied with, or that the source has
  int64_t max_shard_bytes = 0;          // 0: the shards of the source, or 5 GiB
};

// A format of folders or files with codes. A new one is a row of the table.
struct ExportFormat {
  std::string_view name;   // convert --format
  std::string_view codes;  // values of --codes
  // Writes `to`; on failure it is unchanged. Error naming what the format cannot hold.
  void (*write)(const ExportFormat& format, const ExportInput& input);
  bool file = false;  // `to` is a file, not a folder
};
std::span<const ExportFormat> export_formats();
const ExportFormat& find_export_format(std::string_view name);  // Error for other names

// A Hugging Face folder with weights as numbers.
void write_numbers(const ExportInput& input);

}  // namespace halftone
