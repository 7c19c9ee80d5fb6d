#include "halftone/checkpoint/gguf.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/checkpoint/gguf_blocks.h"
#include "halftone/checkpoint/gguf_model.h"
#include "halftone/checkpoint/hf_forms.h"
#include "halftone/formats/describe.h"
#include "halftone/formats/scale_code.h"
#include "halftone/ops/operand.h"

namespace halftone {
namespace {

using Kind = GgufSource::Kind;

constexpr uint32_t kQuantizationVersion = 2;  // of the blocks, GGML_QNT_VERSION
constexpr int64_t kRowUnit = 128;             // a multiple of all tiles' rows

bool has_codes(GgufType type) { return row_of(type).block > 1; }

// Whether scales become fp16 and therefore codes of a run other numbers.
bool is_rounded(GgufType type) { return type == GgufType::q8_0 || type == GgufType::q4_0; }

at::ScalarType scalar_type_of(GgufType type) {
  return type == GgufType::f32 ? at::kFloat : type == GgufType::f16 ? at::kHalf : at::kBFloat16;
}

// The rule for weights that were not trained in the type; none: ggml's own (gguf_quantize).
std::optional<OperandSpec> usual_spec(GgufType type) {
  if (is_rounded(type) || !has_codes(type)) return std::nullopt;
  return find_hf_form(row_of(type).name)->weight;
}

// Bits of every scale in the file for rows [n, K] of codes: fp16 for integers, else the byte itself.
std::vector<uint16_t> scales_of(const Operand& o, GgufType type, const std::string& name) {
  const BlockShape block = block_shape(o.spec, o.rows, o.k);
  const int64_t width = gguf_scale_block(type), columns = o.k / width, per_row = (o.k + block.cols - 1) / block.cols;
  const bool integers = is_rounded(type), bytes = o.scales.scalar_type() == at::kByte;
  const auto* byte = bytes ? o.scales.const_data_ptr<uint8_t>() : nullptr;
  const auto* number = bytes ? nullptr : o.scales.const_data_ptr<float>();
  std::vector<uint16_t> out(static_cast<size_t>(o.rows * columns));
  parallel_for(o.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * columns; i < end * columns; ++i) {
      const int64_t r = i / columns, c = i % columns;
      const int64_t at = r / block.rows * per_row + c * width / block.cols;
      out[static_cast<size_t>(i)] = !integers ? byte[at] : fp16_bits(bytes ? decode_e8m0(byte[at]) : number[at]);
    }
  });
  const bool fits = !integers || std::ranges::all_of(out, [](uint16_t bits) { return std::isfinite(fp16_value(bits)); });
  check(fits, "tensor {} has values too large for the fp16 scales of {}; choose bf16 or f32", name, row_of(type).name);
  return out;
}

// One of our tensors, or one expert of it, on the way to rows of bytes.
struct Coded {
  at::Tensor bytes;     // [rows, bytes of a row]
  float factor = 1;     // nvfp4: of the whole matrix
  HfCodeError error{};  // against the numbers of the training
};

// How one matrix is written.
struct Plan {
  GgufType type;
  std::optional<OperandSpec> spec{};  // null: ggml's own rule
  GgufTrained trained{};              // quantised: how the run did
  std::string why{};                  // the file's codes are not those
  bool same_codes() const { return trained.spec.quantized() && spec == trained.spec; }
};

void decode_rows(const Coded& c, GgufType type, int64_t first, int64_t rows, int64_t k, float* out) {
  gguf_decode(type, c.bytes.const_data_ptr<uint8_t>() + first * c.bytes.size(1), rows * k, out);
  if (c.factor != 1) std::transform(out, out + rows * k, out, [&](float v) { return v * c.factor; });
}

at::Tensor decoded(const Coded& c, GgufType type, int64_t k) {
  const at::Tensor out = at::empty({c.bytes.size(0), k}, at::kFloat);
  auto* to = out.mutable_data_ptr<float>();
  parallel_for(out.size(0), 16, [&](int64_t begin, int64_t end) { decode_rows(c, type, begin, end - begin, k, to + begin * k); });
  return out;
}

