#include "halftone/base/error.h"
#include "halftone/data/file_io.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/tokenizer_json.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;  // the largest known tokenizer.json has 35 MB

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string read(const fs::path& path) { return read_file(path.string(), kMaxFileBytes); }

void replace(const fs::path& path, const std::string& text) {
  AtomicFile file(path.string());
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace

Tokenizer Tokenizer::load(const fs::path& folder_or_file) {
  std::error_code error;
  const bool is_folder = fs::is_directory(folder_or_file, error);
  const fs::path folder = is_folder ? folder_or_file : folder_or_file.parent_path();
  const fs::path json_path = is_folder ? folder / "tokenizer.json" : folder_or_file;
  const fs::path config_path = folder / "tokenizer_config.json";
  std::string json;
  fs::path source = json_path;
  if (is_file(json_path)) {
    json = read(json_path);
  } else {
    check(is_folder, "no tokenizer at {}: expected a tokenizer.json or a folder that holds one", folder_or_file.string());
    const bool vocab_is_json = is_file(folder / "vocab.json");
    source = folder / (vocab_is_json ? "vocab.json" : "vocab.txt");
    check(is_file(source), "no tokenizer in {}: expected tokenizer.json, or vocab.json or vocab.txt (with merges.txt)", folder.string());
    std::optional<std::string> merges;
    if (is_file(folder / "merges.txt")) merges = read(folder / "merges.txt");
    try {
      json = tokenizer_json_from_vocab(read(source), vocab_is_json, merges);
    } catch (const Error& e) {
      fail("{}: {}", folder.string(), e.what());
    }
  }
  std::string config = is_file(config_path) ? read(config_path) : std::string();
  try {
    if (is_file(folder / "special_tokens_map.json")) config = with_special_tokens(config, read(folder / "special_tokens_map.json"));
    return parse(json, config);
  } catch (const Error& e) {
    fail("{}: {}", source.string(), e.what());
  }
}

void Tokenizer::save(const fs::path& folder) const {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "cannot create the folder {}: {}", folder.string(), error.message());
  replace(folder / "tokenizer.json", tokenizer_json());
  if (!tokenizer_config_json().empty()) replace(folder / "tokenizer_config.json", tokenizer_config_json());
}

}  // namespace halftone
