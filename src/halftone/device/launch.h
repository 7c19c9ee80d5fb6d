#pragma once
#include <cstdint>

// Calling convention of the functions that halftone_cuda.so exports: C linkage, plain structs, errors as text, so that the
// program that loads them shares no C++ runtime state with them.
//   extern "C" const char* halftone_cuda_<kernel>(const <Struct>* what, void* stream);
// `stream` is a cudaStream_t of the current device; pointers in the struct are device pointers unless stated otherwise. The call
// enqueues the work and does not wait. Returns null, or why nothing was enqueued (static text).
#define HALFTONE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace halftone::device {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace halftone::device
