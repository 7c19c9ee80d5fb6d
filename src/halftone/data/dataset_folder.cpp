#include "halftone/data/dataset_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/config/yaml_reader.h"
#include "halftone/data/file_io.h"
#include "halftone/data/line_reader.h"
#include "halftone/data/packed_file.h"
#include "halftone/storage/byte_stream.h"
#include "halftone/storage/glob.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
using Yaml = halftone::Json;

struct Suffix {
  std::string_view text;
  const char* kind;
};
constexpr Suffix kSuffixes[] = {{".parquet", "parquet"}, {".jsonl", "jsonl"}, {".json", "jsonl"},   {".ndjson", "jsonl"},
                                {".txt", "text"},        {".bin", "bin"},     {".idx", "megatron"}, {".mds", "mds"}};
// Files of a data set's folder that describe it.
const std::set<std::string> kDescriptions = {"dataset_infos.json", "dataset_info.json", "state.json", "metadata.json", "config.json"};

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string_view without_compression(std::string_view name) {
  for (const std::string_view packed : {".gz", ".zst", ".zstd", ".xz"})
    if (name.ends_with(packed)) return name.substr(0, name.size() - packed.size());
  return name;
}

std::string kind_by_suffix(const std::string& name) {
  const std::string_view plain = without_compression(name);
  for (const Suffix& s : kSuffixes)
    if (plain.ends_with(s.text)) return s.kind;
  return "";
}

bool blank_or_text(std::string_view text) { return text.find('\0') == std::string_view::npos && valid_utf8_prefix(text) + 4 > text.size(); }

std::string kind_by_content(const std::string& path) {
  std::string first = first_bytes(path);
  if (first.starts_with("PAR1")) return "parquet";
  if (first.starts_with("MMIDIDX")) return "megatron";
  if (compression_of_bytes(first) != Compression::none) {
    const auto stream = open_stream(path);
    first.resize(4096);
    first.resize(stream->read(first.data(), first.size()));
  }
  const size_t at = first.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (at == std::string::npos || !blank_or_text(first)) return "";
  // An object, or an array of objects; "[" alone may begin a text.
  const size_t next = first.find_first_not_of(" \t\r\n", at + 1);
  const char after = next == std::string::npos ? '\0' : first[next];
  const bool json = first[at] == '{' ? after == '"' || after == '}' : first[at] == '[' && (after == '{' || after == ']');
  return json ? "jsonl" : "text";
}

struct Foreign {
  std::string_view suffix;
  const char *found, *remedy;
};
constexpr const char* kToParquet = "convert it to Parquet, for example with pandas: read_csv(...).to_parquet(...)";
constexpr const char* kArrowToParquet =
    "convert it to Parquet, for example with the Python package datasets: load_from_disk(...).to_parquet(...)";
constexpr const char* kUnpack = "unpack it, and name the files or the folder";
constexpr Foreign kForeign[] = {{".csv", "CSV", kToParquet},
                                {".tsv", "tab-separated values", kToParquet},
                                {".arrow", "an Arrow file", kArrowToParquet},
                                {".tar", "a tar archive", kUnpack},
                                {".tgz", "a tar archive", kUnpack},
                                {".zip", "a ZIP archive", kUnpack},
                                {".bz2", "bzip2", "pack it as gzip, zstd or xz: bzip2 -dc FILE | zstd"},
                                {".lz4", "lz4", "pack it as gzip, zstd or xz: lz4 -dc FILE | zstd"}};

// Fails for a file of a known kind that is not read.
void refuse_foreign(const std::string& path) {
  const std::string_view plain = without_compression(path);
  for (const Foreign& f : kForeign) check(!plain.ends_with(f.suffix), "{}: found {}, which is not read; {}", path, f.found, f.remedy);
}

// Splits as Hugging Face's folders name them.
std::string known_split(const std::string& word) {
  static const std::map<std::string, std::string> all = {
      {"train", "train"},    {"training", "train"}, {"validation", "validation"}, {"valid", "validation"}, {"val", "validation"},
      {"dev", "validation"}, {"test", "test"},      {"testing", "test"},          {"eval", "test"},        {"evaluation", "test"}};
  const auto found = all.find(word);
  return found == all.end() ? "" : found->second;
}

