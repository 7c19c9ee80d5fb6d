#include "halftone/checkpoint/tensor_io.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/checkpoint/index.h"

namespace halftone {
namespace {

constexpr std::array<std::pair<FileDType, at::ScalarType>, 16> kTypes{{{FileDType::f64, at::kDouble},
                                                                       {FileDType::f32, at::kFloat},
                                                                       {FileDType::f16, at::kHalf},
                                                                       {FileDType::bf16, at::kBFloat16},
                                                                       {FileDType::i64, at::kLong},
                                                                       {FileDType::i32, at::kInt},
                                                                       {FileDType::i16, at::kShort},
                                                                       {FileDType::i8, at::kChar},
                                                                       {FileDType::u64, at::ScalarType::UInt64},
                                                                       {FileDType::u32, at::ScalarType::UInt32},
                                                                       {FileDType::u16, at::ScalarType::UInt16},
                                                                       {FileDType::u8, at::kByte},
                                                                       {FileDType::boolean, at::kBool},
                                                                       {FileDType::f8_e4m3, at::kFloat8_e4m3fn},
                                                                       {FileDType::f8_e5m2, at::kFloat8_e5m2},
                                                                       {FileDType::f8_e8m0, at::kFloat8_e8m0fnu}}};

std::string name_list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// Name of the tensor, or of its chunk, inside the file.
std::string stored_name(const NamedTensor& t) {
  TensorChunk chunk{.file = {}, .offset = std::vector<int64_t>(static_cast<size_t>(t.tensor.dim())), .shape = t.tensor.sizes().vec()};
  if (!t.offset.empty()) chunk.offset = t.offset;
  return chunk_name(t.name, {.shape = t.whole_shape()}, chunk);
}

// Whether no element has all of these bits set: those of the exponent (for e4m3fn and e8m0, which have no infinity: of their NaN).
template <class Bits>
bool none_has(const void* data, size_t bytes, Bits bits) {
  const Bits* values = static_cast<const Bits*>(data);
  Bits found = 0;
  for (size_t i = 0; i < bytes / sizeof(Bits); ++i) found |= (values[i] & bits) == bits;
  return found == 0;
}

}  // namespace

FileDType file_dtype_of(at::ScalarType type) {
  for (const auto& [file, scalar] : kTypes)
    if (scalar == type) return file;
  fail("a tensor of type {} cannot be stored in a safetensors file", c10::toString(type));
}

at::ScalarType scalar_type_of(FileDType type) { return kTypes[static_cast<size_t>(type)].second; }

bool is_castable(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble; }

bool is_finite(FileDType type, const void* data, size_t bytes) {
  switch (type) {
    case FileDType::f64:
      return none_has<uint64_t>(data, bytes, 0x7ff0000000000000);
    case FileDType::f32:
      return none_has<uint32_t>(data, bytes, 0x7f800000);
    case FileDType::f16:
      return none_has<uint16_t>(data, bytes, 0x7c00);
    case FileDType::bf16:
      return none_has<uint16_t>(data, bytes, 0x7f80);
    case FileDType::f8_e4m3:
      return none_has<uint8_t>(data, bytes, 0x7f);
    case FileDType::f8_e5m2:
      return none_has<uint8_t>(data, bytes, 0x7c);
    case FileDType::f8_e8m0:
      return none_has<uint8_t>(data, bytes, 0xff);
    default:
      return true;
  }
}

at::ScalarType stored_type(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  return dtype && is_castable(tensor.scalar_type()) ? *dtype : tensor.scalar_type();
}

std::vector<std::vector<NamedTensor>> split_into_files(const std::vector<NamedTensor>& tensors, int64_t max_bytes,
                                                       std::optional<at::ScalarType> dtype) {
  std::vector<std::vector<NamedTensor>> files;
  int64_t bytes = 0;
  for (const NamedTensor& t : tensors) {
    const int64_t size = t.tensor.numel() * static_cast<int64_t>(c10::elementSize(stored_type(t.tensor, dtype)));
    if (files.empty() || (bytes > 0 && bytes + size > max_bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(t);
    bytes += size;
  }
  return files;
}

namespace {

// Rows of `row_bytes` bytes per piece of about `bytes`, in multiples of `unit`.
int64_t rows_of_piece(size_t bytes, size_t row_bytes, int64_t unit) {
  const auto rows = static_cast<int64_t>(bytes / std::max<size_t>(row_bytes, 1));
  return std::max(rows / unit * unit, unit);
}

// A range of rows of a tensor in its file.
struct Piece {
  const NamedTensor* tensor;
  at::ScalarType type;
  int64_t first, rows;
};

at::Tensor contents_of(const Piece& piece, const TensorSource& source) {
  const at::Tensor& t = piece.tensor->tensor;
  const at::Tensor rows = source         ? source(piece.tensor->name, piece.first, piece.rows)
                          : t.dim() == 0 ? t
                                         : t.narrow(0, piece.first, piece.rows);
  return rows.detach().to(at::kCPU, piece.type).contiguous();
}

// Reads pieces on threads, a few ahead of the consumer, who gets them in their order.
class ReadAhead {
 public:
  ReadAhead(const std::vector<Piece>& pieces, const TensorSource& source, int threads)
      : pieces_(pieces), source_(source), most_(4 * static_cast<size_t>(threads)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  at::Tensor next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || ready_.contains(taken_); });
    if (!ready_.contains(taken_)) std::rethrow_exception(failure_);
    at::Tensor tensor = std::move(ready_.extract(taken_++).mapped());
    changed_.notify_all();
    return tensor;
  }

 private:
  void run() {
    omp_set_num_threads(1);  // for this thread only
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ended_ || failure_ || started_ - taken_ < most_; });
      if (ended_ || failure_ || started_ == pieces_.size()) return;
      const size_t piece = started_++;
      lock.unlock();
      try {
        at::Tensor tensor = contents_of(pieces_[piece], source_);
        lock.lock();
        ready_.emplace(piece, std::move(tensor));
      } catch (...) {
        lock.lock();
        failure_ = std::current_exception();
      }
      changed_.notify_all();
    }
  }
  const std::vector<Piece>& pieces_;
  const TensorSource& source_;
  const size_t most_;  // pieces in memory
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, at::Tensor> ready_;
  size_t started_ = 0, taken_ = 0;  // pieces
  std::exception_ptr failure_;
  bool ended_ = false;
  std::vector<std::thread> threads_;  // last: they use the other members
};

}  // namespace

