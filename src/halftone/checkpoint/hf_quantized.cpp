#include "halftone/checkpoint/hf_quantized.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>

#include "halftone/base/error.h"
#include "halftone/checkpoint/tensor_io.h"
#include "halftone/formats/float_code.h"
#include "halftone/formats/packing.h"
#include "halftone/nn/pattern.h"

namespace halftone {
namespace {

using Codes = HfWeightScheme::Codes;
using ByteScale = HfWeightScheme::ByteScale;

constexpr int kWordBits = 32;
constexpr int64_t kMostExtent = int64_t{1} << 40;  // largest extent of a dimension
constexpr std::array<std::string_view, 7> kQuantized = {"weight_packed",     "weight_scale",        "weight_scale_inv", "weight_shape",
                                                        "weight_zero_point", "weight_global_scale", "weight_g_idx"};
constexpr std::array<std::string_view, 13> kActivation = {"input_scale",
                                                          "input_zero_point",
                                                          "input_global_scale",
                                                          "output_scale",
                                                          "output_zero_point",
                                                          "output_global_scale",
                                                          "activation_scale",
                                                          "q_scale",
                                                          "k_scale",
                                                          "v_scale",
                                                          "k_zero_point",
                                                          "v_zero_point",
                                                          "activation_scale_inv"};

// Whether scales of this scheme may have this type.
bool is_scale_type(FileDType type, ByteScale bytes) {
  switch (type) {
    case FileDType::f32:
    case FileDType::bf16:
    case FileDType::f16:
      return bytes != ByteScale::e8m0;
    case FileDType::f8_e8m0:
      return bytes != ByteScale::e4m3;
    case FileDType::f8_e4m3:
      return bytes == ByteScale::e4m3;
    case FileDType::u8:
      return bytes == ByteScale::e8m0;
    default:
      return false;
  }
}

FileDType code_type(Codes codes) {
  switch (codes) {
    case Codes::e4m3:
      return FileDType::f8_e4m3;
    case Codes::int8:
      return FileDType::i8;
    case Codes::e2m1:
      return FileDType::u8;
    case Codes::packed:
      return FileDType::i32;
  }
  return FileDType::u8;
}

// The value of every code.
std::array<float, 256> table_of(const HfWeightScheme& scheme) {
  std::array<float, 256> table{};
  for (int i = 0; i < 1 << scheme.bits; ++i) {
    const auto code = static_cast<uint8_t>(i);
    table[static_cast<size_t>(i)] = scheme.codes == Codes::e4m3   ? decode(Float::e4m3, code)
                                    : scheme.codes == Codes::e2m1 ? decode(Float::e2m1, code)
                                    : scheme.codes == Codes::int8 ? static_cast<float>(sign_extend(code, 8))
                                                                  : static_cast<float>(i - (1 << (scheme.bits - 1)));
  }
  return table;
}

bool has_class_or_name(const std::string& target, const std::string& module) {
  if (target.starts_with("re:"))
    return nn::Pattern(target.substr(3), nn::Pattern::Begins::at_start, "config.json: targets ", target).matches(module);
  const bool embedding = module.ends_with("embed_tokens");
  return target == module || target == (embedding ? "Embedding" : "Linear");
}

}  // namespace

HfPart hf_part_of(std::string_view word) {
  if (std::find(kQuantized.begin(), kQuantized.end(), word) != kQuantized.end()) return HfPart::quantized;
  return std::find(kActivation.begin(), kActivation.end(), word) != kActivation.end() ? HfPart::activation : HfPart::plain;
}

std::pair<std::string, std::string> hf_module_of(const std::string& name, const std::optional<HfQuantization>& quantization) {
  if (!quantization) return {};
  if (quantization->groups[0].stacked) {
    for (const auto& [ending, word] : {std::pair{"_blocks", "weight_packed"}, {"_scales", "weight_scale"}})
      if (name.ends_with(ending)) return {name.substr(0, name.size() - std::string_view(ending).size()), word};
    return {};
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

const HfWeightScheme& scheme_of(const HfQuantization& quantization, const std::string& module, const std::string& what) {
  if (quantization.groups.size() == 1) return quantization.groups[0];
  for (const bool by_name : {true, false})  // a name takes precedence over a class
    for (const HfWeightScheme& scheme : quantization.groups)
      for (const std::string& target : scheme.targets)
        if ((target.starts_with("re:") || target == module) == by_name && has_class_or_name(target, module)) return scheme;
  fail("{}: {} has codes and scales, but no group of quantization_config targets it", what, module);
}

HfQuantizedWeight::HfQuantizedWeight(const std::string& module, const HfWeightScheme& scheme, const Parts& parts) : scheme_(scheme) {
  const Part* any = &parts.begin()->second;
  const std::string folder = any->file->path().parent_path().string();
  const auto find = [&](std::string_view word) -> const Part* {
    const auto found = parts.find(word);
    return found == parts.end() ? nullptr : &found->second;
  };
  const auto needed = [&](std::string_view word) -> const Part& {
    const Part* part = find(word);
    const std::string other = scheme.stacked ? word == "weight_scale" ? "_scales" : "_blocks" : fmt::format(".{}", word);
    check(part != nullptr, "{}: tensor {} has no {}{} beside it, which quantization_config says it needs", folder, any->entry->name, module,
          other);
    return *part;
  };
  const auto fit = [&](const Part& part, bool good, const std::string& expected) {
    check(good, "{}: tensor {} is {} {}, expected {}", part.file->path().string(), part.entry->name, name_of(part.entry->dtype),
          shape_text(part.entry->shape), expected);
  };
  const bool packed = scheme.codes == Codes::packed, nibbles = scheme.codes == Codes::e2m1;
  codes_ = needed(packed || nibbles ? "weight_packed" : "weight");
  std::vector<int64_t> stored = codes_.entry->shape;
  if (scheme.stacked) {
    // Extents of a file's tensor; the header parser has checked their product.
    fit(codes_, stored.size() == 4 && stored[3] == scheme.cols / 2, "U8 [experts, N, K / 32, 16]");
    experts_ = stored[0];
    stored = {stored[0] * stored[1], stored[2] * stored[3]};
  }
  fit(codes_, codes_.entry->dtype == code_type(scheme.codes) && stored.size() == 2 && std::max(stored[0], stored[1]) < kMostExtent,
      fmt::format("{} with two dimensions", name_of(code_type(scheme.codes))));
  shape_ = stored;
  if (nibbles) shape_[1] *= 2;
  if (packed) {
    const Part& shape = needed("weight_shape");
    const size_t width = size_of(shape.entry->dtype);
    fit(shape,
        (shape.entry->dtype == FileDType::i64 || shape.entry->dtype == FileDType::i32) && shape.entry->shape == std::vector<int64_t>{2},
        "I64 [2]");
    for (size_t i = 0; i < 2; ++i) {
      shape_[i] = 0;
      shape.read(&shape_[i], width, i * width);  // little-endian
    }
    const bool good = shape_[0] == stored[0] && shape_[1] >= 0 && shape_[1] <= stored[1] * kWordBits &&
                      (shape_[1] * scheme.bits + kWordBits - 1) / kWordBits == stored[1];
    fit(codes_, good, fmt::format("what {} says: {} of {} bits in words of 32", shape.entry->name, shape_text(shape_), scheme.bits));
  }
  const char* inverse = find("weight_scale_inv") != nullptr ? "weight_scale_inv" : "weight_scale";
  scale_ = needed(inverse);
  const int64_t blocks = scheme.rows == 0 ? 1 : (shape_[0] + scheme.rows - 1) / scheme.rows;
  const auto has_shape = [&](const Part& part, int64_t rows) {
    std::vector<int64_t> found = part.entry->shape;
    if (scheme.stacked && found.size() == 3 && found[0] == experts_) found = {found[0] * found[1], found[2]};
    return found == std::vector<int64_t>{rows, groups()} || (groups() == 1 && found == std::vector<int64_t>{rows}) ||
           (groups() == 1 && rows == 1 && found.empty());
  };
  const std::string grid =
      fmt::format("{} for {} {}", shape_text(std::vector<int64_t>{blocks, groups()}), codes_.entry->name, shape_text(shape_));
  fit(scale_, has_shape(scale_, blocks), "scales " + grid);
  fit(scale_, is_scale_type(scale_.entry->dtype, scheme.byte_scale),
      scheme.byte_scale == ByteScale::e8m0   ? "U8 exponents"
      : scheme.byte_scale == ByteScale::e4m3 ? "F8_E4M3 scales"
                                             : "F32, BF16 or F16 scales");
  const bool integers = packed || scheme.codes == Codes::int8;
  if (!scheme.symmetric) needed("weight_zero_point");
  if (const Part* zero = find("weight_zero_point"); zero != nullptr && integers) {
    zero_ = *zero;
    const int64_t rows = packed ? (blocks * scheme.bits + kWordBits - 1) / kWordBits : blocks;
    fit(zero_, zero_.entry->dtype == (packed ? FileDType::i32 : FileDType::i8) && has_shape(zero_, rows),
        fmt::format("{} zero points {}, one for each scale", packed ? "packed I32" : "I8", grid));
  }
  if (scheme.global_scale) {
    const Part& global = needed("weight_global_scale");
    fit(global, global.entry->dtype == FileDType::f32 && global.entry->end - global.entry->begin == sizeof(float), "one F32");
    global.read(&global_scale_, sizeof(float), 0);
  }
  for (const auto& [word, part] : parts) {
    const bool used = part.entry == codes_.entry || part.entry == scale_.entry || part.entry == zero_.entry ||
                      (packed && word == "weight_shape") || (scheme.global_scale && word == "weight_global_scale");
    check(used, "{}: tensor {} does not belong to the codes of {} that quantization_config describes; it is not read as anything else",
          part.file->path().string(), part.entry->name, codes_.entry->name);
  }
}

std::vector<int64_t> HfQuantizedWeight::shape() const {
  if (!scheme_.stacked) return shape_;
  return {experts_, experts_ == 0 ? 0 : shape_[0] / experts_, shape_[1]};
}

std::vector<float> HfQuantizedWeight::scales_of(int64_t first_block, int64_t blocks) const {
  const at::ScalarType type = scale_.entry->dtype == FileDType::u8 ? at::kFloat8_e8m0fnu : scalar_type_of(scale_.entry->dtype);
  const at::Tensor stored = at::empty({blocks * groups()}, at::TensorOptions().dtype(type));
  scale_.read(stored.mutable_data_ptr(), stored.nbytes(), static_cast<uint64_t>(first_block * groups()) * stored.element_size());
  std::vector<float> scales(static_cast<size_t>(stored.numel()));
  at::from_blob(scales.data(), stored.sizes(), at::kFloat).copy_(stored);
  if (scheme_.global_scale)
    for (float& scale : scales) scale /= global_scale_;
  return scales;
}

std::vector<float> HfQuantizedWeight::zeros_of(int64_t first_block, int64_t blocks) const {
  if (zero_.entry == nullptr) return {};
  const int64_t columns = groups();
  std::vector<float> zeros(static_cast<size_t>(blocks * columns));
  if (scheme_.codes == Codes::int8) {
    std::vector<int8_t> data(zeros.size());
    zero_.read(data.data(), data.size(), static_cast<uint64_t>(first_block * columns));
    std::copy(data.begin(), data.end(), zeros.begin());
    return zeros;
  }
  // Packed along the rows: word [row / per_word][group].
  const int per_word = kWordBits / scheme_.bits;
  const int64_t first_word = first_block / per_word, words = (first_block + blocks - 1) / per_word + 1 - first_word;
  std::vector<uint32_t> data(static_cast<size_t>(words * columns));
  zero_.read(data.data(), data.size() * sizeof(uint32_t), static_cast<uint64_t>(first_word * columns) * sizeof(uint32_t));
  const uint32_t mask = (1u << scheme_.bits) - 1;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t g = 0; g < columns; ++g) {
      const uint32_t word = data[static_cast<size_t>(((first_block + b) / per_word - first_word) * columns + g)];
      const auto code = static_cast<int>(word >> ((first_block + b) % per_word * scheme_.bits) & mask);
      zeros[static_cast<size_t>(b * columns + g)] = static_cast<float>(code - (1 << (scheme_.bits - 1)));
    }
  return zeros;
}

void HfQuantizedWeight::read(int64_t first, int64_t rows, float* out, bool scales_alone) const {
  const int64_t columns = shape_[1], width = scheme_.cols == 0 ? columns : scheme_.cols;
  if (rows == 0 || columns == 0) return;
  const size_t row_bytes = (codes_.entry->end - codes_.entry->begin) / static_cast<size_t>(shape_[0]);
  std::vector<uint8_t> codes(static_cast<size_t>(rows) * row_bytes);
  codes_.read(codes.data(), codes.size(), static_cast<uint64_t>(first) * row_bytes);
  const int64_t first_block = block_of(first), blocks = block_of(first + rows - 1) + 1 - first_block;
  const std::vector<float> scales = scales_of(first_block, blocks), zeros = zeros_of(first_block, blocks);
  const std::array<float, 256> table = table_of(scheme_);
  const bool nibbles = scheme_.bits == 4;
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* from = codes.data() + static_cast<size_t>(r) * row_bytes;
    float* to = out + r * columns;
    for (int64_t g = 0; g < groups(); ++g) {
      const auto at = static_cast<size_t>((block_of(first + r) - first_block) * groups() + g);
      const float scale = scales[at], zero = zeros.empty() ? 0.0f : zeros[at];
      const int64_t begin = g * width, end = std::min(columns, begin + width);
      if (scales_alone) {
        std::fill(to + begin, to + end, scale * global_scale_);
        continue;
      }
      if (nibbles) {
        for (int64_t k = begin; k < end; ++k) to[k] = (table[unpack4(from[k / 2], static_cast<int>(k & 1))] - zero) * scale;
      } else {
        for (int64_t k = begin; k < end; ++k) to[k] = (table[from[k]] - zero) * scale;
      }
    }
  }
}

}  // namespace halftone
