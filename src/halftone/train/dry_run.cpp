#include "halftone/train/dry_run.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/host_memory.h"
#include "halftone/ops/range.h"

namespace halftone {
namespace {

thread_local DryRun* running = nullptr;

constexpr uintptr_t kAlignment = 512;
constexpr int64_t kLibraryWorkspace = 32 * (1 << 20);  // gemm/cuda/product_cuda.cpp
constexpr int64_t kParts = 1024;                       // blocks with partial sums (fused/rms_norm.cu, fused/norm_rope.cu)

template <class P>
const char* note(const P*, void*) {
  return nullptr;
}

template <Work work, class P>
const char* timed(const P* p, void*) {
  if (running->rates != nullptr) running->spent(work, seconds(*p, *running->rates));
  return nullptr;
}
template <Work work, class P>
const char* timed_sum(const P* p, float*, void*) {
  return timed<work>(p, nullptr);
}

const char* note_product(const gemm::Product* p, void*) {
  running->worked(2.0 * static_cast<double>(p->m) * static_cast<double>(p->n) * static_cast<double>(p->k));
  return timed<Work::products>(p, nullptr);
}

const cuda::Module& noting_module() {
  static const cuda::Module module = [] {
    cuda::Module m;
    m.quantize_operand = [](const QuantizeOperand* q, void*, size_t, void*) { return timed<Work::quantisers>(q, nullptr); };
    m.quantize_workspace = [](const QuantizeOperand* q) {
      return static_cast<size_t>(8 * (q->rows + q->cols * std::max<int64_t>(1, q->groups.groups)));
    };
    m.product = note_product, m.product_workspace = [](const gemm::Product*) { return kLibraryWorkspace; };
    m.grouped_product = [](const gemm::GroupedProduct* p, void*) -> const char* {
      const double rows = static_cast<double>(p->rows);
      running->worked(2 * rows * static_cast<double>(p->ragged == gemm::Ragged::rows ? p->n * p->k : p->m * p->n));
      return timed<Work::products>(p, nullptr);
    };
    m.grouped_product_workspace = [](const gemm::GroupedProduct*) { return int64_t{1 << 20}; };
    m.recall_choices = [](const gemm::ProductChoice*, int64_t) {};
    m.made_choices = [](gemm::ProductChoice*, int64_t) { return int64_t{0}; };
    m.library_version = [] { return int64_t{0}; };
    m.decode = note, m.dge_slopes = note, m.store_weight = note, m.judge_step = note, m.random_fill = note, m.place_experts = note;
    m.optimizer_step = [](const OptimizerStep* p, void*) -> const char* {
      if (running->rates != nullptr) running->spent(Work::optimizer, optimizer_seconds(*p, *running->rates, running->host > 0));
      return nullptr;
    };
    m.partial_squares = timed<Work::norm>;
    m.rms_norm_forward = timed<Work::elementwise>, m.rms_norm_backward = timed_sum<Work::elementwise>;
    m.swiglu_forward = timed<Work::elementwise>, m.swiglu_backward = timed<Work::elementwise>;
    m.norm_rope_backward = timed_sum<Work::elementwise>;
    m.rms_norm_partial = m.norm_rope_partial = [](int64_t columns) { return columns * kParts; };
    m.gather_rows = timed<Work::elementwise>, m.combine_rows = timed<Work::elementwise>, m.group_bias = note, m.group_sums = note;
    m.clamped_swiglu = timed<Work::elementwise>, m.clamped_swiglu_backward = timed<Work::elementwise>;
    m.rope = timed<Work::elementwise>, m.norm_rope = timed<Work::elementwise>;
    m.cross_entropy = timed<Work::head>;
    m.capture_id = [](void*) { return uint64_t{0}; };
    m.lock_memory = [](void*, size_t) -> const char* { return nullptr; };
    m.unlock_memory = [](void*) {};
    return m;
  }();
  return module;
}

}  // namespace

void note_attention(int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t d, int64_t v_dim, int64_t window, bool causal,
                    bool forward, bool cudnn) {
  const auto all = static_cast<double>(keys), seen = static_cast<double>(window);
  const double of_query = window > 0 && window < keys ? seen - seen * seen / (2 * all) : all / (causal ? 2 : 1);
  const auto channels = static_cast<double>(forward ? d + v_dim : 3 * d + 2 * v_dim);
  const double flops = 2 * static_cast<double>(batch * heads * queries) * of_query * channels;
  running->worked(flops);
  if (running->rates != nullptr) running->spent(Work::attention, attention_seconds(flops, cudnn, d, v_dim, forward));
}

struct DryRun::Block {
  DryRun* run;
  int64_t bytes, range;
  int owner;
  size_t peak;
};

// The enclosing range and owner, of which one returns when a range ends.
struct DryRun::Scopes : at::ObserverContext {
  int64_t range;
  std::string name;
  int owner;
  size_t peak;
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& f) {
    DryRun& d = *running;
    auto outer = std::make_unique<Scopes>();
    outer->range = d.range_, outer->owner = d.owner_, outer->name = d.range_name_, outer->peak = d.peak_;
    const std::string_view name = f.name();
    if (name.starts_with(Owner::kPrefix)) {
      const std::string_view owner = name.substr(Owner::kPrefix.size());
      const auto at = std::find(d.owners_.begin() + 1, d.owners_.end(), owner) - d.owners_.begin();
      if (at == std::ssize(d.owners_)) d.owners_.emplace_back(owner), d.of_owners_.push_back(0);
      d.owner_ = static_cast<int>(at);
    } else if (name.find(" on ") == std::string_view::npos && d.owner_ == 0 && d.range_ == 0) {
      d.range_ = ++d.ranges_, d.range_name_ = name, d.in_range_ = 0;
      const auto at = std::find_if(d.peaks.begin(), d.peaks.end(), [&](const Peak& p) { return p.range == name; });
      d.peak_ = static_cast<size_t>(at - d.peaks.begin());
      if (at == d.peaks.end()) d.peaks.push_back({std::string(name), 0, {}});
      if (name.ends_with(" backward"))
        for (Peak& p : d.peaks) p.kept = std::max(p.kept, p.live);
      d.peaks[d.peak_].run = d.range_, d.peaks[d.peak_].live = 0;
      d.moved(0, 0, 0);
    }
    return outer;
  }
  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    DryRun& d = *running;
    auto& outer = static_cast<Scopes&>(*context);
    if (d.range_ != outer.range) d.in_range_ = 0;
    d.range_ = outer.range, d.owner_ = outer.owner, d.range_name_ = std::move(outer.name), d.peak_ = outer.peak;
  }
};