WrittenTensors write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata, bool checksum, std::optional<at::ScalarType> dtype,
                             const TensorSource& source, bool computed) {
  constexpr size_t kPiece = size_t{2} << 20;  // several fit into a cache
  constexpr int64_t kUnit = 256;              // rows: full heads of most models, full blocks of codes
  std::vector<TensorEntry> entries;
  std::unordered_map<std::string, const NamedTensor*> by_name;
  for (const NamedTensor& t : tensors) {
    check(t.tensor.defined(), "{}: tensor {} is undefined", path.string(), t.name);
    const std::string name = stored_name(t);
    check(by_name.emplace(name, &t).second, "{}: two tensors named {}", path.string(), name);
    entries.push_back({.name = name, .dtype = file_dtype_of(stored_type(t.tensor, dtype)), .shape = t.tensor.sizes().vec()});
  }
  const bool from_files = source && !tensors.empty() && tensors[0].tensor.is_meta();
  SafetensorsWriter writer(path, std::move(entries), metadata, checksum, from_files, computed);
  std::vector<Piece> pieces;
  for (const TensorEntry& entry : writer.order()) {
    if (entry.begin == entry.end) continue;
    const int64_t rows = entry.shape.empty() ? 1 : entry.shape[0];
    const int64_t unit = entry.shape.size() > 2 ? 1 : kUnit;  // experts, which are large
    const int64_t step = rows_of_piece(kPiece, (entry.end - entry.begin) / static_cast<size_t>(rows), unit);
    for (int64_t first = 0; first < rows; first += step)
      pieces.push_back({by_name.at(entry.name), scalar_type_of(entry.dtype), first, std::min(step, rows - first)});
  }
  std::vector<std::string> not_finite;
  std::optional<ReadAhead> ahead;
  if (from_files) ahead.emplace(pieces, source, computed ? max_threads() : 1);  // the disk is slower than one thread that copies
  for (const Piece& piece : pieces) {
    const at::Tensor host = ahead ? ahead->next() : contents_of(piece, source);
    const std::string& name = piece.tensor->name;
    if (!is_finite(file_dtype_of(piece.type), host.const_data_ptr(), host.nbytes()) && (not_finite.empty() || not_finite.back() != name))
      not_finite.push_back(name);
    writer.write(host.const_data_ptr(), host.nbytes());
  }
  return {writer.finish(), std::move(not_finite)};
}

