#include "halftone/data/mds_format.h"

#include <algorithm>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/data/tokenizer_json_fields.h"

namespace halftone {
namespace {

using Json = tokenizer_fields::Json;
using tokenizer_fields::list;
using tokenizer_fields::member;
using tokenizer_fields::string_of;

constexpr size_t kMostColumns = 1000;

uint32_t u32_at(const char* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

int64_t whole_number(const Json& object, const char* key, const std::string& where) {
  const int64_t value = tokenizer_fields::integer(member(object, key, where.c_str()), where + "." + key);
  check(value >= 0, "{}.{} is {}: expected 0 or more", where, key, value);
  return value;
}

// {basename, bytes, ...} or null.
void read_file_entry(const Json& shard, const char* key, const std::string& where, std::string& name, int64_t& bytes) {
  const auto found = shard.find(key);
  if (found == shard.end() || found->is_null()) return;
  const std::string inside = where + "." + key;
  name = string_of(*found, "basename", inside.c_str());
  const bool plain = !name.empty() && name[0] != '/' && name.find("..") == std::string::npos && name.find('\0') == std::string::npos;
  check(plain, "{}.basename {}: expected the name of a file beside index.json", inside, tokenizer_fields::shown(name));
  bytes = whole_number(*found, "bytes", inside);
}

// Integers of NumPy, by name and by the code that an array of unstated type begins with.
struct ArrayType {
  std::string_view name;
  int code, width;
  bool is_signed;
};
constexpr ArrayType kArrayTypes[] = {{"uint8", 8, 1, false},   {"int8", 9, 1, true},   {"uint16", 16, 2, false}, {"int16", 17, 2, true},
                                     {"uint32", 32, 4, false}, {"int32", 33, 4, true}, {"uint64", 64, 8, false}, {"int64", 65, 8, true}};

int64_t integer_at(const char* p, const ArrayType& type) {
  uint64_t value = 0;
  std::memcpy(&value, p, static_cast<size_t>(type.width));
  const int unused = 64 - 8 * type.width;
  // A uint64 value beyond int64 becomes negative, which no id is.
  return type.is_signed ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
}

}  // namespace

std::vector<MdsShard> parse_mds_index(std::string_view json, const std::string& path) {
  const Json index = tokenizer_fields::parse(json, path.c_str());
  const int64_t version = whole_number(index, "version", path);
  check(version == 2, "{}: an MDS index of version {}: expected version 2", path, version);
  std::vector<MdsShard> out;
  for (const Json& entry : list(index, "shards", path.c_str())) {
    const std::string where = fmt::format("{}: shards[{}]", path, out.size());
    const std::string format = string_of(entry, "format", where.c_str());
    check(format == "mds", "{}.format is {}: expected mds", where, tokenizer_fields::shown(format));
    MdsShard& shard = out.emplace_back();
    const Json &names = list(entry, "column_names", where.c_str()), &encodings = list(entry, "column_encodings", where.c_str()),
               &sizes = list(entry, "column_sizes", where.c_str());
    check(names.size() == encodings.size() && names.size() == sizes.size() && names.size() <= kMostColumns,
          "{}: {} column names, {} encodings and {} sizes: expected as many of each", where, names.size(), encodings.size(), sizes.size());
    for (size_t c = 0; c < names.size(); ++c) {
      check(names[c].is_string() && encodings[c].is_string() && (sizes[c].is_null() || sizes[c].is_number_unsigned()),
            "{}: column {}: expected a name, an encoding and a size or null", where, c);
      const auto size = sizes[c].is_null() ? uint64_t{0} : sizes[c].get<uint64_t>();
      check(size <= UINT32_MAX, "{}: column {} has {} bytes: expected 4294967295 at most", where, c, size);
      shard.columns.push_back(
          {names[c].get<std::string>(), encodings[c].get<std::string>(), sizes[c].is_null() ? -1 : static_cast<int64_t>(size)});
    }
    shard.samples = whole_number(entry, "samples", where);
    read_file_entry(entry, "raw_data", where, shard.raw_name, shard.raw_bytes);
    read_file_entry(entry, "zip_data", where, shard.zip_name, shard.zip_bytes);
    check(!shard.raw_name.empty(), "{}: names no raw_data", where);
    check(shard.raw_bytes <= UINT32_MAX, "{}: raw_data of {} bytes: expected 4294967295 at most", where, shard.raw_bytes);
    check(shard.samples <= shard.raw_bytes / 4, "{}: {} samples in {} bytes", where, shard.samples, shard.raw_bytes);
    const auto packed = entry.find("compression");
    if (shard.zip_name.empty() || packed == entry.end() || !packed->is_string()) continue;
    const auto name = packed->get<std::string>();
    check(name.starts_with("zstd") || name.starts_with("gz"),
          "{}.compression is {}: expected zstd or gz; write the set again with one of them", where, tokenizer_fields::shown(name));
  }
  return out;
}

void read_mds_shard(const MdsShard& shard, const std::function<size_t(char*, size_t)>& read, const std::string& path, int64_t longest,
                    const std::function<void(int64_t, std::span<const std::string_view>)>& visit) {
  int64_t at = 0;
  const auto take = [&](char* out, size_t size, const char* what) {
    for (size_t done = 0; done < size;) {
      const size_t n = read(out + done, size - done);
      check(n > 0, "{}: ends at byte {} inside {}: the file is cut short", path, at + static_cast<int64_t>(done), what);
      done += n;
    }
    at += static_cast<int64_t>(size);
  };
  char head[4];
  take(head, 4, "the number of samples");
  check(u32_at(head) == shard.samples, "{}: holds {} samples, index.json names {}", path, u32_at(head), shard.samples);
  // Grows as it is read: the number of samples is the file's claim.
  std::string table;
  for (size_t left = (static_cast<size_t>(shard.samples) + 1) * 4, step; left > 0; left -= step) {
    step = std::min(left, size_t{1} << 20);
    table.resize(table.size() + step);
    take(table.data() + table.size() - step, step, "the table of samples");
  }
  const auto offset = [&](int64_t i) { return int64_t{u32_at(table.data() + i * 4)}; };
  check(offset(0) >= at && offset(shard.samples) == shard.raw_bytes, "{}: its samples lie from byte {} to {}: expected {} or more to {}",
        path, offset(0), offset(shard.samples), at, shard.raw_bytes);
  size_t head_bytes = 0;
  for (const MdsColumn& column : shard.columns) head_bytes += column.size < 0 ? 4 : 0;
  std::string sample;
  const auto skip_to = [&](int64_t to) {
    while (at < to) {
      sample.resize(static_cast<size_t>(std::min<int64_t>(to - at, 1 << 16)));
      take(sample.data(), sample.size(), "its header");
    }
  };
  skip_to(offset(0));
  std::vector<std::string_view> columns(shard.columns.size());
  for (int64_t i = 0; i < shard.samples; ++i) {
    const int64_t size = offset(i + 1) - offset(i);
    check(size >= static_cast<int64_t>(head_bytes), "{}: sample {} has {} bytes: expected {} or more", path, i, size, head_bytes);
    check(size <= longest, "{}: sample {} has {} bytes: expected at most {} (dataloader.max_document_mib)", path, i, size, longest);
    sample.resize(static_cast<size_t>(size));
    take(sample.data(), sample.size(), "a sample");
    size_t sizes = 0, begin = head_bytes;
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto length = static_cast<size_t>(shard.columns[c].size < 0 ? u32_at(sample.data() + sizes) : shard.columns[c].size);
      sizes += shard.columns[c].size < 0 ? 4 : 0;
      check(length <= sample.size() - begin, "{}: sample {}: column {} of {} bytes leaves the sample", path, i,
            tokenizer_fields::shown(shard.columns[c].name), length);
      columns[c] = std::string_view(sample).substr(begin, length);
      begin += length;
    }
    check(begin == sample.size(), "{}: sample {} has {} bytes, its columns {}", path, i, sample.size(), begin);
    visit(i, columns);
  }
}

bool is_mds_ids(std::string_view encoding) { return encoding == "bytes" || encoding == "ndarray" || encoding.starts_with("ndarray:"); }

void append_mds_ids(std::string_view encoding, std::string_view bytes, int64_t vocab_size, std::vector<int32_t>& out) {
  const ArrayType* type = nullptr;
  const auto named = [&](auto&& matches) {
    const auto found = std::find_if(std::begin(kArrayTypes), std::end(kArrayTypes), matches);
    check(found != std::end(kArrayTypes), "encoding {}: expected an array of integers", encoding);
    type = &*found;
  };
  size_t at = 0;
  if (encoding == "bytes") {
    named([](const ArrayType& t) { return t.name == "int64"; });
  } else {
    std::string_view rest = encoding.substr(std::min<size_t>(encoding.size(), 8));  // behind "ndarray:"
    const std::string_view name = rest.substr(0, rest.find(':'));
    const bool fixed_shape = rest.size() > name.size();
    if (name.empty()) {
      check(!bytes.empty(), "an empty array without its type");
      const int code = static_cast<unsigned char>(bytes[at++]);
      named([&](const ArrayType& t) { return t.code == code; });
    } else {
      named([&](const ArrayType& t) { return t.name == name; });
    }
    if (!fixed_shape) {
      check(at < bytes.size(), "an array without its shape");
      const auto shape = static_cast<unsigned char>(bytes[at++]);  // axes in the upper 6 bits, width of a length in the lower 2
      const size_t axes = shape >> 2, width = size_t{1} << (shape & 3);
      check(axes == 1, "an array of {} axes: expected a list of ids", axes);
      check(width <= bytes.size() - at, "an array without its shape");
      uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, width);
      at += width;
      check(length == (bytes.size() - at) / static_cast<size_t>(type->width), "an array of {} ids in {} bytes", length, bytes.size() - at);
    }
  }
  const auto width = static_cast<size_t>(type->width);
  check((bytes.size() - at) % width == 0, "{} bytes are not a whole number of {} ids", bytes.size() - at, type->name);
  for (; at < bytes.size(); at += width) {
    const int64_t id = integer_at(bytes.data() + at, *type);
    check(id >= 0 && id < vocab_size, "holds {}: expected ids from 0 to {}", id, vocab_size - 1);
    out.push_back(static_cast<int32_t>(id));
  }
}

}  // namespace halftone
