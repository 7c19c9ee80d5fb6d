#include "halftone/train/transfers.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace halftone {
namespace {

// Receive rate per rank for large tensors (the bus bandwidth of NVIDIA's nccl-tests). NVLink 4: between two H100s of one host, in steps
// with 30 MB to 1 GB per call; the same for all-gather, reduce-scatter and all-to-all, without NVLink multicast
// (docs/benchmarks/parallel.md). InfiniBand NDR, 400 Gb/s, with one network card per GPU: NCCL's authors expect 46 to 48 GB/s.
constexpr double kNvLink = 230e9, kInfiniBand = 45e9;
// A hop of a ring, in seconds (hwLat of NCCL's tuning.cc, protocol Simple).
constexpr double kNvLinkHop = 3.4e-6, kInfiniBandHop = 14e-6;
// Collectives occupy SMs that GEMMs would use, and delay their tiles: factor by which work slows for each second of hidden communication.
// From FSDP steps of 6 to 32 layers on two and four H100s (docs/benchmarks/parallel.md, scaling.md); slower networks occupy fewer SMs.
constexpr double kSlower = 0.45;
// The GPU idles while the host reads the received row counts and launches the next kernels.
constexpr double kCountsMs = 0.8;

int64_t on_first_node(const std::vector<int64_t>& ranks) {
  return std::count_if(ranks.begin(), ranks.end(), [&](int64_t r) { return r / kGpusOfNode == ranks.front() / kGpusOfNode; });
}

}  // namespace

Link link_of(const std::vector<int64_t>& ranks) {
  const int64_t here = on_first_node(ranks);
  if (here == static_cast<int64_t>(ranks.size())) return {"NVLink", kNvLink};
  // Rings through a node use the network cards of all its GPUs in the group.
  return {"InfiniBand", std::min(kNvLink, kInfiniBand * static_cast<double>(here))};
}

double transfer_seconds(const std::vector<int64_t>& ranks, std::string_view collective, double bytes) {
  const auto n = static_cast<double>(ranks.size()), here = static_cast<double>(on_first_node(ranks));
  if (n == 1 || collective == "send") return 0;
  const bool leaves = here < n;
  const double hop = leaves ? kInfiniBandHop : kNvLinkHop;
  if (collective == "recv") return bytes / (leaves ? kInfiniBand : kNvLink) + hop;
  if (collective == "all-to-all") {  // each rank's share to each
    const double out = bytes * (n - here) / (n - 1), inside = bytes - out;
    return std::max(out / kInfiniBand, inside / kNvLink) + hop;
  }
  const double nodes = std::ceil(n / here), rounds = collective == "all-reduce" ? 2 : 1;
  return bytes / link_of(ranks).rate + rounds * ((n - nodes) * kNvLinkHop + (leaves ? nodes - 1 : 0) * kInfiniBandHop);
}

Traffic& Transfers::row(const comm::Operation& o) {
  const auto found = std::ranges::find_if(
      traffic, [&](const Traffic& t) { return t.communicator == o.group->name && t.operation == o.what && t.dtype == o.dtype; });
  return found != traffic.end() ? *found : *traffic.insert(found, {o.group->name, o.what, o.dtype});
}

void Transfers::begin(comm::Operation& o) {
  Traffic& t = row(o);
  const auto ranks = static_cast<double>(o.group->ranks.size()), whole = static_cast<double>(o.bytes);
  const double bytes = o.what == "send"         ? 0
                       : o.what == "recv"       ? whole
                       : o.what == "all-reduce" ? 2 * whole * (ranks - 1) / ranks
                                                : whole * (ranks - 1) / ranks;
  const double seconds = transfer_seconds(o.group->ranks, o.what, bytes);
  ++t.calls, t.bytes += bytes, t.ms += 1e3 * seconds;
  o.number = ++number_;
  // The other ranks' steps are not known: the pipeline's messages arrive in time, and its bubble is counted apart.
  if (t.axis() != "pp") flights_.push_back({o.group.get(), o.number, seconds, link_of(o.group->ranks)});
}

void Transfers::end(const comm::Operation& o) {
  Traffic& t = row(o);
  t.exposed_ms += 1e3 * advance(std::numeric_limits<double>::infinity(), o.number);
  if (reads_counts && t.axis() == "ep" && t.dtype == "Int") t.exposed_ms += kCountsMs, advance(1e-3 * kCountsMs, 0);
}

void Transfers::work(double seconds) { advance(seconds, 0); }

double Transfers::advance(double seconds, int64_t operation) {
  const auto awaited = [&] { return std::ranges::any_of(flights_, [&](const Flight& f) { return f.number == operation; }); };
  double passed = 0;
  while (passed < seconds && !flights_.empty() && (operation == 0 || awaited())) {
    std::vector<Flight*> heads;  // of the communicators
    for (Flight& f : flights_)
      if (std::ranges::none_of(heads, [&](const Flight* h) { return h->group == f.group; })) heads.push_back(&f);
    const auto sharing = [&](const Flight& f) {
      return static_cast<double>(std::ranges::count_if(heads, [&](const Flight* h) { return h->link.name == f.link.name; }));
    };
    double step = seconds - passed;
    for (const Flight* h : heads) step = std::min(step, h->left * sharing(*h));
    for (Flight* h : heads) {
      h->left -= step / sharing(*h);
      if (operation == 0) slower_ms += 1e3 * kSlower * step / sharing(*h) * h->link.rate / kNvLink;
    }
    passed += step;
    std::erase_if(flights_, [](const Flight& f) { return f.left < 1e-12; });
  }
  return passed;
}

}  // namespace halftone
