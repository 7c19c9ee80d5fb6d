#include "halftone/base/environment.h"

#include <charconv>
#include <cstdlib>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr int64_t kMost = 1 << 24;  // ranks

class Reader {
 public:
  explicit Reader(const GetVariable& get) : get_(get) {}

  bool has(const char* name) const {
    const char* v = get_(name);
    return v && *v;
  }
  std::string text(const char* name) const { return has(name) ? get_(name) : ""; }
  std::optional<int64_t> number(const char* name, int64_t least, int64_t most) const {
    if (!has(name)) return std::nullopt;
    const std::string v = text(name);
    int64_t n = 0;
    const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), n);
    check(error == std::errc{} && end == v.data() + v.size() && n >= least && n <= most,
          "environment variable {}: expected an integer from {} to {}, found \"{}\"", name, least, most, v);
    return n;
  }

 private:
  const GetVariable& get_;
};

struct Scheme {
  const char *launcher, *rank, *local_rank, *size, *job;
};
// A batch shell also sets SLURM_NTASKS, though no task runs there; it does not set SLURM_STEP_NUM_TASKS.
constexpr Scheme kSchemes[] = {
    {"torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"},
};

void read_store(const Reader& env, Environment& e) {
  if (env.has("MASTER_ADDR")) {
    e.store_address = env.text("MASTER_ADDR");
  } else if (e.launcher == "slurm" && env.has("SLURM_STEP_NODELIST")) {
    e.store_address = first_slurm_node(env.text("SLURM_STEP_NODELIST"));
  } else {
    check(e.launcher != "openmpi" || e.world_size == 1,
          "environment variable MASTER_ADDR is not set; Open MPI runs of {} processes need it: mpirun -x MASTER_ADDR=HOST ...",
          e.world_size);
  }
  if (const auto port = env.number("MASTER_PORT", 1, 65535)) {
    e.store_port = *port;
  } else if (e.launcher == "slurm") {
    if (const auto job = env.number("SLURM_JOB_ID", 0, INT64_MAX)) e.store_port = 20000 + *job % 20000;
  }
}

}  // namespace

Environment read_environment(const GetVariable& get) {
  const Reader env(get);
  Environment e;
  for (const Scheme& s : kSchemes) {
    if (!env.has(s.rank) || !env.has(s.size)) continue;
    e.launcher = s.launcher;
    e.world_size = *env.number(s.size, 1, kMost);
    e.rank = *env.number(s.rank, 0, kMost);
    check(e.rank < e.world_size, "environment variable {}: expected a rank below {} = {}, found {}", s.rank, s.size, e.world_size, e.rank);
    e.local_rank = env.number(s.local_rank, 0, kMost).value_or(0);
    e.job = env.text(s.job);
    break;
  }
  read_store(env, e);
  e.launcher_hosts_store = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  e.restart_count = env.number("TORCHELASTIC_RESTART_COUNT", 0, kMost).value_or(0);
  e.simulated_world_size = env.number("NGPU", 1, kMost).value_or(env.number("WORLD_SIZE", 1, kMost).value_or(e.world_size));
  if (env.has("LOG_RANK")) {
    e.log_ranks.clear();
    const std::string list = env.text("LOG_RANK");
    const char* at = list.data();
    const char* const end = at + list.size();
    while (true) {
      int64_t rank = -1;
      const auto [next, error] = std::from_chars(at, end, rank);
      check(error == std::errc{} && rank >= 0 && (next == end || *next == ','),
            "environment variable LOG_RANK: expected ranks with commas between them, found \"{}\"", list);
      e.log_ranks.push_back(rank);
      if (next == end) break;
      at = next + 1;
    }
  }
  return e;
}

void require_one_process(const Environment& e) {
  check(e.world_size == 1,
        "this command runs as one process, found process {} of {} started by {}; start one, for example without {} or with a single task",
        e.rank, e.world_size, e.launcher,
        e.launcher == "torchrun" ? "torchrun"
        : e.launcher == "slurm"  ? "srun"
                                 : "mpirun");
}

Environment read_environment() {
  return read_environment([](const char* name) -> const char* { return std::getenv(name); });
}

std::string first_slurm_node(std::string_view list) {
  const size_t comma = list.find(','), bracket = list.find('[');
  if (bracket == std::string_view::npos || comma < bracket) return std::string(list.substr(0, comma));
  const size_t first_end = list.find_first_of("-,]", bracket);
  const size_t close = list.find(']', bracket);
  check(close != std::string_view::npos && first_end > bracket + 1, "SLURM_STEP_NODELIST: expected NAME[1-3,7], found \"{}\"", list);
  const size_t rest = std::min(list.find(',', close), list.size());
  return std::string(list.substr(0, bracket)) + std::string(list.substr(bracket + 1, first_end - bracket - 1)) +
         std::string(list.substr(close + 1, rest - close - 1));
}

}  // namespace halftone
