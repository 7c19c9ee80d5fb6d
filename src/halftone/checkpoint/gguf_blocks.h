#pragma once
#include <cstdint>

#include "halftone/checkpoint/gguf_file.h"

// The blocks of ggml's types (ggml-common.h). No torch here.
//   q8_0   fp16 scale, 32 int8                        value = code * scale
//   q4_0   fp16 scale, 32 codes 0..15                 value = (code - 8) * scale
//   mxfp4  e8m0 scale, 32 e2m1
//   nvfp4  4 e4m3 scales, one per 16 elements, 64 e2m1; the tensor's fp32 factor is a tensor of its own, NAME.scale
// 4-bit codes of a scale's n elements: element i is the low nibble of byte i, element i + n/2 the high one. (q4_0, mxfp4: n = 32.)
namespace halftone {

// Elements that share a scale: 32, or 16 in nvfp4.
int64_t gguf_scale_block(GgufType type);

// Packs `count` codes, one a byte (integers in two's complement), and a scale for every gguf_scale_block elements: fp16 bits or a byte.
// `count` is a multiple of the type's block; q4_0 takes int4 codes, -8 to 7.
void gguf_pack(GgufType type, const uint8_t* codes, const uint16_t* scales, int64_t count, uint8_t* out);

// Quantises `count` numbers to q8_0 or q4_0 with the codes of ggml's reference quantisers. False if a scale exceeds the range of fp16.
bool gguf_quantize(GgufType type, const float* x, int64_t count, uint8_t* out);

// The numbers that the bytes of a type with codes stand for, without nvfp4's factor.
void gguf_decode(GgufType type, const uint8_t* bytes, int64_t count, float* out);

// Nearest fp16, ties to even, and its value.
uint16_t fp16_bits(float x);
float fp16_value(uint16_t bits);

}  // namespace halftone
