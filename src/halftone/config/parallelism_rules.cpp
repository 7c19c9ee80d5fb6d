#include "halftone/config/rules.h"

namespace halftone {
namespace {

constexpr int64_t kLargestDegree = 1 << 20;

// Product of degrees, or 0 when it does not fit.
int64_t product(std::initializer_list<int64_t> degrees) {
  int64_t p = 1;
  for (const int64_t d : degrees) {
    if (__builtin_mul_overflow(p, d, &p)) return 0;
  }
  return p;
}

void check_pipeline(const JobConfig& j, const RuleContext& c) {
  const ParallelismConfig& p = j.parallelism;
  const int64_t pp = p.pipeline_parallel_degree;
  if (pp == 1) return;
  rule(c, j.training.local_batch_size % p.pipeline_parallel_microbatch_size == 0,
       {"parallelism.pipeline_parallel_microbatch_size", "training.local_batch_size"},
       "training.local_batch_size must be a multiple of parallelism.pipeline_parallel_microbatch_size, found {} and {}",
       j.training.local_batch_size, p.pipeline_parallel_microbatch_size);
  const std::string& schedule = p.pipeline_parallel_schedule;
  const bool from_csv = schedule.starts_with("PipelineSchedule");
  const bool has_csv = p.pipeline_parallel_schedule_csv && !p.pipeline_parallel_schedule_csv->empty();
  rule(c, from_csv == has_csv, {"parallelism.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_schedule"},
       "parallelism.pipeline_parallel_schedule_csv goes with parallelism.pipeline_parallel_schedule = PipelineScheduleSingle or "
       "PipelineScheduleMulti, found schedule {} and {} file",
       schedule, has_csv ? "a" : "no");
  if (p.module_fqns_per_model_part) {
    const int64_t stages = static_cast<int64_t>(p.module_fqns_per_model_part->size());
    const bool single = schedule == "1F1B" || schedule == "GPipe" || schedule == "PipelineScheduleSingle";
    const bool v_shaped = schedule == "ZBVZeroBubble" || schedule == "DualPipeV";
    const bool fits = single ? stages == pp : v_shaped ? stages == 2 * pp : stages % pp == 0 && stages >= 2 * pp;
    rule(c, fits, {"parallelism.module_fqns_per_model_part"},
         "parallelism.module_fqns_per_model_part has {} stages; schedule {} on parallelism.pipeline_parallel_degree = {} needs {}", stages,
         schedule, pp,
         single     ? fmt::format("{}", pp)
         : v_shaped ? fmt::format("{}", 2 * pp)
                    : fmt::format("a multiple of {}, at least {}", pp, 2 * pp));
  }
}

void check_batch(const JobConfig& j, const RuleContext& c, int64_t dp) {
  const TrainingConfig& t = j.training;
  const int64_t rows = product({t.local_batch_size, dp});
  if (t.global_batch_size >= 1) {
    rule(c, rows > 0 && t.global_batch_size % rows == 0, {"training.global_batch_size", "training.local_batch_size"},
         "training.global_batch_size must be a multiple of training.local_batch_size * data-parallel degree, found {} and {} * {}",
         t.global_batch_size, t.local_batch_size, dp);
  }
}

}  // namespace

void check_parallelism(const JobConfig& j, const RuleContext& c) {
  const ParallelismConfig& p = j.parallelism;
  const int64_t replicate = p.data_parallel_replicate_degree, cp = p.context_parallel_degree, tp = p.tensor_parallel_degree,
                pp = p.pipeline_parallel_degree, ep = p.expert_parallel_degree, etp = p.expert_tensor_parallel_degree;
  int64_t shard = p.data_parallel_shard_degree;
  bool sane = true;
  for (const int64_t d : {replicate, cp, tp, pp, ep, etp, shard}) sane = sane && d <= kLargestDegree;
  rule(c, sane, {"parallelism.data_parallel_shard_degree"}, "parallelism degrees must be at most {}", kLargestDegree);
  const bool shard_valid = shard == -1 || shard >= 1;
  rule(c, shard_valid, {"parallelism.data_parallel_shard_degree"},
       "parallelism.data_parallel_shard_degree must be -1 or at least 1, found {}", shard);
  if (!sane || !shard_valid) return;

  const int64_t others = product({replicate, cp, tp, pp});
  rule(c, others > 0, {"parallelism.tensor_parallel_degree"}, "the product of the parallelism degrees is too large");
  if (others == 0) return;
  if (c.world_size > 0) {
    if (shard == -1) {
      const bool fits = c.world_size % others == 0;
      rule(c, fits,
           {"parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree", "parallelism.context_parallel_degree",
            "parallelism.data_parallel_replicate_degree"},
           "the number of processes must be a multiple of data_parallel_replicate_degree * context_parallel_degree * "
           "tensor_parallel_degree * "
           "pipeline_parallel_degree = {} * {} * {} * {} = {}, found {} processes",
           replicate, cp, tp, pp, others, c.world_size);
      if (!fits) return;
      shard = c.world_size / others;
    } else {
      const int64_t all = product({others, shard});
      rule(c, all == c.world_size,
           {"parallelism.data_parallel_shard_degree", "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree",
            "parallelism.context_parallel_degree", "parallelism.data_parallel_replicate_degree"},
           "data_parallel_replicate_degree * data_parallel_shard_degree * context_parallel_degree * tensor_parallel_degree * "
           "pipeline_parallel_degree must equal the number of processes, found {} * {} * {} * {} * {} = {} and {} processes",
           replicate, shard, cp, tp, pp, all, c.world_size);
      if (all != c.world_size) return;
    }
    const int64_t fsdp = shard * cp;
    rule(c, !(replicate > 1 && fsdp == 1 && (tp > 1 || pp > 1 || ep > 1)),
         {"parallelism.data_parallel_replicate_degree", "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"},
         "data_parallel_replicate_degree > 1 without sharding (DDP) does not go with tensor, pipeline or expert parallelism; "
         "use data_parallel_shard_degree > 1 (HSDP)");
    if (ep > 1) {
      rule(c, (fsdp * tp) % (ep * etp) == 0, {"parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree"},
           "expert_parallel_degree * expert_tensor_parallel_degree must divide shard * context * tensor degrees, found {} * {} and {} * {} "
           "* {}",
           ep, etp, shard, cp, tp);
    }
    check_batch(j, c, replicate * shard);
  } else if (shard >= 1) {
    check_batch(j, c, replicate * shard);
  }
  rule(c, etp == 1 || etp == tp, {"parallelism.expert_tensor_parallel_degree", "parallelism.tensor_parallel_degree"},
       "parallelism.expert_tensor_parallel_degree must be 1 or parallelism.tensor_parallel_degree, found {} and {}", etp, tp);

  const int64_t chunks = tp * cp * (cp > 1 && p.context_parallel_load_balancer ? 2 : 1);
  rule(c, j.training.seq_len % chunks == 0,
       {"training.seq_len", "parallelism.tensor_parallel_degree", "parallelism.context_parallel_degree"},
       "training.seq_len must be a multiple of {} (tensor_parallel_degree * context_parallel_degree{}), found {}", chunks,
       chunks == tp * cp ? "" : " * 2 for the load balancer", j.training.seq_len);
  rule(c, !j.validation.enable || j.validation.seq_len % chunks == 0, {"validation.seq_len", "parallelism.tensor_parallel_degree"},
       "validation.seq_len must be a multiple of {} (tensor_parallel_degree * context_parallel_degree{}), found {}", chunks,
       chunks == tp * cp ? "" : " * 2 for the load balancer", j.validation.seq_len);
  rule(c, p.context_parallel_load_balancer != "ptrr" || cp == 1 || p.context_parallel_ptrr_mask_key,
       {"parallelism.context_parallel_load_balancer"},
       "parallelism.context_parallel_load_balancer = ptrr needs parallelism.context_parallel_ptrr_mask_key");
  check_pipeline(j, c);
}

}  // namespace halftone
