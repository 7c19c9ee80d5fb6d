#include "halftone/train/convert.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <malloc.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/philox.h"
#include "halftone/base/stopwatch.h"
#include "halftone/checkpoint/step_writer.h"
#include "halftone/checkpoint/store.h"
#include "halftone/config/load.h"
#include "halftone/data/tokenizer.h"
#include "halftone/models/registry.h"
#include "halftone/ops/device.h"
#include "halftone/train/engine.h"
#include "halftone/train/export_formats.h"
#include "halftone/train/hf_model.h"
#include "halftone/train/run_state.h"
#include "halftone/train/saved_model.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

void check_target(const fs::path& to, bool file) {
  std::error_code ignored;
  if (!fs::exists(to, ignored)) return;
  check(!file, "--to {}: it exists; name a new file", to.string());
  check(fs::is_directory(to, ignored), "--to {}: a file of that name exists; name a new folder", to.string());
  std::string other;
  for (const auto& entry : fs::directory_iterator(to)) {
    other = entry.path().filename().string();
    check(entry.path().extension() != ".safetensors" && other != "index.json",
          "--to {}: the folder already holds weights ({}); name a new one", to.string(), other);
  }
  check(other.empty(), "--to {}: the folder is not empty ({}); name a new one", to.string(), other);
}

std::vector<std::pair<std::string, fs::path>> carried_files(const fs::path& from) {
  auto files = tokenizer_files(from);
  if (const char* name = "generation_config.json"; fs::is_regular_file(from / name)) files.emplace_back(name, from / name);
  return files;
}

// The weights of a checkpoint, with only some rows in memory at a time.
class Weights {
 public:
  Weights(const LoadedStep& step, const ModelConfig& config, std::optional<at::ScalarType> dtype) : step_(step), dtype_(dtype) {
    built_ = build_model(config, 0);
    std::vector<std::string> names;
    built_.model->for_each_parameter([&](const nn::Parameter& p) {
      if (p.numel() == 0) return;  // a tied head
      check(step.hf_config() || !step.has(p.fqn + "_scale"),
            "{} stores {} as codes; convert the last step of a run that saves the model only (checkpoint.last_save_model_only)",
            step.folder().string(), p.fqn);
      names.push_back(p.fqn);
    });
    step.check_model_names(names);
    built_.model->for_each_parameter([&](const nn::Parameter& p) {
      if (p.numel() > 0) add(p.fqn, p.shape);
    });
  }
  const ModelDescription& description() const { return *built_.description; }
  std::shared_ptr<const ModelDescription> shared_description() const { return built_.description; }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }  // without data
  bool same_numbers() const { return same_numbers_; }

  // Rows in the output type.
  at::Tensor read(const std::string& name, int64_t first, int64_t rows) const { return read(name, first, rows, type_of(step_.info(name))); }
  // Rows as the checkpoint has them; of codes their values.
  at::Tensor read_stored(const std::string& name, int64_t first, int64_t rows) const {
    const HfFolder* folder = step_.hf_folder();
    const bool codes = folder != nullptr && folder->holds_codes(name);
    return read(name, first, rows, codes ? at::kFloat : scalar_type_of(step_.info(name).dtype));
  }

 private:
  at::Tensor read(const std::string& name, int64_t first, int64_t rows, at::ScalarType type) const {
    const TensorInfo stored = step_.info(name);
    std::vector<int64_t> shape = stored.shape;
    if (!shape.empty()) shape[0] = rows;
    const at::Tensor out = at::empty(shape, at::TensorOptions().dtype(type));
    step_.read_rows(name, first, out, true);
    check(type == scalar_type_of(stored.dtype) || is_finite(file_dtype_of(type), out.const_data_ptr(), out.nbytes()),
          "{}: tensor {} has values too large for {}; choose bfloat16 or float32", step_.folder().string(), name,
          name_of(file_dtype_of(type)));
    return out;
  }
  at::ScalarType type_of(const TensorInfo& stored) const {
    const at::ScalarType own = scalar_type_of(stored.dtype);
    return dtype_ && is_castable(own) ? *dtype_ : own;
  }
  void add(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo stored = step_.info(name);
    check(stored.shape == shape, "{}: tensor {} has shape {}, expected {}", step_.folder().string(), name, shape_text(stored.shape),
          shape_text(shape));
    same_numbers_ = same_numbers_ && type_of(stored) == scalar_type_of(stored.dtype);
    tensors_.push_back({name, at::empty(shape, at::TensorOptions().dtype(type_of(stored)).device(at::kMeta))});
  }

  const LoadedStep& step_;
  std::optional<at::ScalarType> dtype_;
  BuiltModel built_;
  std::vector<NamedTensor> tensors_;
  bool same_numbers_ = true;
};