bool fill_rows(at::Tensor out, const RowReader& source) {
  constexpr size_t kPieceOfCpu = size_t{1} << 20, kPieceOfDevice = size_t{64} << 20;
  if (out.numel() == 0) return true;
  out = out.detach();
  if (out.dim() == 0) out = out.view({1});
  const bool cpu = out.device().is_cpu(), direct = cpu && out.is_contiguous() && out.scalar_type() == source.type && !source.arrange;
  const int64_t rows = out.size(0);
  const size_t row_bytes = static_cast<size_t>(out.numel() / rows) * c10::elementSize(source.type);
  const int64_t step = rows_of_piece(cpu ? kPieceOfCpu : kPieceOfDevice, row_bytes, source.unit), pieces = (rows + step - 1) / step;
  const FileDType type = file_dtype_of(source.type);
  std::atomic<bool> finite = true;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto fill = [&](int64_t begin, int64_t end) {
    std::vector<int64_t> shape = out.sizes().vec();
    at::Tensor staging;
    for (int64_t i = begin; i < end; ++i) {
      shape[0] = std::min(step, rows - i * step);
      const at::Tensor part = out.narrow(0, i * step, shape[0]);
      if (!direct && (!staging.defined() || staging.size(0) != shape[0]))
        staging = at::empty(shape, at::TensorOptions().dtype(source.type));
      void* data = direct ? part.mutable_data_ptr() : staging.mutable_data_ptr();
      source.read(i * step, shape[0], data);
      if (!is_finite(type, data, static_cast<size_t>(shape[0]) * row_bytes)) finite = false;
      if (!direct) part.copy_(source.arrange ? source.arrange(staging) : staging);
    }
  };
  const auto guarded = [&](int64_t begin, int64_t end) {
    try {
      fill(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  cpu ? parallel_for(pieces, 1, guarded) : guarded(0, pieces);
  if (failure) std::rethrow_exception(failure);
  return finite;
}

bool read_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::Tensor out, bool cast, std::optional<int64_t> first_row) {
  const at::ScalarType stored = scalar_type_of(entry.dtype);
  std::vector<int64_t> shape = entry.shape;
  if (first_row && out.dim() > 0 && !shape.empty()) {
    check(*first_row >= 0 && *first_row <= shape[0] && out.size(0) <= shape[0] - *first_row,
          "{}: tensor {} has {} rows, asked for {} from row {} on", file.path().string(), entry.name, shape[0], out.size(0), *first_row);
    shape[0] = out.size(0);
  }
  check(out.sizes() == at::IntArrayRef(shape), "{}: tensor {} has shape {}, expected {}", file.path().string(), entry.name,
        shape_text(entry.shape), shape_text(out.sizes().vec()));
  check(out.scalar_type() == stored || (cast && is_castable(stored) && is_castable(out.scalar_type())),
        "{}: tensor {} has type {}, expected {}", file.path().string(), entry.name, name_of(entry.dtype), c10::toString(out.scalar_type()));
  if (out.numel() == 0) return true;
  const uint64_t row_bytes = (entry.end - entry.begin) / static_cast<uint64_t>(entry.shape.empty() ? 1 : entry.shape[0]);
  const auto begin = static_cast<uint64_t>(first_row.value_or(0));
  file.will_read(entry, out.dim() == 0 ? row_bytes : static_cast<uint64_t>(out.size(0)) * row_bytes, begin * row_bytes);
  return fill_rows(out, {stored, [&](int64_t first, int64_t rows, void* data) {
                           file.read(entry, data, static_cast<uint64_t>(rows) * row_bytes,
                                     (begin + static_cast<uint64_t>(first)) * row_bytes);
                         }});
}

void check_same_names(const std::vector<std::string>& expected, const std::vector<std::string>& found, const std::string& what) {
  const std::set<std::string> want(expected.begin(), expected.end()), have(found.begin(), found.end());
  std::vector<std::string> missing, unknown;
  std::set_difference(want.begin(), want.end(), have.begin(), have.end(), std::back_inserter(missing));
  std::set_difference(have.begin(), have.end(), want.begin(), want.end(), std::back_inserter(unknown));
  if (missing.empty() && unknown.empty()) return;
  std::string text;
  if (!missing.empty()) text += fmt::format("{} tensors are missing: {}", missing.size(), name_list(missing));
  if (!unknown.empty()) text += fmt::format("{}{} tensors are unknown: {}", text.empty() ? "" : "; ", unknown.size(), name_list(unknown));
  fail("{} does not fit this model: {}", what, text);
}

}  // namespace halftone
