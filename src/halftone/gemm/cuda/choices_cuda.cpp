#include "halftone/gemm/cuda/choices.h"

#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "halftone/gemm/product_cuda.h"

namespace halftone::gemm {
namespace {

using Key = std::pair<uint64_t, std::array<uint8_t, 96>>;
struct Choices {
  std::mutex mutex;
  std::map<Key, std::array<uint8_t, 64>> recalled;
  std::vector<ProductChoice> made;
  std::atomic<int64_t> made_count = 0;
};
Choices& choices() {
  static Choices it;
  return it;
}

}  // namespace

bool find_choice(ProductChoice& owner_and_key) {
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  const auto it = all.recalled.find({owner_and_key.owner, owner_and_key.key});
  if (it == all.recalled.end()) return false;
  owner_and_key.value = it->second;
  return true;
}

void note_choice(const ProductChoice& made) {
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  all.made.push_back(made);
  ++all.made_count;
}

}  // namespace halftone::gemm

void halftone_cuda_recall_choices(const halftone::gemm::ProductChoice* from, int64_t count) {
  auto& all = halftone::gemm::choices();
  const std::lock_guard lock(all.mutex);
  for (int64_t i = 0; i < count; ++i) all.recalled.insert_or_assign({from[i].owner, from[i].key}, from[i].value);
}

int64_t halftone_cuda_made_choices(halftone::gemm::ProductChoice* to, int64_t room) {
  auto& all = halftone::gemm::choices();
  if (room <= 0) return all.made_count;
  const std::lock_guard lock(all.mutex);
  std::copy_n(all.made.begin(), std::min<int64_t>(room, all.made_count), to);
  return all.made_count;
}

int64_t halftone_cuda_library_version() { return static_cast<int64_t>(cublasLtGetVersion()); }
