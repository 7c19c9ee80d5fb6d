#include "halftone/checkpoint/hf_quantized.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "checkpoint/hf_tensors.h"
#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/models/decoder_config.h"
#include "halftone/models/llama3/family.h"
#include "halftone/models/registry.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryFolder;

const std::string kQ = "model.layers.0.self_attn.q_proj", kK = "model.layers.0.self_attn.k_proj", kGate = "model.layers.0.mlp.gate_proj",
                  kDown = "model.layers.0.mlp.down_proj";

HfConfig small_config() {
  DecoderConfig model(llama3::kFamily);
  model.dim = 32, model.n_layers = 1, model.n_heads = 2, model.n_kv_heads = 1, model.ffn_dim = 96, model.vocab_size = 10;
  return {.model = std::make_shared<DecoderConfig>(model), .token_ids = {}};
}
const std::map<std::string, std::vector<int64_t>> kShapes{{kQ, {32, 32}}, {kK, {16, 32}}, {kGate, {96, 32}}, {kDown, {32, 96}}};

// Pseudo-random integers 0 .. below - 1.
at::Tensor some(int64_t n, int64_t k, int64_t below, int64_t seed) {
  return (at::arange(n * k, at::kLong).add(seed * 17).mul(7919).remainder(10007) % below).view({n, k});
}
at::Tensor scales(int64_t n, int64_t k, int64_t seed) { return some(n, k, 50, seed + 5).to(at::kFloat).add(1).div(64); }
// Expands a grid [blocks, groups] to the rows and columns of each block.
at::Tensor spread(const at::Tensor& grid, int64_t rows, int64_t cols, int64_t n, int64_t k) {
  return grid.repeat_interleave(rows, 0).narrow(0, 0, n).repeat_interleave(cols, 1).narrow(1, 0, k);
}
int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }
at::Tensor e4m3_codes(int64_t n, int64_t k, int64_t seed) {
  const at::Tensor codes = some(n, k, 256, seed);
  return at::where(codes.bitwise_and(127) == 127, at::zeros_like(codes), codes).to(at::kByte);
}
at::Tensor e4m3(const at::Tensor& codes) { return codes.view(at::kFloat8_e4m3fn); }
at::Tensor e2m1_values(const at::Tensor& codes) {
  const at::Tensor table =
      at::tensor({0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f});
  return table.index({codes.to(at::kLong)});
}
// Two codes per byte, the even column low.
at::Tensor nibbles(const at::Tensor& codes) {
  const at::Tensor pairs = codes.view({codes.size(0), -1, 2});
  return (pairs.select(2, 0) + pairs.select(2, 1) * 16).to(at::kByte);
}
// Codes of `bits` bits along the columns in 32-bit words, lowest bits first.
at::Tensor words(const at::Tensor& codes, int64_t bits) {
  const int64_t per = 32 / bits, count = blocks(codes.size(1), per);
  const at::Tensor padded = at::constant_pad_nd(codes, {0, count * per - codes.size(1)}).view({codes.size(0), count, per});
  at::Tensor sum = at::zeros({codes.size(0), count}, at::kLong);
  for (int64_t i = 0; i < per; ++i) sum += padded.select(2, i) * (int64_t{1} << (bits * i));
  return at::where(sum >= (int64_t{1} << 31), sum - (int64_t{1} << 32), sum).to(at::kInt);
}

struct Stored {
  std::map<std::string, at::Tensor> parts;  // by the last word of the name
  at::Tensor values;                        // fp32 [n, k], in Hugging Face's row order
};
struct Format {
  const char* name;
  std::string quantization;
  std::function<Stored(int64_t n, int64_t k, int64_t seed)> store;
};

std::string group(const std::string& format, const std::string& weights, const std::string& more = "") {
  return R"({"quant_method":"compressed-tensors","quantization_status":"compressed","format":")" + format +
         R"(","ignore":["lm_head"],"kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"input_activations":{"num_bits":8},"weights":{)" +
         weights + "}" + more + "}}}";
}