// Adds up the error of a piece; in a large one, of every fourth run of rows.
void measure(Coded& c, GgufType type, const at::Tensor& wanted) {
  constexpr int64_t kRun = 16, kLarge = int64_t{1} << 20, kLanes = 8;
  const int64_t k = wanted.size(1), rows = wanted.size(0), every = wanted.numel() >= kLarge ? 4 : 1, runs = (rows + kRun - 1) / kRun;
  const auto* want = wanted.const_data_ptr<float>();
  std::mutex mutex;
  parallel_for((runs + every - 1) / every, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> found(static_cast<size_t>(k));
    std::array<double, kLanes> noise{}, signal{};
    for (int64_t i = begin; i < end; ++i)
      for (int64_t r = i * every * kRun; r < std::min(rows, (i * every + 1) * kRun); ++r) {
        decode_rows(c, type, r, 1, k, found.data());
        for (int64_t at = 0; at < k; at += kLanes)  // blocks are multiples of the lanes
          for (int64_t lane = 0; lane < kLanes; ++lane) {
            const double w = want[r * k + at + lane], d = found[static_cast<size_t>(at + lane)] - w;
            noise[static_cast<size_t>(lane)] += d * d, signal[static_cast<size_t>(lane)] += w * w;
          }
      }
    const std::lock_guard lock(mutex);
    c.error.noise += std::accumulate(noise.begin(), noise.end(), 0.0), c.error.signal += std::accumulate(signal.begin(), signal.end(), 0.0);
  });
}

Operand operand_of(at::Tensor x, const GgufTrained& how, at::Tensor amax) {
  if (how.bf16) {
    x = x.to(at::kBFloat16);
    if (amax.defined()) amax = amax.view(at::kFloat).to(at::kBFloat16).to(at::kFloat).view(at::kInt);
  }
  CopyRequest request{.spec = how.spec};
  request.codes = true;
  return quantize(x, &request, nullptr, amax).row;
}

// x [rows, K], bf16 or fp32. amax: bits of the largest magnitude of the matrix that these rows are of, or undefined: they are all of it.
Coded encode(const at::Tensor& x, const Plan& plan, const at::Tensor& amax, const std::string& name) {
  const int64_t rows = x.size(0), k = x.size(1), row_bytes = gguf_row_bytes(plan.type, k);
  Coded out{.bytes = at::empty({rows, row_bytes}, at::kByte)};
  auto* to = out.bytes.mutable_data_ptr<uint8_t>();
  at::Tensor wanted;
  if (plan.spec) {
    const Operand o = operand_of(x, {*plan.spec, plan.same_codes() && plan.trained.bf16}, amax);
    const std::vector<uint16_t> scales = scales_of(o, plan.type, name);
    if (o.outer.defined()) out.factor = *o.outer.const_data_ptr<float>();
    const auto* codes = o.codes.const_data_ptr<uint8_t>();
    const int64_t per_row = k / gguf_scale_block(plan.type);
    if (plan.same_codes()) wanted = is_rounded(plan.type) ? dequantize(o) : at::Tensor();
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      gguf_pack(plan.type, codes + begin * k, scales.data() + begin * per_row, (end - begin) * k, to + begin * row_bytes);
    });
  } else {
    const at::Tensor numbers = x.to(at::kFloat).contiguous();
    const auto* from = numbers.const_data_ptr<float>();
    std::atomic<bool> fits = true;
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      if (!gguf_quantize(plan.type, from + begin * k, (end - begin) * k, to + begin * row_bytes)) fits = false;
    });
    check(fits, "tensor {} has values too large for the fp16 scales of {}; choose bf16 or f32", name, row_of(plan.type).name);
  }
  if (!plan.same_codes())
    wanted = plan.trained.spec.quantized() ? dequantize(operand_of(x, plan.trained, amax)) : x.to(at::kFloat).contiguous();
  if (wanted.defined()) measure(out, plan.type, wanted);
  return out;
}

class Writer {
 public:
  explicit Writer(const GgufExport& content) : content_(content), config_(dynamic_cast<const DecoderConfig&>(*content.model)) {}

