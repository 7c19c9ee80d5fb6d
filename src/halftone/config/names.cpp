#include "halftone/config/names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>

namespace halftone {
namespace {

struct Renamed {
  std::string_view old_name, advice;  // advice: the name, or "- why it is gone"
};

// Spellings of torchtitan before and after v0.2.2. A name that ends in a dot stands for its whole section.
constexpr std::array kRenamed = {
    Renamed{"training.batch_size", "training.local_batch_size"},
    Renamed{"validation.batch_size", "validation.local_batch_size"},
    Renamed{"training.compile", "compile.enable"},
    Renamed{"training.seed", "debug.seed"},
    Renamed{"training.deterministic", "debug.deterministic"},
    Renamed{"training.deterministic_warn_only", "debug.deterministic_warn_only"},
    Renamed{"training.warmup_steps", "lr_scheduler.warmup_steps"},
    Renamed{"training.max_context_length", "training.seq_len"},
    Renamed{"training.num_tokens_per_microbatch_per_dp_rank", "training.local_batch_size and training.seq_len (it is their product)"},
    Renamed{"training.data_parallel_degree", "parallelism.data_parallel_shard_degree"},
    Renamed{"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"},
    Renamed{"optimizer.fused", "optimizer.implementation"},
    Renamed{"model.norm_type", "- every norm is RMSNorm"},
    Renamed{"metrics.rank_0_only", "metrics.save_for_all_ranks"},
    Renamed{"checkpoint.enable_checkpoint", "checkpoint.enable"},
    Renamed{"checkpoint.interval_type", "- checkpoint.interval counts steps"},
    Renamed{"checkpoint.model_weights_only", "checkpoint.last_save_model_only"},
    Renamed{"checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only"},
    Renamed{"checkpoint.initial_load_model_weights_only", "checkpoint.initial_load_model_only"},
    Renamed{"compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    Renamed{"compile.enable_compiled_autograd", "- there is no graph compiler"},
    Renamed{"parallelism.enable_compiled_autograd", "- there is no graph compiler"},
    Renamed{"parallelism.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part"},
    Renamed{"debug.print_config", "job.print_config"},
    Renamed{"job.print_args", "job.print_config"},
    Renamed{"job.use_for_integration_test", "- it has no effect"},
    Renamed{"float8.", "[quantize.linear.float8]"},
    Renamed{"mx.", "[quantize.linear.mx]"},
    Renamed{"profiler.", "[profiling]"},
    Renamed{"validator.", "[validation]"},
    Renamed{"lr_schedule.", "[lr_scheduler]"},
};

// Edits that count as a typo in a word of this length.
int tolerance(size_t length) { return length <= 3 ? 1 : std::max<int>(2, static_cast<int>(length) / 3); }

}  // namespace

int edit_distance(std::string_view a, std::string_view b, int limit) {
  const auto longer = static_cast<int64_t>(std::max(a.size(), b.size())), shorter = static_cast<int64_t>(std::min(a.size(), b.size()));
  if (longer - shorter > limit || longer > 128) return 1 << 20;  // no field is that long
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0], least = row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      least = std::min(least, row[j]);
    }
    if (least > limit) return least;
  }
  return row[b.size()];
}

std::string nearest_word(std::string_view given, const std::vector<std::string_view>& candidates) {
  constexpr size_t kTelling = 4;
  std::string word(given);  // INT8 means int8
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char ch) { return static_cast<char>(std::tolower(ch)); });
  if (std::find(candidates.begin(), candidates.end(), word) != candidates.end()) return fmt::format("; did you mean {}?", word);
  // The beginning of a few names: fp8, mxfp8, tensor.
  std::vector<std::string_view> longer;
  for (const std::string_view c : candidates) {
    if (!word.empty() && c.size() > word.size() && c.starts_with(word) && (c[word.size()] == '_' || word.size() >= kTelling))
      longer.push_back(c);
  }
  if (!longer.empty() && longer.size() <= 4) return fmt::format("; did you mean {}?", fmt::join(longer, " or "));

  int best = tolerance(word.size()) + 1;
  std::string_view nearest;
  for (const std::string_view c : candidates) {
    if (const int d = edit_distance(word, c, best); d < best) {
      best = d;
      nearest = c;
    }
  }
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

std::string advice_for_unknown(std::string_view name, const ConfigIndex& index) {
  for (const Renamed& r : kRenamed) {
    const bool section = r.old_name.ends_with('.');
    if (section ? name.starts_with(r.old_name) || name == r.old_name.substr(0, r.old_name.size() - 1) : name == r.old_name)
      return r.advice.starts_with("- ") ? fmt::format("; remove it: {}", r.advice.substr(2))
                                        : fmt::format("; torchtitan v0.2.2 and halftone call it {}", r.advice);
  }
  if (name.starts_with("quantize.scheme."))
    return fmt::format("; quantize.scheme takes its table as JSON: --quantize.scheme '{{\"{}\": [\"Linear\"]}}'", leaf_of(name));
  const std::string_view leaf = leaf_of(name);
  int best = tolerance(leaf.size()) + 1;
  std::string_view nearest;
  for (const FieldEntry& f : index.fields) {
    // A field of another section counts as one more edit.
    const int by_leaf = edit_distance(leaf, leaf_of(f.name), best) + (section_of(f.name) != section_of(name));
    const int d = std::min(edit_distance(name, f.name, best), by_leaf);
    if (d < best) {
      best = d;
      nearest = f.name;
    }
  }
  std::vector<std::string_view> sections;
  for (const SectionEntry& s : index.sections) sections.push_back(s.name);
  if (name.find('.') == std::string_view::npos) {
    if (std::string advice = nearest_word(name, sections); !advice.empty()) return advice;
  }
  if (!nearest.empty()) return fmt::format("; did you mean {}?", nearest);
  const std::string_view section = section_of(name);
  if (index.find_section(section)) return fmt::format("; `halftone config --help {}` lists the valid ones", section);
  if (!section.empty()) {
    if (std::string advice = nearest_word(section, sections); !advice.empty()) return advice;
  }
  return "; `halftone config --help` lists the valid ones";
}

}  // namespace halftone