std::vector<Format> formats() {
  const auto fp8 = [](int64_t rows, int64_t cols, at::ScalarType type, const char* scale) {
    return [=](int64_t n, int64_t k, int64_t seed) {
      const int64_t r = rows == 0 ? n : rows, c = cols == 0 ? k : cols;
      const at::Tensor codes = e4m3_codes(n, k, seed), grid = scales(blocks(n, r), blocks(k, c), seed).to(type);
      return Stored{{{"weight", e4m3(codes)}, {scale, rows == 0 ? grid.view({1}) : grid}},
                    e4m3(codes).to(at::kFloat) * spread(grid.to(at::kFloat), r, c, n, k)};
    };
  };
  const auto int8 = [](bool channel, bool symmetric) {
    return [=](int64_t n, int64_t k, int64_t seed) {
      const at::Tensor codes = some(n, k, 256, seed).to(at::kByte).view(at::kChar),
                       grid = scales(channel ? n : 1, 1, seed).to(at::kBFloat16);
      const at::Tensor zeros = some(grid.size(0), 1, 256, seed + 1).to(at::kByte).view(at::kChar);
      at::Tensor values = codes.to(at::kFloat);
      if (!symmetric) values = values - zeros.to(at::kFloat);
      Stored s{{{"weight", codes}, {"weight_scale", channel ? grid : grid.squeeze()}}, values * grid.to(at::kFloat)};
      if (!symmetric) s.parts["weight_zero_point"] = zeros;
      return s;
    };
  };
  const auto packed = [](int64_t bits, int64_t size, bool symmetric) {
    return [=](int64_t n, int64_t k, int64_t seed) {
      const int64_t cols = size == 0 ? k : size, zero = int64_t{1} << (bits - 1);
      const at::Tensor codes = some(n, k, 2 * zero, seed), grid = scales(n, blocks(k, cols), seed).to(at::kBFloat16);
      const at::Tensor zeros = symmetric ? at::full_like(grid, zero, at::kLong) : some(n, grid.size(1), 2 * zero, seed + 2);
      Stored s{{{"weight_packed", words(codes, bits)}, {"weight_scale", grid}, {"weight_shape", at::tensor({n, k}, at::kLong)}},
               (codes - spread(zeros, 1, cols, n, k)).to(at::kFloat) * spread(grid.to(at::kFloat), 1, cols, n, k)};
      if (!symmetric) s.parts["weight_zero_point"] = words(zeros.t(), bits).t().contiguous();
      return s;
    };
  };
  const auto nvfp4 = [](int64_t n, int64_t k, int64_t seed) {
    const at::Tensor codes = some(n, k, 16, seed), grid = e4m3(e4m3_codes(n, blocks(k, 16), seed + 1).bitwise_and(127));
    const at::Tensor global = at::tensor({3.0f + static_cast<float>(seed)});
    return Stored{{{"weight_packed", nibbles(codes)}, {"weight_scale", grid}, {"weight_global_scale", global}},
                  e2m1_values(codes) * spread(grid.to(at::kFloat) / global, 1, 16, n, k)};
  };
  const auto mxfp4 = [](int64_t n, int64_t k, int64_t seed) {
    const at::Tensor codes = some(n, k, 16, seed), grid = some(n, blocks(k, 32), 20, seed).add(117).to(at::kByte);
    return Stored{{{"weight_packed", nibbles(codes)}, {"weight_scale", grid}},
                  e2m1_values(codes) * spread(at::exp2(grid.to(at::kFloat) - 127), 1, 32, n, k)};
  };
  const std::string block_fp8 = R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[)";
  return {
      {"fp8 blocks", block_fp8 + R"(10,14]})", fp8(10, 14, at::kFloat, "weight_scale_inv")},
      {"fp8 one block", block_fp8 + R"(128,128],"modules_to_not_convert":["lm_head"]})", fp8(128, 128, at::kBFloat16, "weight_scale_inv")},
      {"fp8 tensor", R"({"quant_method":"fp8","activation_scheme":"static"})", fp8(0, 0, at::kFloat, "weight_scale")},
      {"float tensor", group("float-quantized", R"("num_bits":8,"type":"float","strategy":"tensor","dynamic":false,"symmetric":true)"),
       fp8(0, 0, at::kBFloat16, "weight_scale")},
      {"float channel", group("naive-quantized", R"("num_bits":8,"type":"float","strategy":"channel")"),
       fp8(1, 0, at::kFloat, "weight_scale")},
      {"float block", group("float-quantized", R"("num_bits":8,"type":"float","strategy":"block","block_structure":[12,8])"),
       fp8(12, 8, at::kHalf, "weight_scale")},
      {"int tensor", group("int-quantized", R"("num_bits":8,"type":"int","strategy":"tensor")"), int8(false, true)},
      {"int channel", group("naive-quantized", R"("num_bits":8,"strategy":"channel","symmetric":false)"), int8(true, false)},
      {"packed 4", group("pack-quantized", R"("num_bits":4,"type":"int","group_size":16,"strategy":"group","actorder":"weight")"),
       packed(4, 16, true)},
      {"packed 4 zeros", group("pack-quantized", R"("num_bits":4,"type":"int","group_size":8,"strategy":"group","symmetric":false)"),
       packed(4, 8, false)},
      {"packed 8", group("pack-quantized", R"("num_bits":8,"type":"int","group_size":-1,"strategy":"channel","symmetric":false)"),
       packed(8, 0, false)},
      {"nvfp4", group("nvfp4-pack-quantized", R"("num_bits":4,"type":"float","group_size":16,"strategy":"tensor_group")"), nvfp4},
      {"mxfp4",
       group("mixed-precision", R"("num_bits":4,"type":"float","group_size":32,"strategy":"group","scale_dtype":"torch.uint8")",
             R"(,"format":"mxfp4-pack-quantized")"),
       mxfp4},
  };
}

