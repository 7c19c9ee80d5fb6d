#include "halftone/train/run_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/ops/stored_weight.h"

namespace halftone {
namespace {

using Json = nlohmann::json;

const Json& member(const Json& object, const char* name, const LoadedStep& step) {
  const auto it = object.is_object() ? object.find(name) : object.end();
  check(object.is_object() && it != object.end(), "{}/state.json: '{}' is missing; the checkpoint is damaged or model-only",
        step.folder().string(), name);
  return *it;
}

uint64_t number(const Json& object, const char* name, const LoadedStep& step) {
  const Json& value = member(object, name, step);
  check(value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0),
        "{}/state.json: '{}' is not a non-negative integer", step.folder().string(), name);
  return value.get<uint64_t>();
}

}  // namespace

Json saved_state(const LoadedStep& step) {
  Json state = Json::parse(step.state_json(), nullptr, false);
  check(state.is_object(), "{}/state.json: expected a JSON object; the checkpoint is damaged, load an earlier step",
        step.folder().string());
  return state;
}

std::vector<int64_t> share_out(const std::vector<int64_t>& bytes, int64_t count) {
  std::vector<size_t> by_size(bytes.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int64_t> writer(bytes.size()), load(static_cast<size_t>(count));
  for (const size_t i : by_size) {
    const auto least = std::min_element(load.begin(), load.end());
    writer[i] = least - load.begin();
    *least += bytes[i];
  }
  return writer;
}

namespace {

// This rank's part of one of the parameter's tensors, all of which have its rows.
NamedTensor part_of(const nn::Parameter& p, const std::string& name, const at::Tensor& tensor) {
  NamedTensor part{name, tensor};
  if (!p.shard && p.parts.empty()) return part;
  const std::vector<int64_t> whole = p.whole_shape(), local = p.local_shape();
  part.shape = tensor.sizes().vec(), part.offset = p.first();
  part.offset.resize(part.shape.size());  // per-row scales
  part.shape[0] = whole[0];
  for (size_t d = 1; d < part.shape.size(); ++d) {
    // Packed codes and block scales have fewer columns than the parameter.
    const int64_t have = part.shape[d];
    part.offset[d] = part.offset[d] * have / local[d], part.shape[d] = whole[d] * have / local[d];
  }
  return part;
}

using Parameters = std::vector<const nn::Parameter*>;

// The parameters that this rank writes: ranks with replicas split them.
Parameters written_by(Engine& engine, const CheckpointRanks& ranks) {
  Parameters written;
  std::map<std::vector<std::string_view>, Parameters> alike;  // by the axes along which ranks hold replicas
  for (const nn::Parameter* p : engine.store().parameters()) alike[engine.holders(*p)].push_back(p);
  for (const auto& [axes, held] : alike) {
    std::vector<int64_t> sizes;
    for (const nn::Parameter* p : held) sizes.push_back(p->numel());
    int64_t count = 1, own = 0;
    for (const std::string_view axis : axes) {
      const auto [index, size] = ranks.place(axis);
      own = own * size + index, count *= size;
    }
    const std::vector<int64_t> writer = share_out(sizes, count);
    for (size_t i = 0; i < held.size(); ++i)
      if (writer[i] == own) written.push_back(held[i]);
  }
  return written;
}

// `numbers`: dequantises stored weights.
std::vector<NamedTensor> model_tensors(const Parameters& parameters, bool numbers) {
  std::vector<NamedTensor> tensors;
  for (const nn::Parameter* p : parameters) {
    if (numbers && p->weight.stored) {
      tensors.push_back(part_of(*p, p->fqn, p->values()));
    } else {
      for (const auto& [name, tensor] : p->tensors()) tensors.push_back(part_of(*p, name, tensor));
    }
  }
  return tensors;
}

}  // namespace

std::vector<NamedTensor> model_numbers(Engine& engine, const CheckpointRanks& ranks) {
  return model_tensors(written_by(engine, ranks), true);
}

StepState collect_state(Engine& engine, const RunProgress& progress, const Json& loader, const JobConfig& config, bool model_only,
                        const CheckpointRanks& ranks) {
  StepState s;
  s.step = progress.step, s.model_only = model_only;
  const Parameters written = written_by(engine, ranks);
  s.model = model_tensors(written, model_only);
  const Json model = engine.built().description->json();
  Json state = Json{{"train_state",
                     {{"step", progress.step},
                      {"ntokens_seen", progress.tokens_seen},
                      {"skipped_updates", progress.skipped_updates},
                      {"recent_losses", progress.recent_losses}}},
                    {"lr_scheduler", {{"last_epoch", progress.last_epoch}}},
                    {"rng", {{"seed", progress.seed}}},
                    {"dataloader", loader},
                    {"model", {{"name", config.model.name}, {"flavor", config.model.flavor}, {"hyper_parameters", model}}},
                    {"formats", engine.recipe_lines()},
                    {"config", Json::parse(to_json(config))}};
  nlohmann::ordered_json ids = Json::object();
  write_token_ids(progress.token_ids, ids);
  if (!ids.empty()) state["hf_token_ids"] = ids;
  if (config.quantize.recipe_text) state["recipe"] = *config.quantize.recipe_text;
  s.state_json = state.dump(1);
  if (model_only) return s;
  constexpr std::array kAxes = {"dp_replicate", "fsdp", "tp"};  // axes of the ranks of one pipeline stage
  const bool first_of_stage = std::all_of(kAxes.begin(), kAxes.end(), [&](const char* axis) { return ranks.place(axis).first == 0; });
  const auto scalar = [](double value) { return at::scalar_tensor(value, at::TensorOptions().dtype(at::kDouble)); };
  for (const Engine::NamedState& state : engine.optimizer_states()) {
    const std::string prefix = "optim.state." + state.fqn + ".", group = "optim.param_groups." + state.fqn + ".";
    const auto p = std::find_if(written.begin(), written.end(), [&](const nn::Parameter* w) { return w->fqn == state.fqn; });
    if (p != written.end()) {
      for (const auto& [kind, tensor] : state.tensors) s.optim.push_back(part_of(**p, prefix + std::string(kind.name), tensor));
      for (const auto& [name, tensor] : state.more) s.optim.push_back(part_of(**p, prefix + name, tensor));
    }
    if (!first_of_stage) continue;
    s.optim.push_back({prefix + "step", scalar(static_cast<double>(engine.updates()))});
    s.optim.push_back({group + "lr", scalar(state.segment->lr)});
    s.optim.push_back({group + "weight_decay", scalar(state.segment->weight_decay)});
  }
  return s;
}

namespace {

// Error unless a step with codes matches the run's weight format: the one cannot be converted to the other.
void check_codes(const nn::Parameter& p, const LoadedStep& step) {
  const bool codes = step.has(p.fqn + "_scale");
  if (!codes) return;
  const bool same = p.weight.stored && p.weight.stored->zeros.defined() == step.has(p.fqn + "_zero");
  check(same,
        "{} stores {} only as codes of {}, which this run's recipe does not read; resume with that recipe, or start from the weights of "
        "its last step (checkpoint.last_save_model_only)",
        step.folder().string(), p.fqn, step.has(p.fqn + "_zero") ? "int4_weight" : "int8_weight");
}

// Reads this rank's rows of one of the parameter's tensors.
void read_part(const LoadedStep& step, const std::string& name, const nn::Parameter& p, const at::Tensor& tensor, bool cast) {
  const std::vector<int64_t> expected = part_of(p, name, tensor).whole_shape(), found = step.info(name).shape;
  const bool table = (name == "tok_embeddings.weight" || name == "output.weight") && found.size() == 2 && found[0] != expected[0];
  check(found == expected, "{}: tensor {} has shape {}, expected {}{}", step.folder().string(), name, shape_text(found),
        shape_text(expected),
        table ? fmt::format("; the vocabulary has {} entries there and {} here: set model.overrides.vocab_size = {}", found[0], expected[0],
                            found[0])
              : "");
  step.read_part(name, part_of(p, name, tensor).offset, tensor, cast);
}

}  // namespace

void restore_model(Engine& engine, const LoadedStep& step) {
  // Checkpoints of the plain model lack what a recipe added.
  const auto absent = [&](const nn::Parameter& p) { return p.added && !step.has(p.fqn); };
  const auto codes = [&](const nn::Parameter& p) { return p.weight.stored && step.has(p.fqn + "_scale"); };
  std::vector<std::string> names;
  for (const nn::Parameter* p : engine.store().parameters()) {
    check_codes(*p, step);
    if (absent(*p)) {
      if (!p->copy_of.empty()) names.push_back(p->copy_of);
    } else if (p->weight.stored && !codes(*p)) {
      names.push_back(p->fqn);
    } else {
      for (const auto& [name, tensor] : p->tensors()) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  step.check_model_names(names, engine.pipeline() != nullptr);
  for (nn::Parameter* p : engine.store().parameters()) {
    if (absent(*p) && p->copy_of.empty()) {
      nn::ParameterStore::initialize(*p, engine.seed());
    } else if (p->weight.stored && !codes(*p)) {
      at::Tensor values = at::empty(p->local_shape(), p->weight.stored->scales.options());
      read_part(step, p->fqn, *p, values, true);
      store(values, {}, *p->weight.stored);
    } else {
      for (auto& [name, tensor] : p->tensors()) read_part(step, absent(*p) ? p->copy_of : name, *p, tensor, !p->weight.stored);
    }
  }
  engine.store().masters_changed();
}

void restore_optimizer(Engine& engine, const LoadedStep& step) {
  int64_t updates = 0;
  std::vector<std::string> added;
  std::map<std::string, const nn::Parameter*> parameters;
  for (const nn::Parameter* p : engine.store().parameters()) {
    parameters[p->fqn] = p;
    if (p->added && !step.has(p->fqn)) added.push_back(p->fqn);
  }
  check(added.empty(),
        "{} was trained without {} tensors that this run's recipe adds ({}, ...); resume with its recipe, or start another run "
        "(job.dump_folder) "
        "with checkpoint.initial_load_path",
        step.folder().string(), added.size(), added.empty() ? "" : added[0]);
  engine.prepare_states(step.step());
  for (const Engine::NamedState& state : engine.optimizer_states()) {
    const nn::Parameter& p = *parameters.at(state.fqn);
    const std::string prefix = "optim.state." + state.fqn + ".";
    for (const auto& [kind, tensor] : state.tensors) {
      const auto saved = [&](std::string_view name) { return !name.empty() && step.has(prefix + std::string(name)); };
      const std::string name(!saved(kind.name) && saved(kind.formerly) ? kind.formerly : kind.name);
      check(saved(name),
            "{} holds no {}{}: another optimizer wrote it; set optimizer.name and its options back, or add optimizer and lr_scheduler to "
            "checkpoint.exclude_from_loading",
            step.folder().string(), prefix, name);
      read_part(step, prefix + name, p, tensor, true);
    }
    for (const auto& [name, tensor] : state.more) {
      if (step.has(prefix + name)) read_part(step, prefix + name, p, tensor, true);  // otherwise it starts with this run
    }
    at::Tensor count = at::empty({}, at::TensorOptions().dtype(at::kDouble));
    step.read_into(prefix + "step", count);
    updates = static_cast<int64_t>(count.item<double>());
  }
  engine.set_updates(updates);
}

RunProgress restored_progress(const LoadedStep& step) {
  const Json state = saved_state(step);
  RunProgress p;
  p.step = static_cast<int64_t>(number(member(state, "train_state", step), "step", step));
  p.tokens_seen = static_cast<int64_t>(number(member(state, "train_state", step), "ntokens_seen", step));
  p.seed = number(member(state, "rng", step), "seed", step);
  p.last_epoch = static_cast<int64_t>(number(member(state, "lr_scheduler", step), "last_epoch", step));
  const Json& train = member(state, "train_state", step);
  if (train.contains("skipped_updates")) p.skipped_updates = static_cast<int64_t>(number(train, "skipped_updates", step));
  if (train.contains("recent_losses")) {
    const Json& losses = train["recent_losses"];
    const bool numbers = losses.is_array() && std::all_of(losses.begin(), losses.end(), [](const Json& x) { return x.is_number(); });
    check(numbers && losses.size() <= kMedianWindow, "{}/state.json: 'recent_losses' is not a list of at most {} numbers",
          step.folder().string(), kMedianWindow);
    p.recent_losses = losses.get<std::vector<double>>();
  }
  p.token_ids = saved_token_ids(step);
  check(p.step == step.step(), "{}/state.json: step {} inside a folder of step {}", step.folder().string(), p.step, step.step());
  return p;
}

HfTokenIds saved_token_ids(const LoadedStep& step) {
  if (step.hf_config()) return step.hf_config()->token_ids;
  const Json state = saved_state(step);
  const auto ids = state.find("hf_token_ids");
  return ids == state.end() ? HfTokenIds{} : read_token_ids(*ids, step.folder().string() + "/state.json");
}

Json restored_loader_state(const LoadedStep& step) { return member(saved_state(step), "dataloader", step); }

std::vector<std::pair<std::string, std::filesystem::path>> tokenizer_files(const std::filesystem::path& folder_or_file) {
  namespace fs = std::filesystem;
  std::vector<std::pair<std::string, fs::path>> files;
  const bool is_file = fs::is_regular_file(folder_or_file);
  const fs::path folder = is_file ? folder_or_file.parent_path() : folder_or_file;
  if (is_file) files.emplace_back("tokenizer.json", folder_or_file);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "vocab.txt", "merges.txt",
                           "tokenizer.model", "added_tokens.json", "chat_template.jinja", "chat_template.json"}) {
    const bool given = is_file && std::string_view(name) == "tokenizer.json";
    if (!given && fs::is_regular_file(folder / name)) files.emplace_back(name, folder / name);
  }
  return files;
}

}  // namespace halftone