// The formats that hold such codes, for a message.
std::string formats_with(const std::string& codes) {
  std::string names;
  for (const ExportFormat& format : export_formats())
    if (find_word(format.codes, codes)) names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  return names.empty() ? "none holds such codes" : names;
}

HfTokenIds token_ids_of(const LoadedStep& step) {
  const HfTokenIds ids = saved_token_ids(step);
  if (ids != HfTokenIds{} || !fs::is_regular_file(step.folder() / "tokenizer.json")) return ids;
  const Tokenizer tokenizer = Tokenizer::load(step.folder());
  return exported_token_ids(ids, tokenizer.bos_id(), tokenizer.eos_id());
}

void write_native(const ConvertOptions& o, const LoadedStep& step, const Weights& weights, const TensorSource& read) {
  JobConfig config;
  const JobConfig source = config_of(step);
  config.model = source.model, config.training.mixed_precision_param = source.training.mixed_precision_param;
  StepState state;
  state.model_only = true, state.model = weights.tensors(), state.read = read, state.copy_files = carried_files(step.folder());
  if (const fs::path index = step.folder() / kHfIndex; fs::is_regular_file(index)) state.copy_files.emplace_back(kHfIndex, index);
  nlohmann::json saved{
      {"model", {{"name", config.model.name}, {"flavor", config.model.flavor}, {"hyper_parameters", weights.description().json()}}},
      {"config", nlohmann::json::parse(to_json(config))}};
  nlohmann::ordered_json ids = nlohmann::json::object();
  write_token_ids(saved_token_ids(step), ids);
  if (!ids.empty()) saved["hf_token_ids"] = ids;
  state.state_json = saved.dump(1);
  CheckpointOptions options;
  options.max_shard_bytes = o.max_shard_bytes > 0 ? o.max_shard_bytes : kDefaultShardBytes;
  write_step(o.to, state, options);
}

}  // namespace

