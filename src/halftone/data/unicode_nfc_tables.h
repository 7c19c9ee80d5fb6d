#pragma once
#include <cstddef>
#include <cstdint>

namespace halftone::nfc_tables {

// Canonical decompositions except those of Hangul syllables, sorted; second is 0 for singletons. `composes`: the pair composes back to
// the character in NFC.
struct Decomposition {
  uint32_t character, first, second;
  uint8_t composes;
};
extern const Decomposition kDecompositions[];
extern const size_t kDecompositionCount;

// Code points first..last with a canonical combining class other than 0, sorted.
struct ClassRange {
  uint32_t first, last;
  uint8_t combining_class;
};
extern const ClassRange kClasses[];
extern const size_t kClassCount;

}  // namespace halftone::nfc_tables