  GgufWritten write(const std::filesystem::path& path) {
    GgufMetadata metadata = gguf_metadata(config_);
    std::vector<std::string> left_out;
    std::map<GgufType, int64_t> elements;
    for (const NamedTensor& t : content_.tensors) shapes_[t.name] = t.tensor.sizes().vec();
    for (const NamedTensor& t : content_.tensors) {
      const std::vector<GgufSource> sources = gguf_sources(config_, t.name, t.tensor.sizes().vec());
      if (sources.empty() && !(config_.tied_head() && t.name == "output.weight")) left_out.push_back(t.name);
      for (const GgufSource& source : sources) {
        const GgufType type = add(source);
        if (source.kind == Kind::matrix && !source.transposed) elements[type] += t.tensor.numel();
      }
    }
    if (!left_out.empty())
      log_warning("{}: the architecture has no place for {} and {} others: skipped", path.string(), left_out[0], left_out.size() - 1);
    if (std::vector<float> factors = gguf_rope_factors(config_); !factors.empty()) {
      tensors_.push_back(
          {.name = "rope_freqs.weight", .shape = {static_cast<int64_t>(factors.size())}, .read = [factors](int64_t, int64_t, uint8_t* out) {
             std::memcpy(out, factors.data(), factors.size() * sizeof(float));
           }});
    }
    const auto most = std::max_element(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    metadata.emplace_back("general.file_type", row_of(most->first).file_type);
    metadata.emplace_back("general.quantization_version", kQuantizationVersion);
    metadata.insert(metadata.end(), content_.more.begin(), content_.more.end());
    GgufWritten written;
    written.bytes = write_gguf(path, metadata, tensors_, content_.verify);
    written.tensors = static_cast<int64_t>(tensors_.size());
    for (const auto& [name, coded] : coded_) written.coded.push_back(coded);
    return written;
  }

 private:
  Plan plan_of(const GgufSource& source) const {
    if (source.kind == Kind::other) return {GgufType::f32};
    const auto found = content_.trained.find(source.native);
    if (found == content_.trained.end()) {
      if (!content_.codes || !content_.trained.empty()) return {content_.plain};
      const GgufType type = source.kind == Kind::table && has_codes(*content_.codes) ? GgufType::q8_0 : *content_.codes;
      return {type, usual_spec(type), {}, "not trained in codes"};
    }
    const GgufTrained& run = found->second;
    const std::optional<GgufType> own = gguf_type_of(run.spec);
    check(content_.codes || own, "{}: no type of GGUF holds {}{}; choose --codes {}", source.native, describe(run.spec), because(run.spec),
          names_of_types());
    const GgufType type = content_.codes ? *content_.codes : *own;
    if (own == type && run.why.empty()) return {type, run.spec, run};
    // Rotated and drawn codes are not comparable with the file's numbers.
    const bool comparable = run.why.empty() && run.spec.hadamard == 0 && !run.spec.stochastic && !run.spec.eden;
    return {type, usual_spec(type), comparable ? run : GgufTrained{},
            own == type ? run.why : fmt::format("trained as {}", describe(run.spec))};
  }
  static std::string because(const OperandSpec& trained) {
    const std::string objection = objection_to(trained);
    return objection.empty() ? "" : fmt::format(" ({})", objection);
  }
  static std::string names_of_types() {
    std::vector<std::string_view> names;
    for (const GgufTypeRow& row : gguf_types()) names.push_back(row.name);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  GgufType add(const GgufSource& source) {
    const Plan plan = plan_of(source);
    const bool coded = has_codes(plan.type);
    const int64_t k = columns_of(source);
    check(!coded || k % row_of(plan.type).block == 0,
          "{}: its rows of {} elements do not divide into the {} of a block of {}; choose --codes bf16, f16 or f32", source.native, k,
          row_of(plan.type).block, row_of(plan.type).name);
    // Blocks do not survive a transposition: the numbers of the codes.
    const GgufType type = source.transposed && coded ? GgufType::f32 : plan.type;
    GgufTensor tensor{.name = source.name, .shape = source.shape, .type = type};
    tensor.unit = unit_of(source);
    auto* factors = coded && plan.type == GgufType::nvfp4 && !source.transposed ? &factors_[source.name] : nullptr;
    tensor.read = [this, source, plan, factors](int64_t first, int64_t rows, uint8_t* out) {
      read(source, plan, first, rows, out, factors);
    };
    tensors_.push_back(std::move(tensor));
    if (coded) coded_[source.native] = {source.native, plan.type, plan.why};
    if (factors == nullptr) return type;
    check(!config_.latent(), "{}: GGUF's graph of latent attention reads no factors of nvfp4; choose another --codes", source.native);
    const int64_t matrices = separate(source) ? source.groups : 1;
    factors->resize(static_cast<size_t>(matrices));
    GgufTensor scale{.name = source.name.substr(0, source.name.rfind('.')) + ".scale", .shape = {matrices}};
    scale.read = [factors](int64_t, int64_t, uint8_t* out) { std::memcpy(out, factors->data(), factors->size() * sizeof(float)); };
    tensors_.push_back(std::move(scale));
    return type;
  }

  // Experts are matrices of their own.
  bool separate(const GgufSource& s) const { return shape_of(s.native).size() == 3; }
  const std::vector<int64_t>& shape_of(const std::string& native) const { return shapes_.at(native); }
  int64_t columns_of(const GgufSource& s) const {
    const std::vector<int64_t>& shape = shape_of(s.native);
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()) / (s.groups * s.group_rows);
  }
  // Rows of the file that one read makes at least: whole groups whose rows begin at those of a tile, or rows of tiles.
  int64_t unit_of(const GgufSource& s) const {
    if (s.groups == 1) return s.group_rows == 1 || s.kind == Kind::other ? 1 : kRowUnit;
    return rows_of_group(s) * groups_of_unit(s);
  }
  static int64_t rows_of_group(const GgufSource& s) {
    return std::accumulate(s.shape.begin(), s.shape.end() - 1, int64_t{1}, std::multiplies<>()) / s.groups;
  }
  int64_t groups_of_unit(const GgufSource& s) const {
    return separate(s) || s.kind == Kind::other || s.group_rows % kRowUnit == 0 ? 1 : std::lcm(s.group_rows, kRowUnit) / s.group_rows;
  }

  // Rows [first, first + rows) of our tensor seen as [groups * group_rows, K].
  at::Tensor ours(const GgufSource& s, int64_t first, int64_t rows) const {
    const std::vector<int64_t>& shape = shape_of(s.native);
    const int64_t per = shape.size() == 1 ? 1 : s.groups * s.group_rows / shape[0];  // rows of that view in one of the tensor
    const at::Tensor t = shape.size() == 1 ? content_.read(s.native, 0, shape[0]) : content_.read(s.native, first / per, rows / per);
    return t.reshape({rows, -1});
  }

  void read(const GgufSource& s, const Plan& plan, int64_t first, int64_t rows, uint8_t* out, std::vector<float>* factors) {
    const int64_t per_group = rows_of_group(s), group = first / per_group, groups = (rows + per_group - 1) / per_group;
    const int64_t from = s.groups == 1 ? first : group * s.group_rows, count = s.groups == 1 ? rows : groups * s.group_rows;
    at::Tensor bytes;
    if (!has_codes(plan.type)) {
      bytes = plain(ours(s, from, count), plan.type, s.native);
    } else if (!separate(s)) {
      const Coded c = encode(numbers(s, from, count), plan, amax(s, plan), s.native);
      sum_up(s, c);
      if (factors != nullptr) factors->at(0) = c.factor;
      bytes = s.transposed ? plain(decoded(c, plan.type, columns_of(s)), GgufType::f32, s.native) : c.bytes;
    } else {
      std::vector<at::Tensor> parts;
      for (int64_t g = group; g < group + groups; ++g) {
        const Coded c = encode(numbers(s, g * s.group_rows, s.group_rows), plan, {}, s.native);
        sum_up(s, c);
        if (factors != nullptr) factors->at(static_cast<size_t>(g)) = c.factor;
        parts.push_back(c.bytes);
      }
      bytes = at::cat(parts);
    }
    if (s.groups > 1) bytes = arranged(s, bytes, groups);
    std::memcpy(out, bytes.const_data_ptr(), bytes.nbytes());
  }

  // Picks the file's rows out of whole groups.
  at::Tensor arranged(const GgufSource& s, const at::Tensor& bytes, int64_t groups) const {
    at::Tensor picked = bytes.view({groups, s.group_rows, -1}).slice(1, s.first, s.first + s.step * s.rows, s.step);
    if (!s.transposed) return picked.contiguous();
    const int64_t k = columns_of(s);
    return picked.reshape({groups, s.rows, k, -1}).transpose(1, 2).contiguous();
  }

  static at::Tensor plain(const at::Tensor& x, GgufType type, const std::string& name) {
    const at::Tensor t = x.to(scalar_type_of(type)).contiguous();
    check(t.scalar_type() == x.scalar_type() || is_finite(file_dtype_of(t.scalar_type()), t.const_data_ptr(), t.nbytes()),
          "tensor {} holds a NaN, an infinity or a value too large for {}; choose bf16 or f32, or convert an earlier step", name,
          row_of(type).name);
    return at::from_blob(
        t.mutable_data_ptr(), {t.size(0), static_cast<int64_t>(t.nbytes()) / t.size(0)}, [t](void*) {}, at::kByte);
  }

  at::Tensor numbers(const GgufSource& s, int64_t first, int64_t rows) const {
    at::Tensor x = ours(s, first, rows);
    if (x.scalar_type() != at::kBFloat16) x = x.to(at::kFloat);
    x = x.contiguous();
    check(is_finite(file_dtype_of(x.scalar_type()), x.const_data_ptr(), x.nbytes()),
          "tensor {} holds a NaN or an infinity; convert an earlier step", s.native);
    return x;
  }

  // One int32 with the bits of the largest magnitude of the matrix; undefined where no scale depends on it.
  at::Tensor amax(const GgufSource& s, const Plan& plan) {
    const auto needs = [](const OperandSpec& spec) {
      return spec.quantized() && (spec.granularity == Granularity::tensor || spec.two_level == TwoLevel::tensor);
    };
    if (!needs(plan.trained.spec) && !(plan.spec && needs(*plan.spec))) return {};
    if (amax_.first == s.native) return amax_.second;
    float largest = 0;
    const int64_t all = s.groups * s.group_rows, step = std::max<int64_t>((int64_t{16} << 20) / columns_of(s) / kRowUnit, 1) * kRowUnit;
    for (int64_t r = 0; r < all; r += step)
      largest = std::max(largest, numbers(s, r, std::min(step, all - r)).abs().max().to(at::kFloat).item<float>());
    const at::Tensor bits = at::empty({1}, at::kInt);
    std::memcpy(bits.mutable_data_ptr(), &largest, sizeof(largest));
    amax_ = {s.native, bits};
    return bits;
  }

  void sum_up(const GgufSource& s, const Coded& c) {
    HfCodeError& sum = coded_[s.native].error;
    sum.noise += c.error.noise, sum.signal += c.error.signal;
  }

  const GgufExport& content_;
  const DecoderConfig& config_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // of our tensors
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::vector<float>> factors_;  // of nvfp4, by the tensor's name in the file
  std::map<std::string, GgufCoded> coded_;             // by our name
  std::pair<std::string, at::Tensor> amax_;            // of the tensor that was read last
};

}  // namespace

std::optional<GgufType> gguf_type_of(const OperandSpec& w) {
  if (!w.quantized() || !objection_to(w).empty()) return std::nullopt;
  const bool blocks = w.granularity == Granularity::block || w.granularity == Granularity::tile;
  const auto is = [&](int block, ScaleFormat scale, TwoLevel level) {
    return blocks && w.block == block && w.scale == scale && w.two_level == level;
  };
  if (w.element == Element::e2m1) {
    if (is(32, ScaleFormat::e8m0, TwoLevel::none)) return GgufType::mxfp4;
    if (is(16, ScaleFormat::e4m3, TwoLevel::tensor)) return GgufType::nvfp4;
  }
  const bool wide = (!blocks || w.block % 32 == 0) && w.two_level == TwoLevel::none;
  if (w.element == Element::int8 && wide) return GgufType::q8_0;
  if (w.element == Element::int4 && wide) return GgufType::q4_0;
  return std::nullopt;
}

GgufWritten write_gguf(const std::filesystem::path& path, const GgufExport& content) { return Writer(content).write(path); }

}  // namespace halftone