// "train-00000-of-00012.parquet" and "train.jsonl.gz" say train, "c4-validation.00001-of-00008.json.gz" validation. Empty if the name says
// none.
std::string split_in_name(const std::string& name) {
  const size_t of = name.find("-of-");
  if (of != std::string::npos && of >= 6) {
    const std::string digits = name.substr(of - 5, 5);
    const bool numbered = std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }) && name[of - 6] == '-';
    const std::string front = numbered ? name.substr(0, of - 6) : "";
    const auto plain = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); };
    if (!front.empty() && std::all_of(front.begin(), front.end(), plain)) return known_split(front).empty() ? front : known_split(front);
  }
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find_first_of("-._ ", at), name.size());
    if (std::string split = known_split(name.substr(at, end - at)); !split.empty()) return split;
    at = end + 1;
  }
  return "";
}

struct SplitFile {
  std::string subset, split;
  SourceFile file;
};

// A file's subset and split by its name and folders.
std::optional<SplitFile> part_of(const SourceFile& file, const std::string& inside) {
  Strings folders = pattern_parts(inside);
  const std::string name = folders.back();
  folders.pop_back();
  SplitFile part{"default", split_in_name(name), file};
  Strings rest;
  for (const std::string& folder : folders) {
    const std::string split = known_split(folder);
    if (!split.empty() && part.split.empty()) part.split = split;
    if (split.empty() && folder != "data") rest.push_back(folder);
  }
  if (part.split.empty()) return std::nullopt;
  if (!rest.empty()) part.subset = rest.front();
  return part;
}

// The block of a top-level key of the YAML between the two "---" lines at the start of README.md; empty if there is none.
std::string front_matter(const std::string& readme, std::string_view key) {
  std::string out;
  bool inside = false, first = true;
  for (size_t at = 0; at < readme.size();) {
    const size_t end = std::min(readme.find('\n', at), readme.size());
    std::string line = readme.substr(at, end - at);
    at = end + 1;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line == "---") {
      if (!first) break;
      first = false;
      continue;
    }
    if (first) return "";
    if (!line.empty() && line[0] != ' ' && line[0] != '-' && line[0] != '#') inside = line.starts_with(key);
    if (inside) out += line + "\n";
  }
  return out;
}

const char* kReadme = "README.md";
constexpr size_t kMostReadme = size_t{4} << 20;

std::string read_head(const std::string& path, size_t most) {
  const auto file = open_bytes(path);
  std::string text(std::min(most, static_cast<size_t>(file->size())), '\0');
  text.resize(file->read(0, text.data(), text.size()));
  return text;
}

Strings patterns_of(const Yaml& value, const std::string& where) {
  Strings out;
  for (const Yaml& one : value.is_array() ? value : Yaml::array({value})) {
    check(one.is_string(), "{}: expected a path, or a list of paths", where);
    out.push_back(one.get<std::string>());
  }
  return out;
}

// The listing of a folder: its files with their names below it.
class Folder {
 public:
  Folder(std::string path, std::vector<std::pair<std::string, SourceFile>> files) : path_(std::move(path)), files_(std::move(files)) {}

  const std::string& path() const { return path_; }
  bool has(const std::string& name) const {
    return std::any_of(files_.begin(), files_.end(), [&](const auto& f) { return f.first == name; });
  }
  std::set<std::string> kinds() const {
    std::set<std::string> out;
    for (const auto& [name, file] : files_)
      if (const std::string kind = kind_by_suffix(name); !kind.empty() && !describes(name)) out.insert(kind);
    return out;
  }
  bool any(const std::string& suffix) const {
    return std::any_of(files_.begin(), files_.end(), [&](const auto& f) { return f.first.ends_with(suffix); });
  }

  // By README.md; nothing if it names no files.
  std::optional<std::vector<SplitFile>> listed() const {
    if (!has(kReadme)) return std::nullopt;
    const std::string place = path_ + "/" + kReadme;
    const std::string block = front_matter(read_head(place, kMostReadme), "configs:");
    if (block.empty()) return std::nullopt;
    const Yaml root = read_yaml(block, place).root;
    std::vector<SplitFile> out;
    if (!root.contains("configs") || !root["configs"].is_array()) return std::nullopt;
    for (const Yaml& config : root["configs"]) {
      check(config.is_object(), "{}: configs: expected a list of configurations", place);
      const auto text = [&](const char* key, const char* fallback) {
        const auto found = config.find(key);
        return found != config.end() && found->is_string() ? found->get<std::string>() : std::string(fallback);
      };
      const std::string name = text("config_name", "default"), folder = text("data_dir", "");
      const auto files = config.find("data_files");
      if (files == config.end()) continue;
      if (config.find("default") != config.end() && config["default"] == true) default_ = name;
      const auto add = [&](const std::string& split, const Strings& patterns) {
        for (const std::string& pattern : patterns) {
          const Strings parts = pattern_parts(folder.empty() ? pattern : folder + "/" + pattern);
          for (const auto& [inside, file] : files_)
            if (matches(parts, pattern_parts(inside))) out.push_back({name, split, file});
        }
      };
      if (files->is_object()) {
        for (const auto& item : files->items()) add(item.key(), patterns_of(item.value(), place + ": data_files"));
      } else if (files->is_array() && !files->empty() && files->front().is_object()) {
        for (const Yaml& one : *files) {
          check(one.is_object() && one.contains("split") && one["split"].is_string() && one.contains("path"),
                "{}: data_files of {}: expected split and path", place, name);
          add(one["split"].get<std::string>(), patterns_of(one["path"], place + ": data_files"));
        }
      } else {
        add("train", patterns_of(*files, place + ": data_files"));
      }
    }
    if (out.empty()) return std::nullopt;
    return out;
  }