DryRun::DryRun(Hardware hardware, const GpuRates* rates)
    : peaks{{"model", 0, {}}},
      rates(rates),
      outer_(std::exchange(running, this)),
      device_(std::make_unique<SimulatedDevice>(hardware, noting_module())),
      before_(c10::GetAllocator(c10::kMeta)) {
  add_meta_functions();
  c10::SetAllocator(c10::kMeta, this, 100);
  if (outer_ != nullptr) return;  // whose callback serves this one too
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Scopes::begin, &Scopes::end).scopes({at::RecordScope::USER_SCOPE}));
}

DryRun::~DryRun() {
  if (outer_ == nullptr) at::removeCallback(callback_);
  c10::SetAllocator(c10::kMeta, before_, 100);
  running = outer_;
}

void DryRun::restart() { peaks.assign(1, {"model", 0, {}}), peak_ = 0, seconds = {}, transfers.restart(); }

void DryRun::spent(Work work, double time) {
  if (work == Work::products && peaks[peak_].range == "head") work = Work::head;
  seconds[static_cast<size_t>(work)] += time;
  transfers.work(time);
}

c10::DataPtr DryRun::allocate(size_t size) {
  const auto bytes = static_cast<int64_t>(size);
  auto* block = new Block{this, bytes, range_, owner_, peak_};
  moved(owner_, range_, bytes), count(*block, bytes);
  // An address that nothing reads: kernels tell wanted outputs by it.
  return {reinterpret_cast<void*>(std::exchange(next_, next_ + (size / kAlignment + 1) * kAlignment)), block, &DryRun::free,
          c10::Device(c10::kMeta)};
}

c10::DeleterFnPtr DryRun::raw_deleter() const { return nullptr; }

void DryRun::free(void* memory) {
  const std::unique_ptr<Block> block(static_cast<Block*>(memory));
  block->run->moved(block->owner, block->range, -block->bytes), block->run->count(*block, -block->bytes);
}

void DryRun::count(const Block& block, int64_t bytes) {
  if (block.owner == 0 && block.peak < peaks.size() && peaks[block.peak].run == block.range) peaks[block.peak].live += bytes;
}

void DryRun::moved(int owner, int64_t range, int64_t bytes) {
  of_owners_[static_cast<size_t>(owner)] += bytes;
  if (owners_[static_cast<size_t>(owner)] == kHostMemory) return void(host += bytes);
  live += bytes;
  if (owner == 0 && range == range_) in_range_ += bytes;
  Peak& peak = peaks[peak_];
  if (live <= peak.bytes) return;
  peak.bytes = live, peak.owners.clear();
  for (size_t i = 1; i < owners_.size(); ++i) {
    if (owners_[i] != kHostMemory) peak.owners[owners_[i]] = of_owners_[i];
  }
  peak.owners["activations kept for backward"] = of_owners_[0] - in_range_, peak.owners["at work"] = in_range_;
}

}  // namespace halftone
