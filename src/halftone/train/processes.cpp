#include "halftone/train/processes.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/ranges.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/ranges.h"
#include "halftone/base/stopwatch.h"
#include "halftone/comm/store.h"
#include "halftone/config/load.h"
#include "halftone/data/digest.h"
#include "halftone/data/file_io.h"
#include "halftone/storage/byte_file.h"

namespace halftone {

void check_same(const std::string& what, const std::vector<std::string>& said) {
  constexpr size_t kShown = 3;
  std::vector<std::string> different;  // in the order of the ranks
  for (const std::string& text : said)
    if (std::find(different.begin(), different.end(), text) == different.end()) different.push_back(text);
  if (different.size() < 2) return;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(different.size(), kShown); ++i) {
    std::vector<int64_t> ranks;
    for (size_t r = 0; r < said.size(); ++r)
      if (said[r] == different[i]) ranks.push_back(static_cast<int64_t>(r));
    shown.push_back(fmt::format("{} on rank{} {}", different[i], ranks.size() == 1 ? "" : "s", ranges_text(ranks)));
  }
  fail("ranks have different {}: {}{}; give all ranks the same files", what, fmt::join(shown, ", "),
       different.size() > kShown ? fmt::format(" and {} more", different.size() - kShown) : "");
}

namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

// The cores that this process may run on, and all cores of the host.
std::pair<int, int> cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int all = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return {sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : all, all};
}

}  // namespace

Processes::Processes(const Environment& environment, const CommConfig& comm, const std::string& folder)
    : environment_(environment), comm_(comm) {
  if (!many()) return;
  const auto& ranks = environment.log_ranks;
  set_log_enabled(std::find(ranks.begin(), ranks.end(), rank()) != ranks.end());
  const auto timeout = std::chrono::seconds(comm.init_timeout_seconds);
  const std::string file = fmt::format("{}{}.jsonl", comm.save_traces_file_prefix, rank());
  const comm::Recorder recorder{folder.empty() ? 0 : comm.trace_buf_size, std::filesystem::path(folder) / comm.save_traces_folder / file};
  watch_ = std::make_unique<comm::Watch>(comm::open_store(environment, timeout), rank(), world(), timeout, comm::Milliseconds(1000),
                                         recorder, environment.store_address);
  watch_->set_outside(waits_for_server);
}

Processes::~Processes() {
  axes_.reset(), host_.reset();  // the watch must outlive what it watches
}

void Processes::run(const std::function<void()>& body) {
  if (!many()) return body();
  watch_->run([&] {
    {
      const comm::Operation start{"the start", watch_->everybody()};
      const comm::Waiting waiting(*watch_, start);
      share_cores();
    }
    body();
    axes_.reset(), host_.reset();  // while the other ranks are alive
  });
}

void Processes::share_cores() {
  const std::string key = "host/" + host_name();
  first_of_host_ = watch_->store()->add(key, 1) == 1;
  watch_->meet("start", *watch_->everybody());
  on_host_ = watch_->store()->add(key, 0);
  // A process bound to some of the cores already has its share; torchrun sets one thread if nothing is set.
  const char* set = std::getenv("OMP_NUM_THREADS");
  const bool wanted = set != nullptr && !(environment_.launcher == "torchrun" && std::strcmp(set, "1") == 0);
  const auto [ours, hosts] = cores();
  if (wanted) return;
  const int threads = std::max<int>(1, ours < hosts ? ours : static_cast<int>(ours / on_host_));
  omp_set_num_threads(threads);
  at::set_num_threads(threads);
}

void Processes::compare(const JobConfig& config, const std::string& version) {
  if (!many()) return;
  using Json = nlohmann::json;
  Json own = {{"version", version}, {"config", Json::parse(to_json(config))}};
  if (const auto& text = config.quantize.recipe_text) own["digest of quantize.recipe"] = digest_hex(*text);
  if (const auto& csv = config.parallelism.pipeline_parallel_schedule_csv; csv && !csv->empty())
    own["digest of parallelism.pipeline_parallel_schedule_csv"] = digest_hex(read_file(*csv, int64_t{1} << 30));
  if (first()) watch_->store()->set("configuration", own.dump());
  watch_->meet("configuration", *watch_->everybody());
  if (first()) return;
  const Json others = Json::parse(watch_->store()->get_to_str("configuration"));
  for (const Json& change : Json::diff(others, own)) {
    std::string field = change.at("path").get<std::string>().substr(1);
    std::replace(field.begin(), field.end(), '/', '.');
    const Json::json_pointer at(change.at("path").get<std::string>());
    fail("rank {} has another configuration than rank 0: {} = {} here, {} there; give all ranks the same", rank(),
         field.starts_with("config.") ? field.substr(7) : field, own.contains(at) ? own[at].dump() : "unset",
         others.contains(at) ? others[at].dump() : "unset");
  }
}

