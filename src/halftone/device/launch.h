#pragma once
#include <cstdint>

// What the functions that halftone_cuda.so exports look like: C linkage, plain structs, and an error as text, so that the
// program that loads them shares no C++ runtime state with them.
//   extern "C" const char* halftone_cuda_<kernel>(const <Struct>* what, void* stream);
// `stream` is a cudaStream_t of the current device; pointers in the struct are device pointers unless said otherwise. The
// work is queued, not waited for. Returns null, or why nothing was queued (static text).
#define HALFTONE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace halftone::device {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace halftone::device
