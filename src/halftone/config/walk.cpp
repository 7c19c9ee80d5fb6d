#include "halftone/config/walk.h"

#include <algorithm>

namespace halftone {
namespace {

template <class S>
void collect(S& section, const std::string& prefix, ConfigIndex& index) {
  S::fields(section, [&](std::string_view name, auto& member, std::string_view help, const FieldInfo& info = {}) {
    const std::string dotted = prefix + std::string(name);
    if constexpr (Section<std::remove_reference_t<decltype(member)>>) {
      index.sections.push_back({dotted, help});
      collect(member, dotted + ".", index);
    } else {
      index.fields.push_back({dotted, &member, help, info});
    }
  });
}

// A setting of torchtitan or ALTO without effect here, or not available, and why. Without a default it is a member of a section, where
// it is described and another setting or rule reads it.
struct Ignored {
  std::string_view name;
  IgnoredSettings::mapped_type usual;
  std::string_view help, reason;
  Mark mark = Mark::A;
  std::vector<std::string_view> choices{};
  bool lenient = false;
};

const std::vector<Ignored>& ignored_table() {
  using std::string;
  constexpr std::string_view kCompiler = "there is no graph compiler; the kernels are fused already";
  constexpr std::string_view kTorchft = "only torchft reads it";
  constexpr std::string_view kEstimation = "training ignores it, as torchtitan does; halftone estimate predicts memory";
  constexpr std::string_view kPython = "there is no Python", kFields = "there is no Python; every field is known already";
  constexpr std::string_view kCollector = "there is no garbage collector";
  constexpr std::string_view kAttention = "attention runs in the compute dtype";
  constexpr std::string_view kGather = "weights are gathered in training.mixed_precision_param and quantized afterwards";
  constexpr Mark N = Mark::N;
  static const std::vector<Ignored> table = {
      {"job.custom_config_module", string(), "Python module that extends the configuration", kFields, N},
      {"metrics.enable_wandb", false, "Weights & Biases", "metrics.jsonl has the same scalars, for a sidecar to forward"},
      {"model.tokenizer_path", {}, "", "used as model.hf_assets_path"},
      {"optimizer.early_step_in_backward", false, "update a parameter as soon as its gradient is complete",
       "the optimizer steps after the backward pass; optimizer.state_dtype = \"bfloat16\" also saves memory", N},
      {"training.enable_cpu_offload", false, "parameters, gradients and optimizer states in host memory",
       "parameters and gradients stay on the GPU; training.offload = [\"optimizer\"] moves the states", N},
      {"training.gc_freq", 50, "Python's garbage collector", kCollector},
      {"training.gc_debug", false, "Python's garbage collector", kCollector},
      {"training.dataloader.pin_memory", false, "pinned batches", "batches for a GPU are always pinned"},
      {"training.dataloader.persistent_workers", false, "keep workers between epochs", "worker threads always persist"},
      {"validation.dataloader.pin_memory", false, "pinned batches", "batches for a GPU are always pinned"},
      {"validation.dataloader.persistent_workers", false, "keep workers between epochs", "worker threads always persist"},
      {"parallelism.pipeline_parallel_expert_parallel_overlap", true, "overlap the all-to-alls of experts with compute in DualPipeV",
       "DualPipeV runs the same schedule either way, and the all-to-alls of experts are not overlapped"},
      {"parallelism.enable_fsdp_symm_mem", false, "symmetric-memory FSDP", "FSDP gathers and reduces through NCCL", N},
      {"checkpoint.enable_ft_dataloader_checkpoints", true, "used with torchft only", kTorchft},
      {"checkpoint.initial_load_in_hf_quantized", false, "dequantize while reading", "quantized folders are recognized by their scales"},
      {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
       StringList{"moe.router.gate"},
       "modules whose matrix products are always recomputed",
       "mode op recomputes every second matrix product, of any shape",
       Mark::A,
       {},
       true},
      {"activation_checkpoint.visualize_memory_budget_pareto", false, "write the cost curve",
       "no curve is written; halftone estimate predicts memory and step time of a budget"},
      {"activation_checkpoint.early_stop", false, "stop recomputing when all is recomputed", "recomputation always stops early"},
      {"activation_checkpoint.preserve_rng_state", true, "repeat the random numbers", "recomputation always repeats its random numbers"},
      {"activation_checkpoint.determinism_check", string("default"), "compare recomputed metadata",
       "recomputation runs the same code on the same bits"},
      {"activation_checkpoint.debug", false, "trace recomputation", "there is no recomputation trace"},
      {"compile.enable", false, "graph compilation", kCompiler},
      {"compile.components", StringList{"model", "loss"}, "what is compiled", kCompiler, Mark::A, {}, true},
      {"compile.backend", string("inductor"), "compiler", kCompiler},
      {"quantize.attention", string("bf16"), "low-precision attention", kAttention, N},
      {"quantize.attn_bwd", string("bf16"), "its backward pass", kAttention, N},
      {"quantize.pnq", true, "normalize P before it is quantized", kAttention, N},
      {"quantize.fsdp_all_gather", string("bf16"), "all-gather quantized weights", kGather, N},
      {"quantize.fsdp_precompute_scales", false, "all weight scales in one reduction", kGather, N},
      {"quantize.group_align", {}, "", "each expert's rows are padded to a multiple of 128, which changes no result"},
      {"quantize.linear.float8.enable_fsdp_float8_all_gather", {}, "", kGather},
      {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", false,
       "one amax reduction for all weights after the optimizer step", kGather},
      {"quantize.linear.mx.mxfp8_dim1_cast_kernel_choice",
       string("triton"),
       "cast kernel",
       "there is one cast kernel",
       Mark::A,
       {"triton", "cuda", "torch"}},
      {"memory_estimation.enable", false, "estimate memory", kEstimation},
      {"memory_estimation.disable_fake_mode", false, "estimate with real tensors", kEstimation},
      {"fault_tolerance.enable", false, "torchft's replicas",
       "torchft is a Python library; restarts resume from checkpoints (checkpoint.enable)", N},
      {"fault_tolerance.process_group", string("gloo"), "backend between replicas", kTorchft},
      {"fault_tolerance.process_group_timeout_ms", 10000, "timeout between replicas", kTorchft},
      {"fault_tolerance.replica_id", 0, "this replica", kTorchft},
      {"fault_tolerance.group_size", 0, "number of replicas", kTorchft},
      {"fault_tolerance.min_replica_size", 1, "fewest replicas", kTorchft},
      {"fault_tolerance.semi_sync_method", std::optional<string>(), "local_sgd or diloco", kTorchft},
      {"fault_tolerance.sync_steps", 5, "steps between synchronisations", kTorchft},
      {"fault_tolerance.should_quantize", false, "quantize what replicas exchange", kTorchft},
      {"fault_tolerance.fragment_sync_delay", 0, "steps to wait before synchronising a fragment", kTorchft},
      {"fault_tolerance.fragment_update_alpha", 0.0, "mixing weight of a fragment", kTorchft},
      {"fault_tolerance.module_fqns_per_model_fragment", std::vector<StringList>(), "contents of the fragments", kTorchft},
      {"fault_tolerance.num_fragments", 1, "number of fragments", kTorchft},
      {"experimental.custom_import", string(), "Python module to import", kPython, N},
      {"experimental.custom_args_module", string(), "Python module that extends the configuration", kFields, N},
      {"debug.detect_anomaly", false, "check outputs and gradients of every block",
       "training.nonfinite checks loss and gradient norm; metrics.log_quantization names layers", N},
  };
  return table;
}

}  // namespace

IgnoredSettings ignored_settings() {
  IgnoredSettings values;
  for (const Ignored& row : ignored_table()) values.emplace(row.name, row.usual);
  return values;
}

ConfigIndex index_config(JobConfig& config) {
  ConfigIndex index;
  collect(config, "", index);
  index.sections.insert(index.sections.end(), {{"compile", "torchtitan's graph compiler (accepted)"},
                                               {"memory_estimation", "torchtitan's memory estimation (accepted)"},
                                               {"fault_tolerance", "torchft (not available)"},
                                               {"experimental", "Python extensions (not available)"}});
  for (const Ignored& row : ignored_table()) {
    const auto add = [&]<class T>(T& value) {
      if constexpr (std::is_same_v<T, std::monostate>) {
        FieldInfo& info =
            std::find_if(index.fields.begin(), index.fields.end(), [&](const FieldEntry& f) { return f.name == row.name; })->info;
        info.mark = row.mark, info.note = row.reason;
      } else {
        const FieldInfo info = {.mark = row.mark, .choices = row.choices, .note = row.reason, .lenient = row.lenient};
        index.fields.push_back({std::string(row.name), &value, row.help, info});
      }
    };
    std::visit(add, config.ignored.at(std::string(row.name)));
  }
  return index;
}

ConfigIndex index_options(RecipeOptions& options) {
  ConfigIndex index;
  collect(options, "quantize.", index);
  return index;
}

ConfigIndex index_phase(QuantizePhase& phase) {
  ConfigIndex index;
  collect(phase, "quantize.", index);
  return index;
}

const FieldEntry* ConfigIndex::find_field(std::string_view name) const {
  for (const FieldEntry& f : fields) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

const SectionEntry* ConfigIndex::find_section(std::string_view name) const {
  for (const SectionEntry& s : sections) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

std::string_view section_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot);
}

std::string_view leaf_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace halftone
