#include "halftone/data/mds_source.h"

#include <map>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/data/row_document.h"
#include "halftone/storage/byte_stream.h"

namespace halftone {
namespace {

constexpr int64_t kMostIndexBytes = int64_t{256} << 20;

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

std::string whole_file(const SourceFile& file) {
  check(file.size <= kMostIndexBytes, "{}: {} bytes: expected at most {}", file.path, file.size, kMostIndexBytes);
  std::string text(static_cast<size_t>(file.size), '\0');
  text.resize(open_bytes(file.path)->read(0, text.data(), text.size()));
  return text;
}

}  // namespace

MdsSource::MdsSource(const SourceOptions& options) : DocumentSource({}), options_(options) {
  chat_ = describe_chat(options_);
  const FileList below = find_files(options.path, {"index.json", ".mds", ".mds.zstd", ".mds.zst", ".mds.gz"});
  std::map<std::string, const SourceFile*> there;
  for (const SourceFile& file : below.files) there.emplace(file.path, &file);
  std::vector<SourceFile> files;
  for (const SourceFile& file : below.files) {
    if (!file.path.ends_with("index.json")) continue;
    const std::string folder = folder_of(file.path);
    for (MdsShard& shard : parse_mds_index(whole_file(file), file.path)) {
      const auto raw = there.find(folder + shard.raw_name), zip = there.find(folder + shard.zip_name);
      const bool is_raw = raw != there.end();
      check(is_raw || (!shard.zip_name.empty() && zip != there.end()), "{}: {}{} is missing: expected it beside index.json", file.path,
            shard.raw_name, shard.zip_name.empty() ? "" : " or " + shard.zip_name);
      const SourceFile& found = *(is_raw ? raw : zip)->second;
      const int64_t bytes = is_raw ? shard.raw_bytes : shard.zip_bytes;
      check(found.size == bytes, "{}: {} bytes: index.json names {}; is the file cut short?", found.path, found.size, bytes);
      choose(shard, found.path);
      check(shards_.emplace(found.path, std::move(shard)).second, "{}: named twice in {}", found.path, file.path);
      files.push_back(found);
    }
  }
  check(!files.empty(), "dataset mds: no shard below {}: expected index.json and its shards", options.path);
  files_ = list_files(options.path, std::move(files));
}

MdsSource::Choice MdsSource::choose(const MdsShard& shard, const std::string& path) const {
  const auto column = [&](const std::string& name) {
    size_t c = 0;
    while (c < shard.columns.size() && shard.columns[c].name != name) ++c;
    return c;
  };
  const auto is = [&](size_t c, const char* encoding) { return c < shard.columns.size() && shard.columns[c].encoding == encoding; };
  std::string all;
  for (const MdsColumn& c : shard.columns)
    if (all.size() < kMostShown) all += (all.empty() ? "" : ", ") + excerpt(c.name) + " (" + excerpt(c.encoding) + ")";
  if (const size_t c = column(options_.text_key); c < shard.columns.size()) {
    if (is(c, "str")) return {c, Use::text};
    check(is_mds_ids(shard.columns[c].encoding), "{}: column {}: expected a text (str) or ids (ndarray), found {}; its columns are {}",
          path, options_.text_key, excerpt(shard.columns[c].encoding), all);
    return {c, Use::ids};
  }
  for (const char* name : {"input_ids", "tokens"})
    if (const size_t c = column(name); c < shard.columns.size() && is_mds_ids(shard.columns[c].encoding)) return {c, Use::ids};
  if (const size_t c = column(options_.chat.messages_key); is(c, "json") || is(c, "str")) return {c, Use::conversation};
  fail("{}: expected a column \"{}\" (str; set dataloader.text_key), \"input_ids\" or \"tokens\" (ndarray) or \"{}\" (json), found {}",
       path, options_.text_key, options_.chat.messages_key, all.empty() ? "no column" : all);
}

void MdsSource::read_file(size_t number, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files.at(number);
  const MdsShard& shard = shards_.at(file.path);
  const Choice choice = choose(shard, file.path);
  const auto stream = open_stream(file.path);
  RowDocument row(options_);
  std::vector<int32_t> ids;
  const auto read = [&](char* out, size_t size) { return stream->read(out, size); };
  read_mds_shard(shard, read, file.path, options_.max_document_bytes, [&](int64_t sample, std::span<const std::string_view> columns) {
    const std::string_view bytes = columns[choice.column];
    Document document;
    try {
      if (choice.use == Use::conversation) {
        document = row.read(parse_row(fmt::format("{{{}:{}}}", nlohmann::json(options_.chat.messages_key).dump(), bytes)));
      } else if (choice.use == Use::ids) {
        ids.clear();
        append_mds_ids(shard.columns[choice.column].encoding, bytes, options_.vocab_size, ids);
        document.kind = Document::Kind::ids;
        document.ids = ids;
      } else {
        if (const size_t valid = valid_utf8_prefix(bytes); valid < bytes.size()) fail("{}", not_utf8(bytes, valid));
        document.text = bytes;
      }
    } catch (const Error& error) {
      fail("{}: sample {}, column {}: {}", file.path, sample, shard.columns[choice.column].name, error.what());
    }
    visit(document);
  });
  char more;
  check(stream->read(&more, 1) == 0, "{}: bytes behind its last sample: expected {} bytes", file.path, shard.raw_bytes);
}

}  // namespace halftone
