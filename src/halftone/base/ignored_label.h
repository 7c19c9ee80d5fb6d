#pragma once
#include <cstdint>

namespace halftone {

inline constexpr int64_t kIgnoredLabel = -100;  // the loss leaves out positions with this label (PyTorch's ignore_index)

}  // namespace halftone
