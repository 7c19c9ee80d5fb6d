#include "halftone/checkpoint/index.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"

namespace halftone {
namespace {

void check_file_name(const std::string& name, const std::string& what) {
  const bool plain = !name.empty() && name.size() <= 255 && name != "." && name != ".." && name != "index.json" &&
                     name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  check(plain, "{}: {} is not the name of a file in the step folder", what, Json(name).dump(-1, ' ', true, Json::error_handler_t::replace));
}

std::optional<uint64_t> parse_checksum(const Json& file, const std::string& what) {
  const auto found = file.find("xxh3_64");
  if (found == file.end()) return std::nullopt;
  check(found->is_string(), "{}: xxh3_64 expects 16 hexadecimal digits", what);
  const auto& text = found->get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  check(text.size() == 16 && code == std::errc{} && end == text.data() + 16, "{}: xxh3_64 expects 16 hexadecimal digits, found \"{}\"",
        what, text.substr(0, 40));
  return value;
}

int64_t elements(const std::vector<int64_t>& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

bool overlap(const TensorChunk& a, const TensorChunk& b) {
  for (size_t d = 0; d < a.shape.size(); ++d)
    if (a.offset[d] + a.shape[d] <= b.offset[d] || b.offset[d] + b.shape[d] <= a.offset[d]) return false;
  return true;
}

// Checks that chunks lie inside the tensor and, unless this is a part, are disjoint and have as many elements as the tensor, so that they
// cover it.
void check_chunks(const IndexedTensor& tensor, bool part, const std::string& what) {
  const int64_t total = static_cast<int64_t>(byte_count(tensor.dtype, tensor.shape, what) / size_of(tensor.dtype));
  int64_t covered = 0;
  for (const TensorChunk& chunk : tensor.chunks) {
    check(chunk.offset.size() == tensor.shape.size() && chunk.shape.size() == tensor.shape.size(),
          "{}: a chunk has {} dimensions, the tensor {}", what, chunk.shape.size(), tensor.shape.size());
    for (size_t d = 0; d < tensor.shape.size(); ++d)
      check(chunk.shape[d] <= tensor.shape[d] && chunk.offset[d] <= tensor.shape[d] - chunk.shape[d],
            "{}: the chunk at {} of {} lies outside the shape {}", what, shape_text(chunk.offset), shape_text(chunk.shape),
            shape_text(tensor.shape));
    check(!__builtin_add_overflow(covered, elements(chunk.shape), &covered) && covered <= total, "{}: its chunks overlap", what);
  }
  if (part) return;
  check(covered == total, "{}: its chunks hold {} of {} elements", what, covered, total);
  check(!tensor.chunks.empty(), "{}: it has no chunk", what);
  if (tensor.shape.empty() || total == 0) {
    check(total == 0 || tensor.chunks.size() == 1, "{}: its chunks overlap", what);
    return;
  }
  std::vector<const TensorChunk*> sorted;
  for (const TensorChunk& chunk : tensor.chunks)
    if (elements(chunk.shape) > 0) sorted.push_back(&chunk);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 0; i < sorted.size(); ++i)
    for (size_t j = i + 1; j < sorted.size() && sorted[j]->offset[0] < sorted[i]->offset[0] + sorted[i]->shape[0]; ++j)
      check(!overlap(*sorted[i], *sorted[j]), "{}: its chunks at {} and {} overlap", what, shape_text(sorted[i]->offset),
            shape_text(sorted[j]->offset));
}

// "finite": true if missing.
bool flag(const Json& object, const std::string& what) { return !object.contains("finite") || bool_member(object, "finite", what); }

IndexedTensor parse_tensor(const Json& value, const CheckpointIndex& index, bool part, const std::string& what) {
  IndexedTensor tensor{.dtype = parse_file_dtype(string_member(value, "dtype", what), what)};
  tensor.shape = integer_list(member(value, "shape", what), kMaxDims, what + ": shape");
  const Json& chunks = member(value, "chunks", what);
  check(chunks.is_array(), "{}: \"chunks\" expects a list", what);
  for (const Json& item : chunks) {
    TensorChunk chunk{.file = string_member(item, "file", what)};
    check(index.files.contains(chunk.file), "{}: its file {} is not listed under \"files\"", what, chunk.file);
    chunk.offset = integer_list(member(item, "offset", what), kMaxDims, what + ": offset");
    chunk.shape = integer_list(member(item, "shape", what), kMaxDims, what + ": shape");
    tensor.chunks.push_back(std::move(chunk));
  }
  check_chunks(tensor, part, what);
  tensor.finite = flag(value, what);
  return tensor;
}

}  // namespace

std::string chunk_name(const std::string& fqn, const IndexedTensor& tensor, const TensorChunk& chunk) {
  if (chunk.shape == tensor.shape) return fqn;
  std::string name = fqn + "@";
  for (size_t d = 0; d < chunk.offset.size(); ++d) name += (d ? "," : "") + std::to_string(chunk.offset[d]);
  return name;
}

std::string write_index(const CheckpointIndex& index) {
  // One line per file and per tensor, readable for people and diff.
  std::string text =
      fmt::format("{{\"format\":\"{}\",\"version\":{},\"step\":{},\"model_only\":{},\"world\":{},\"mesh\":{},\"finite\":{},\n\"files\":{{",
                  kCheckpointFormat, kCheckpointVersion, index.step, index.model_only, index.world, Json(index.mesh).dump(),
                  first_not_finite(index) == nullptr);
  const auto add = [&](const std::string& name, const Json& row, bool first) {
    text += fmt::format("{}\n {}:{}", first ? "" : ",", Json(name).dump(), row.dump());
  };
  for (bool first = true; const auto& [name, file] : index.files) {
    Json row{{"bytes", file.bytes}};
    if (file.checksum) row["xxh3_64"] = fmt::format("{:016x}", *file.checksum);
    add(name, row, std::exchange(first, false));
  }
  text += "},\n\"tensors\":{";
  for (bool first = true; const auto& [name, tensor] : index.tensors) {
    Json chunks = Json::array();
    for (const TensorChunk& c : tensor.chunks) chunks.push_back({{"file", c.file}, {"offset", c.offset}, {"shape", c.shape}});
    Json row{{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"chunks", std::move(chunks)}};
    if (!tensor.finite) row["finite"] = false;
    add(name, row, std::exchange(first, false));
  }
  return text + "}}\n";
}

CheckpointIndex parse_index(std::string_view text, const std::string& what, bool part) {
  const Json root = parse_json(text, what);
  const std::string format = string_member(root, "format", what);
  check(format == kCheckpointFormat, "{}: expected the format {}, found {}", what, kCheckpointFormat, format);
  const int64_t version = integer_member(root, "version", what);
  check(version == kCheckpointVersion, "{}: format version {}, this program reads version {}", what, version, kCheckpointVersion);
  CheckpointIndex index;
  index.step = integer_member(root, "step", what);
  index.model_only = bool_member(root, "model_only", what);
  index.world = integer_member(root, "world", what);
  const Json& mesh = member(root, "mesh", what);
  check(mesh.is_object(), "{}: \"mesh\" expects an object", what);
  for (const auto& [axis, degree] : mesh.items()) index.mesh[axis] = integer_member(mesh, axis.c_str(), what + ": mesh");
  const Json& files = member(root, "files", what);
  check(files.is_object(), "{}: \"files\" expects an object", what);
  for (const auto& [name, value] : files.items()) {
    check_file_name(name, what);
    const std::string where = what + ": file " + name;
    IndexedFile& file = index.files[name];
    file.bytes = static_cast<uint64_t>(integer_member(value, "bytes", where));
    file.checksum = parse_checksum(value, where);
  }
  const Json& tensors = member(root, "tensors", what);
  check(tensors.is_object(), "{}: \"tensors\" expects an object", what);
  for (const auto& [name, value] : tensors.items())
    index.tensors.emplace(name, parse_tensor(value, index, part, what + ": tensor " + name));
  const bool finite = first_not_finite(index) == nullptr;
  check(!root.contains("finite") || flag(root, what) == finite, "{}: \"finite\" is not {}, as its tensors are", what, finite);
  return index;
}

void merge_part(CheckpointIndex& index, CheckpointIndex part, const std::string& what) {
  check(part.step == index.step && part.model_only == index.model_only && part.world == index.world,
        "{}: a part of step {} of {} ranks, expected step {} of {}; use one folder per run", what, part.step, part.world, index.step,
        index.world);
  for (auto& [name, file] : part.files) check(index.files.emplace(name, file).second, "{}: another rank wrote {} as well", what, name);
  for (auto& [name, tensor] : part.tensors) {
    IndexedTensor& whole = index.tensors.try_emplace(name, IndexedTensor{tensor.dtype, tensor.shape}).first->second;
    check(whole.dtype == tensor.dtype && whole.shape == tensor.shape, "{}: tensor {} is {} {}, another rank has {} {}", what, name,
          name_of(tensor.dtype), shape_text(tensor.shape), name_of(whole.dtype), shape_text(whole.shape));
    whole.chunks.insert(whole.chunks.end(), std::make_move_iterator(tensor.chunks.begin()), std::make_move_iterator(tensor.chunks.end()));
    whole.finite = whole.finite && tensor.finite;
  }
}

const std::string* first_not_finite(const CheckpointIndex& index) {
  for (const auto& [name, tensor] : index.tensors)
    if (!tensor.finite) return &name;
  return nullptr;
}

void check_state_json(std::string_view text, const std::string& what) {
  check(parse_json(text, what).is_object(), "{}: expected a JSON object", what);
}

}  // namespace halftone