ConvertResult convert(const ConvertOptions& o) {
  check(o.max_shard_bytes >= 0, "--max-shard-bytes: expected a positive number, found {}", o.max_shard_bytes);
  check(o.codes.empty() || !o.format.empty(), "--codes {} needs --format: {}", o.codes, formats_with(o.codes));
  const ExportFormat* format = o.format.empty() ? nullptr : &find_export_format(o.format);
  check_target(o.to, format != nullptr && format->file);
  const Stopwatch watch;
  // Pieces of a few MiB reuse their memory: fresh pages would cost a fifth of the time.
  mallopt(M_MMAP_THRESHOLD, 256 << 20), mallopt(M_TRIM_THRESHOLD, 512 << 20);
  const LoadedStep step = LoadedStep::open(resolve_checkpoint(o.from), false);  // checksums are verified during the conversion
  const std::string* broken = step.not_finite();
  check(broken == nullptr, "{}: tensor {} holds a NaN or an infinity; convert an earlier step", step.folder().string(),
        broken ? *broken : "");
  if (const std::string text = ignored_text(step); !text.empty()) log_info("{}", text);
  const Weights weights(step, config_of(step).model, o.dtype);
  const TensorSource read = [&](const std::string& name, int64_t first, int64_t rows) { return weights.read(name, first, rows); };
  ConvertResult result{.to_hf = step.hf_config() == nullptr || format != nullptr};
  if (result.to_hf) {
    const ExportInput input{
        .step = step,
        .model = weights.shared_description(),
        .tensors = weights.tensors(),
        .read = read,
        .read_stored = [&](const std::string& name, int64_t first, int64_t rows) { return weights.read_stored(name, first, rows); },
        .token_ids = token_ids_of(step),
        .copy_files = carried_files(step.folder()),
        .to = o.to,
        .dtype = o.dtype,
        .codes = o.codes,
        .max_shard_bytes = o.max_shard_bytes};
    format != nullptr ? format->write(*format, input) : write_numbers(input);
  } else {
    write_native(o, step, weights, read);
  }
  for (const NamedTensor& t : weights.tensors()) result.bytes += static_cast<int64_t>(t.tensor.nbytes());
  result.tensors = static_cast<int64_t>(weights.tensors().size());
  const bool left_out = std::any_of(weights.tensors().begin(), weights.tensors().end(), [&](const NamedTensor& t) {
    const ModelFamily::TensorName* name = weights.description().family().tensor(t.name);
    return result.to_hf && name != nullptr && name->hf.empty();
  });
  result.same_numbers = weights.same_numbers() && !left_out && format == nullptr && !(step.hf_config() && step.hf_config()->quantization);
  result.seconds = watch.seconds();
  return result;
}

namespace {

constexpr int64_t kCheckedRows = 2, kCheckedTokens = 64, kCheckedPiece = 8;  // logits are compared after every 8 tokens

// fp32 [kCheckedTokens / kCheckedPiece, kCheckedRows, V].
at::Tensor some_logits(const fs::path& folder) {
  const LoadedStep step = LoadedStep::open(resolve_checkpoint(folder), false);
  JobConfig config = config_of(step);
  config.training.mixed_precision_param = "float32";
  constexpr double kGiB = 1 << 30;
  const int64_t needed = build_model(config.model, 0).model->size().parameters * static_cast<int64_t>(sizeof(float));
  check(needed <= available_memory(),
        "--check: {} needs {:.1f} GiB in float32, {:.1f} GiB of memory are available; the conversion is complete, compare on a larger "
        "machine",
        folder.string(), static_cast<double>(needed) / kGiB, static_cast<double>(available_memory()) / kGiB);
  Engine::Options options;
  options.trainable = false, options.positions = kCheckedTokens;
  Engine engine(config, options);
  restore_model(engine, step);
  const at::Tensor tokens = at::empty({kCheckedRows, kCheckedTokens}, at::kLong);
  const PhiloxKey key = philox_key(0, "tokens to compare logits");
  int64_t* id = tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i) id[i] = philox(key, i)[0] % engine.size().vocab;
  std::vector<KvCache> caches = engine.model().make_caches(kCheckedRows, kCheckedTokens);
  std::vector<at::Tensor> logits;
  for (int64_t at = 0; at < kCheckedTokens; at += kCheckedPiece)
    logits.push_back(engine.model().next_token_logits(tokens.narrow(1, at, kCheckedPiece).contiguous(), caches).clone());
  return at::stack(logits);
}

}  // namespace

LogitsDifference compare_logits(const fs::path& first, const fs::path& second) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = some_logits(first).to(at::kDouble), b = some_logits(second).to(at::kDouble);
  check(a.sizes() == b.sizes(), "{} has logits of shape {}, {} of {}", first.string(), shape_text(a.sizes().vec()), second.string(),
        shape_text(b.sizes().vec()));
  const at::Tensor log_p = at::log_softmax(a, -1), log_q = at::log_softmax(b, -1);
  LogitsDifference d;
  d.largest = (a - b).abs().max().item<double>(), d.magnitude = a.abs().max().item<double>();
  d.divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item<double>();
  d.finite = at::isfinite(a).all().item<bool>() && at::isfinite(b).all().item<bool>();
  return d;
}

}  // namespace halftone