// A folder of the small model with some weights stored in another format.
class QuantizedFolder {
 public:
  explicit QuantizedFolder(const std::string& quantization, const Format* format = nullptr) {
    std::vector<NamedTensor> model;
    const int64_t vocab = 10;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      tensors[name + ".weight"] = some(shape[0], shape.size() > 1 ? shape[1] : 1, 100, 3).to(at::kBFloat16).view(shape);
    };
    add("model.embed_tokens", {vocab, 32}), add("model.norm", {32}), add("lm_head", {vocab, 32});
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add(std::string("model.layers.0.") + norm, {32});
    add("model.layers.0.self_attn.v_proj", {16, 32}), add("model.layers.0.self_attn.o_proj", {32, 32});
    add("model.layers.0.mlp.up_proj", {96, 32});
    for (const auto& [module, shape] : kShapes) add(module, shape);
    Json config = Json::parse(write_hf_config(small_config()));
    if (!quantization.empty()) config["quantization_config"] = Json::parse(quantization);
    testing::write_file(folder_ / "config.json", config.dump());
    if (format == nullptr) return;
    for (int64_t seed = 0; const auto& [module, shape] : kShapes) {
      const Stored s = format->store(shape[0], shape[1], seed++);
      tensors.erase(module + ".weight");
      for (const auto& [word, tensor] : s.parts) tensors[module + "." + word] = tensor;
      values[module] = s.values;
    }
  }
  fs::path write() const {
    std::vector<NamedTensor> list;
    for (const auto& [name, tensor] : tensors) list.push_back({name, tensor});
    write_tensors(folder_ / "model.safetensors", list, {});
    return folder_.path();
  }
  std::map<std::string, at::Tensor> tensors;  // tensors in the file
  std::map<std::string, at::Tensor> values;   // by module

 private:
  TemporaryFolder folder_;
};

TEST(HfQuantized, EveryFormatWholeAndByRows) {
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    QuantizedFolder files(format.quantization, &format);
    files.tensors[kQ + ".input_scale"] = at::ones({1});
    files.tensors["model.layers.0.self_attn.k_scale"] = at::ones({1});
    const LoadedStep step = LoadedStep::open(files.write(), true);
    EXPECT_EQ(step.hf_config()->quantization->weights, 4);
    EXPECT_EQ(step.hf_config()->quantization->activation_scales, 2);
    const ModelDescription& model = *step.hf_config()->model;
    for (const auto& [module, values] : files.values) {
      const std::string native = model.family().native_name(module + ".weight").value();
      const at::Tensor expected = hf_to_native(native, model, [&](const std::string&) { return values; }).tensor;
      const TensorInfo info = step.info(native);
      EXPECT_EQ(info.dtype, FileDType::bf16);
      EXPECT_EQ(info.shape, values.sizes().vec());
      at::Tensor all = at::empty(values.sizes(), at::kFloat);
      step.read_into(native, all, true);
      EXPECT_TRUE(at::equal(all, expected)) << native;
      EXPECT_TRUE(at::equal(step.read(native), expected.to(at::kBFloat16))) << native;
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {1, 1}, {3, 9}, {7, 8}, {5, 0}, {4, 12}, {15, 1}, {0, 16}}) {
        at::Tensor part = at::full({rows, values.size(1)}, -1, at::kFloat);
        step.read_rows(native, first, part, true);
        EXPECT_TRUE(at::equal(part, expected.narrow(0, first, rows))) << native << ": " << rows << " from " << first;
      }
    }
    EXPECT_TRUE(at::equal(step.read("layers.0.attention.wo.weight"), files.tensors["model.layers.0.self_attn.o_proj.weight"]));
  }
}

