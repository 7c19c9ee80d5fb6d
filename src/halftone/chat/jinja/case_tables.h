#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace halftone::jinja {

// Code points first, first + step, ..., last from U+0080 on, and what is added for the other case; sorted.
struct CaseRange {
  uint32_t first, last, step;
  int32_t delta;
};
extern const CaseRange kToLower[], kToUpper[];
extern const size_t kToLowerCount, kToUpperCount;
// Code points with several letters in the other case, with a title case of their own, or whose case depends on the neighbours.
extern const CaseRange kSpecialCase[];
extern const size_t kSpecialCaseCount;

}  // namespace halftone::jinja