  // By names; nothing if no name says a split.
  std::optional<std::vector<SplitFile>> named() const {
    std::vector<SplitFile> out;
    for (const auto& [name, file] : files_) {
      if (kind_by_suffix(name).empty() || describes(name)) continue;
      if (std::optional<SplitFile> part = part_of(file, name)) out.push_back(*std::move(part));
    }
    if (out.empty()) return std::nullopt;
    return out;
  }

  // All files of the most usual kind, if they are of one.
  std::vector<SourceFile> of_kind(const std::string& kind) const {
    std::vector<SourceFile> out;
    for (const auto& [name, file] : files_)
      if (kind_by_suffix(name) == kind && !describes(name)) out.push_back(file);
    return out;
  }
  void refuse_foreign_files() const {
    for (const auto& [name, file] : files_) refuse_foreign(file.path);
  }
  const std::string& default_subset() const { return default_; }
  size_t size() const { return files_.size(); }

 private:
  static bool describes(const std::string& name) { return kDescriptions.contains(base_name(name)); }
  std::string path_;
  std::vector<std::pair<std::string, SourceFile>> files_;
  mutable std::string default_ = "default";
};

Folder list_folder(const std::string& path) {
  std::string base = path;
  while (base.size() > 1 && base.ends_with("/")) base.pop_back();
  // The hub's cache: the snapshot that refs/main names, else the only one.
  if (!is_remote(base) && fs::is_directory(base + "/snapshots")) {
    Strings all;
    for (const auto& entry : fs::directory_iterator(base + "/snapshots")) all.push_back(entry.path().filename().string());
    std::string revision = fs::exists(base + "/refs/main") ? halftone::read_file(base + "/refs/main", 1000) : "";
    while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back()))) revision.pop_back();
    if (std::find(all.begin(), all.end(), revision) == all.end()) {
      std::sort(all.begin(), all.end());
      check(all.size() == 1, "dataset_path {}: a folder of the hub's cache with the snapshots {}: choose one, {}/snapshots/...", path,
            all.empty() ? "none" : fmt::format("{}", fmt::join(all, ", ")), base);
      revision = all.front();
    }
    base += "/snapshots/" + revision;
  }
  std::vector<std::pair<std::string, SourceFile>> files;
  for (const SourceFile& file : find_files(base, {""}).files)
    files.emplace_back(file.path.substr(std::min(base.size() + 1, file.path.size())), file);
  return {base, std::move(files)};
}

std::string choose_subset(const std::vector<SplitFile>& parts, const std::string& wanted, const std::string& fallback,
                          const std::string& path) {
  std::set<std::string> all;
  for (const SplitFile& part : parts) all.insert(part.subset);
  check(wanted.empty() || all.contains(wanted), "dataset_path {}: no subset \"{}\"; there is: {} (dataloader.subset)", path, wanted,
        fmt::join(all, ", "));
  if (!wanted.empty()) return wanted;
  if (all.contains(fallback)) return fallback;
  check(all.size() == 1, "dataset_path {}: a data set of several subsets: set dataloader.subset to one of {}", path, fmt::join(all, ", "));
  return *all.begin();
}

FoundData take_parts(const std::vector<SplitFile>& parts, const std::string& fallback, const std::string& path, const std::string& subset,
                     const std::string& split) {
  const std::string chosen = choose_subset(parts, subset, fallback, path);
  std::set<std::string> splits, taken;
  FoundData out;
  out.path = path;
  std::vector<SourceFile> files;
  for (const SplitFile& part : parts) {
    if (part.subset != chosen) continue;
    splits.insert(part.split);
    if (part.split != split || !taken.insert(part.file.path).second) continue;
    const std::string kind = kind_by_suffix(part.file.path);
    check(out.kind.empty() || kind == out.kind, "dataset_path {}: split {} holds {} and {} files ({}); set dataset to one of them", path,
          split, out.kind, kind, part.file.path);
    out.kind = kind;
    files.push_back(part.file);
  }
  check(!files.empty(), "dataset_path {}: no split \"{}\"{}; there is: {} (dataloader.split)", path, split,
        chosen == "default" ? "" : " of subset " + chosen, fmt::join(splits, ", "));
  if (out.kind.empty()) refuse_foreign(files.front().path);
  check(!out.kind.empty(), "dataset_path {}: {} has no suffix of a known kind; set dataset", path, files.front().path);
  out.files = list_files(path, std::move(files));
  return out;
}