void Processes::connect(const JobConfig& config, c10::Device device) {
  mesh_ = std::make_unique<parallel::Mesh>(config.parallelism, world());
  if (!many()) return;
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  const comm::Activity activity(*watch_, "opening communicators");
  host_ = std::make_unique<comm::Communicator>(*watch_, "host", mesh_->ranks(rank(), "world"), c10::Device(c10::kCPU));
  parallel::DataParallelOptions options;
  options.device = device;
  options.reduce = config.training.mixed_precision_reduce == "bfloat16" ? at::kBFloat16 : at::kFloat;
  options.reshard = parallel::reshards(config.parallelism);
  axes_ = std::make_unique<parallel::Axes>(*watch_, *mesh_, config.parallelism, options);
  log_info("Mesh: {} ranks, {} on this host; {}", world(), on_host_, axes_->text());
  if (!device.is_cpu() && !config.training.disable_cuda_graphs)
    log_info("CUDA graphs are off: the watchdog cannot see captured collectives");
}

std::map<std::string, int64_t> Processes::degrees() const {
  std::map<std::string, int64_t> degrees;
  for (const auto& [axis, size] : mesh_->view("degrees")) degrees.emplace(axis, size);
  return degrees;
}

CheckpointRanks Processes::checkpoint_ranks() {
  CheckpointRanks ranks;
  if (!many()) return ranks;
  ranks.rank = rank(), ranks.world = world();
  ranks.place = [this](std::string_view axis) { return std::pair(mesh_->coordinate(rank(), axis), mesh_->size(axis)); };
  ranks.mesh = degrees();
  ranks.agree = [this](int64_t value) { return of_first(value); };
  ranks.all = [this](bool value) { return all(value); };
  ranks.said = [this](const std::string& own) { return texts(own); };
  ranks.ending = [this] { return watch_->ending(); };
  ranks.silent = [this](const std::vector<int64_t>& others) { return watch_->silent(others); };
  return ranks;
}

void Processes::first_step_is_done() {
  if (many()) watch_->set_timeout(std::chrono::seconds(comm_.train_timeout_seconds));
}

std::vector<Processes::Said> Processes::exchange(const Said& own) {
  std::vector<Said> said(static_cast<size_t>(world()), own);
  if (!many()) return said;
  const auto tensor = [](void* data, int64_t count) { return at::from_blob(data, {count}, at::TensorOptions().dtype(at::kDouble)); };
  Said mine = own;
  at::Tensor in = tensor(mine.data(), static_cast<int64_t>(mine.size())), out = tensor(said.data(), in.numel() * world());
  const Stopwatch watch;
  host_->all_gather(out, in).wait();
  last_wait_ = watch.seconds();
  return said;
}

int64_t Processes::of_first(int64_t value) { return std::bit_cast<int64_t>(exchange({std::bit_cast<double>(value)}).front()[0]); }

bool Processes::all(bool own) {
  const std::vector<Said> said = exchange({own ? 1.0 : 0.0});
  return std::all_of(said.begin(), said.end(), [](const Said& s) { return s[0] != 0; });
}

std::vector<std::string> Processes::texts(const std::string& own) {
  if (!many()) return {own};
  std::vector<std::string> all;
  size_t longest = 0;
  for (const Said& size : exchange({static_cast<double>(own.size())})) {
    all.emplace_back(static_cast<size_t>(size[0]), ' ');
    longest = std::max(longest, all.back().size());
  }
  if (longest == 0) return all;
  std::string mine = own, whole(longest * all.size(), ' ');
  mine.resize(longest);
  const auto tensor = [](std::string& text) { return at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte); };
  at::Tensor in = tensor(mine), out = tensor(whole);
  host_->all_gather(out, in).wait();
  for (size_t r = 0; r < all.size(); ++r) all[r] = whole.substr(r * longest, all[r].size());
  return all;
}

std::vector<std::string> Processes::of_stages(const std::string& own) {
  const std::vector<int64_t> stages = many() ? mesh_->ranks(0, "pp") : std::vector<int64_t>{0};
  std::vector<std::string> said = {own};
  if (stages.size() == 1 || std::find(stages.begin(), stages.end(), rank()) == stages.end()) return said;
  const auto tensor = [](void* data, size_t bytes) { return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte); };
  if (!first()) {
    auto size = static_cast<int64_t>(own.size());
    host_->send(tensor(&size, sizeof size), 0).wait();
    if (size > 0) host_->send(tensor(said[0].data(), own.size()), 0).wait();
    return said;
  }
  for (size_t i = 1; i < stages.size(); ++i) {
    int64_t size = 0;
    at::Tensor announced = tensor(&size, sizeof size);
    host_->recv(announced, stages[i]).wait();
    std::string& text = said.emplace_back(static_cast<size_t>(size), ' ');
    at::Tensor received = tensor(text.data(), text.size());
    if (size > 0) host_->recv(received, stages[i]).wait();
  }
  return said;
}

void Processes::one_of_host_first(const std::function<void()>& prepare) {
  if (!many()) return prepare();
  if (first_of_host_) prepare();
  watch_->meet(fmt::format("prepared {}", ++preparations_), *watch_->everybody(), comm::Patience::unlimited);
  if (!first_of_host_) prepare();
}

}  // namespace halftone