TEST(HfQuantized, GroupsByTheirTargets) {
  const std::string quantization =
      R"({"quant_method":"compressed-tensors","quantization_status":"compressed","format":"mixed-precision","config_groups":{
        "group_0":{"targets":["Linear"],"format":"float-quantized","weights":{"num_bits":8,"type":"float","strategy":"channel"}},
        "group_1":{"targets":["re:.*mlp.*"],"format":"mxfp4-pack-quantized","weights":{"num_bits":4,"type":"float","group_size":32,"strategy":"group"}}}})";
  const std::vector<Format> all = formats();
  const auto named = [&](const std::string& name) -> const Format& {
    return *std::find_if(all.begin(), all.end(), [&](const Format& f) { return f.name == name; });
  };
  QuantizedFolder files(quantization, &named("float channel"));
  for (const std::string& module : {kGate, kDown}) {
    const Stored s = named("mxfp4").store(kShapes.at(module)[0], kShapes.at(module)[1], 7);
    files.tensors.erase(module + ".weight");
    for (const auto& [word, tensor] : s.parts) files.tensors[module + "." + word] = tensor;
    files.values[module] = s.values;
  }
  const LoadedStep step = LoadedStep::open(files.write(), true);
  at::Tensor down = at::empty({32, 96}, at::kFloat);
  step.read_into("layers.0.feed_forward.w2.weight", down, true);
  EXPECT_TRUE(at::equal(down, files.values[kDown]));
  at::Tensor q = at::empty({32, 32}, at::kFloat);
  step.read_into("layers.0.attention.wq.weight", q, true);
  EXPECT_TRUE(at::equal(permute_to_hf(q, 2), files.values[kQ]));
}

// A mismatch is named and never read as plain numbers.
TEST(HfQuantized, TensorsThatDoNotFitAreNamed) {
  const std::vector<Format> all = formats();
  const Format &blocks = all[0], &packed = all[9], &nvfp4 = all[11];
  const auto refused = [&](const Format& format, const std::function<void(QuantizedFolder&)>& change, const std::string& part) {
    QuantizedFolder files(format.quantization, &format);
    change(files);
    const fs::path folder = files.write();
    expect_error([&] { HfFolder{folder}; }, part);
  };
  refused(
      blocks, [](auto& f) { f.tensors.erase(kQ + ".weight_scale_inv"); }, kQ + ".weight is F8_E4M3, codes without scales");
  refused(
      blocks, [](auto& f) { f.tensors.erase(kQ + ".weight"); }, kQ + ".weight_scale_inv has no " + kQ + ".weight beside it");
  refused(
      blocks,
      [](auto& f) {
        f.tensors[kQ + ".weight_scale_inv"] = at::ones({4, 4});
      },
      kQ + ".weight_scale_inv is F32 [4, 4], expected scales [4, 3]");
  refused(
      blocks,
      [](auto& f) {
        f.tensors[kQ + ".weight"] = at::ones({32, 32}, at::kChar);
      },
      kQ + ".weight is I8 [32, 32], expected F8_E4M3");
  refused(
      blocks,
      [](auto& f) {
        f.tensors[kQ + ".weight_zero_point"] = at::ones({4, 3});
      },
      kQ + ".weight_zero_point does not belong to the codes");
  refused(
      blocks,
      [](auto& f) {
        f.tensors["model.layers.0.mlp.gate.weight_scale_inv"] = at::ones({4, 3});
      },
      "tensor model.layers.0.mlp.gate.weight_scale_inv is unknown");
  refused(
      blocks,
      [](auto& f) {
        f.tensors["model.layers.0.mlp.up_proj.weight"] = at::ones({96, 32}, at::kByte);
      },
      "up_proj.weight is U8, codes without scales");
  refused(
      packed, [](auto& f) { f.tensors.erase(kQ + ".weight_shape"); }, "has no " + kQ + ".weight_shape beside it");
  refused(
      packed,
      [](auto& f) {
        f.tensors[kQ + ".weight_shape"] = at::tensor({32, 48}, at::kLong);
      },
      kQ + ".weight_packed is I32 [32, 4], expected what " + kQ + ".weight_shape says: [32, 48]");
  refused(
      packed, [](auto& f) { f.tensors.erase(kQ + ".weight_zero_point"); }, "has no " + kQ + ".weight_zero_point beside it");
  refused(
      packed, [](auto& f) { f.tensors[kQ + ".weight_g_idx"] = at::zeros({32}, at::kInt); },
      kQ + ".weight_g_idx does not belong to the codes");
  refused(
      nvfp4, [](auto& f) { f.tensors.erase(kQ + ".weight_global_scale"); }, "has no " + kQ + ".weight_global_scale beside it");
  refused(
      nvfp4,
      [](auto& f) {
        f.tensors[kQ + ".weight_scale"] = at::ones({32, 2}, at::kByte);
      },
      kQ + ".weight_scale is U8 [32, 2], expected F8");
  QuantizedFolder plain("", &blocks);
  for (const auto& [module, shape] : kShapes) plain.tensors.erase(module + ".weight_scale_inv");
  expect_error([&] { HfFolder{plain.write()}; }, "F8_E4M3, codes without a quantization_config in config.json");
}