FoundData look_at_folder(const std::string& path, const std::string& subset, const std::string& split, bool always) {
  const Folder folder = list_folder(path);
  if (folder.has("index.json") || (folder.any("/index.json") && folder.kinds().contains("mds"))) return {"mds", folder.path(), {}};
  if (folder.any(".idx")) return {"megatron", folder.path(), {}};
  std::optional<std::vector<SplitFile>> parts = folder.listed();
  if (!parts) parts = folder.named();
  if (parts) return take_parts(*parts, folder.default_subset(), path, subset, split);
  check(!always || (subset.empty() && split == "train"),
        "dataset_path {}: no file name says its split or subset; dataloader.{} = \"{}\" chooses nothing", path,
        subset.empty() ? "split" : "subset", subset.empty() ? split : subset);
  const std::set<std::string> kinds = folder.kinds();
  if (kinds.empty()) folder.refuse_foreign_files();
  check(!kinds.empty(), "dataset_path {}: none of its {} files has a suffix of a known kind (.parquet, .jsonl, .json, .ndjson, .txt, .bin)",
        path, folder.size());
  check(kinds.size() == 1, "dataset_path {}: holds files of the kinds {}; set dataset to one of them", path, fmt::join(kinds, ", "));
  std::vector<SourceFile> files = folder.of_kind(*kinds.begin());
  const auto others = static_cast<int64_t>(folder.size() - files.size());
  return {*kinds.begin(), path, list_files(path, std::move(files), others)};
}

}  // namespace

std::string kind_of_file(const SourceFile& file) {
  const std::string named = kind_by_suffix(file.path);
  if (named == "bin") {
    std::error_code ignored;
    const bool megatron = !is_remote(file.path) && fs::exists(file.path.substr(0, file.path.size() - 4) + ".idx", ignored);
    return megatron ? "megatron" : "bin";
  }
  if (named.empty()) refuse_foreign(file.path);
  const std::string found = kind_by_content(file.path);
  // Any text may be read as text if its name says so; JSON and Parquet are what they are.
  if (named == "text" && found == "jsonl") return named;
  if (!named.empty() && found == "text") return named;  // its reader says what is wrong
  return found.empty() ? named : found;
}

std::set<std::string> splits_of(const FileList& files) {
  std::set<std::string> splits;
  for (const SourceFile& file : files.files)
    if (const std::optional<SplitFile> part = part_of(file, file.name)) splits.insert(part->split);
  return splits;
}

FoundData find_data(const std::string& path, const std::string& subset, const std::string& split, bool always) {
  std::error_code ignored;
  const bool remote = is_remote(path);
  if (!remote && fs::is_directory(path, ignored)) return look_at_folder(path, subset, split, always);
  if (!remote && !fs::exists(path, ignored) && fs::exists(path + ".idx", ignored)) return {"megatron", path, {}};
  if (remote && !has_wildcard(path) && kind_by_suffix(path).empty() && !path.starts_with("http")) {
    const FileList below = find_files(path, {""});
    if (below.files.size() != 1 || below.files[0].path != path) return look_at_folder(path, subset, split, always);
  }
  FoundData out{"", path, find_files(path, {""})};
  for (const SourceFile& file : out.files.files) {
    // The first file is looked into; names decide for the others.
    const std::string kind = &file == &out.files.files[0] ? kind_of_file(file) : kind_by_suffix(file.path);
    if (out.kind.empty()) out.kind = kind;
    const bool same = kind == out.kind || kind.empty() || out.kind == "megatron";
    check(same, "dataset_path {}: {} is of the kind {}, {} of {}; set dataset to one of them", path, out.files.files[0].path, out.kind,
          file.path, kind);
  }
  check(!out.kind.empty(),
        "{}: neither its name nor its contents say what it is; set dataset to text, jsonl, parquet, bin, megatron or mds",
        out.files.files[0].path);
  if (base_name(path) == "index.json" && out.kind == "jsonl") return {"mds", path.substr(0, path.size() - 10), {}};
  return out;
}

}  // namespace halftone
