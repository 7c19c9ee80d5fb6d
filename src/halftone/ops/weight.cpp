#include "halftone/ops/weight.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include "halftone/ops/range.h"

namespace halftone {

void GradientBuffer::hold() {
  c10::StorageImpl& storage = *flat_.storage().unsafeGetStorageImpl();
  if (storage.data() != nullptr || storage.nbytes() == 0) return;
  const Owner owner("gradients");
  const c10::DeviceGuard guard(flat_.device());
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
  for (const auto& [first, count] : gaps_) flat_.narrow(0, first, count).zero_();
}

void GradientBuffer::release() { flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, flat_.device())); }

}  // namespace halftone