TEST(HfQuantized, NumbersThatAreNotFiniteAreNamed) {
  const std::vector<Format> all = formats();
  QuantizedFolder files(all[0].quantization, &all[0]);
  files.tensors[kQ + ".weight_scale_inv"][1][1] = INFINITY;
  files.tensors["model.norm.weight"][3] = NAN;
  const LoadedStep step = LoadedStep::open(files.write(), true);
  expect_error([&] { step.read("layers.0.attention.wq.weight"); }, kQ + ".weight holds a NaN or an infinity");
  expect_error([&] { step.read("norm.weight"); }, "model.norm.weight holds a NaN or an infinity");
}

TEST(HfQuantized, WhatThisBuildDoesNotReadIsRefused) {
  const auto refused = [](const std::string& quantization, const std::string& part) {
    const Json root{{"quantization_config", Json::parse(quantization)}};
    expect_error([&] { parse_hf_quantization(root, "config.json"); }, part);
  };
  EXPECT_FALSE(parse_hf_quantization(Json{{"quantization_config", nullptr}}, "x").has_value());
  refused(R"({"quant_method":"gptq","bits":4})",
          R"(.quant_method = "gptq" is not supported, expected "fp8", "mxfp4" or "compressed-tensors")");
  refused(R"({"load_in_8bit":true})", ".quant_method is missing");
  refused(R"([1])", " = [1] is not supported");
  refused(R"({"quant_method":"fp8","fmt":"e5m2"})", R"(.fmt = "e5m2" is not supported)");
  refused(R"({"quant_method":"fp8","weight_block_size":[128]})", ".weight_block_size = [128] is not supported, expected [rows, columns]");
  refused(R"({"quant_method":"fp8","rotation":"hadamard"})", R"(.rotation = "hadamard" is not supported)");
  refused(group("marlin-24", R"("num_bits":4)"), R"(.config_groups.group_0: format = "marlin-24" is not supported)");
  refused(group("pack-quantized", R"("num_bits":3,"type":"int","strategy":"channel")"),
          ".config_groups.group_0.weights.num_bits = 3 is not");
  refused(group("pack-quantized", R"("num_bits":4,"actorder":"group","group_size":8)"), R"(.actorder = "group" is not supported)");
  refused(group("float-quantized", R"("num_bits":8,"type":"int")"),
          R"(.type = "int" is not supported, expected "float" with float-quantized)");
  refused(group("float-quantized", R"("num_bits":8,"type":"float","dynamic":true)"), ".dynamic = true is not supported");
  refused(group("int-quantized", R"("num_bits":8,"rounding":"up")"), R"(.weights.rounding = "up" is not supported)");
  refused(R"({"quant_method":"compressed-tensors","quantization_status":"frozen"})", R"(.quantization_status = "frozen" is not supported)");
  refused(R"({"quant_method":"compressed-tensors","transform_config":{"config_groups":{"a":{}}}})", ".transform_config = ");
  refused(R"({"quant_method":"compressed-tensors","config_groups":{}})", ".config_groups: expected an object with groups");
}

// compressed-tensors' old name of the entry.
TEST(HfQuantized, LegacyEntry) {
  Json config = Json::parse(group("int-quantized", R"("num_bits":8,"strategy":"channel")"));
  config.erase("quant_method");
  const auto read = parse_hf_quantization(Json{{"compression_config", config}}, "x");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->method, "compressed-tensors");
  EXPECT_EQ(read->groups.at(0).codes, HfWeightScheme::Codes::int8);
}

}  // namespace
}  // namespace halftone
