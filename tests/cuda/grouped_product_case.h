#pragma once
#include <numeric>
#include <string>

#include "cuda/product_case.h"
#include "halftone/gemm/grouped_product.h"

namespace halftone::gemm {

// Rows of the buffer on the host and on the device: `counts` rows per group, and `spare` rows after the last group.
struct TestGroups {
  TestGroups(const std::vector<int>& counts, int spare) {
    offsets.push_back(0);
    for (const int n : counts) {
      ends.push_back(offsets.back() + n);
      offsets.push_back(offsets.back() + (n + 127) / 128 * 128);
    }
    rows = offsets.back() + spare;
    offset_memory = Device(offsets), end_memory = Device(ends);
    groups = {static_cast<int64_t>(counts.size()), offset_memory.get<int32_t>(), end_memory.get<int32_t>()};
    for (int64_t g = 0; g < groups.groups; ++g)
      of_row.resize(static_cast<size_t>(offsets[static_cast<size_t>(g) + 1]), static_cast<int>(g));
    of_row.resize(static_cast<size_t>(rows), static_cast<int>(groups.groups));
  }
  bool padding(int64_t row) const {
    const int g = of_row[static_cast<size_t>(row)];
    return g < groups.groups && row >= ends[static_cast<size_t>(g)];
  }
  bool behind(int64_t row) const { return row >= offsets.back(); }
  std::vector<int32_t> offsets, ends;
  std::vector<int> of_row;
  int64_t rows = 0;
  Device offset_memory, end_memory;
  RowGroups groups;
};

// Layout of an operand: its rows are those of the buffer, every group has its own matrix, or the groups lie along the contraction.
enum class Meets { rows, copies, columns };

// An operand on the device, and its dequantised values: [copies, rows, k]. Padding is zero, rows after the groups are NaN.
struct GroupedTestOperand {
  int64_t rows = 0, k = 0;
  std::vector<double> values;
  Device data, scale_memory, outer_memory, macro_memory;
  GroupedOperand operand;
};

inline GroupedTestOperand make_grouped(const OperandKind& kind, Meets meets, const TestGroups& groups, int64_t rows, int64_t k,
                                       uint64_t seed) {
  GroupedTestOperand t;
  t.rows = rows, t.k = k;
  const int64_t count = groups.groups.groups, copies = meets == Meets::copies ? count : 1;
  const int64_t blocks = (k + 127) / 128, row_tiles = (rows + 127) / 128;
  const PhiloxKey key = philox_key(seed, "values");
  const int64_t row_scales = meets == Meets::rows ? rows : count * rows;
  const int64_t counts[] = {0, count, row_scales, copies * rows * blocks, copies * row_tiles * blocks};
  const std::vector<float> scales = factors(counts[static_cast<int>(kind.scales)], seed);
  const std::vector<float> outer = factors(count, seed + 100);
  const int64_t macro_rows = kind.macro_tiles ? row_tiles : rows;
  std::vector<uint8_t> macro(static_cast<size_t>(kind.macro ? copies * macro_rows * blocks : 0));
  for (size_t i = 0; i < macro.size(); ++i) macro[i] = static_cast<uint8_t>(philox(key, i, 1)[0]);
  const size_t element = kind.numbers == Numbers::f32 ? 4 : kind.numbers == Numbers::bf16 ? 2 : 1;
  std::vector<uint8_t> bytes(static_cast<size_t>(copies * rows * k) * element);
  t.values.resize(static_cast<size_t>(copies * rows * k));
  parallel_for(copies * rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * k; i < end * k; ++i) {
      const int64_t copy = i / (rows * k), r = i / k % rows, c = i % k, b = c / 128;
      const int64_t of_buffer = meets == Meets::rows ? r : meets == Meets::columns ? c : -1;
      const bool zero = of_buffer >= 0 && groups.padding(of_buffer), nan = of_buffer >= 0 && groups.behind(of_buffer);
      const float x = zero ? 0 : nan ? std::numeric_limits<float>::quiet_NaN() : normal(key, static_cast<uint64_t>(i));
      uint8_t* at = &bytes[static_cast<size_t>(kind.transposed ? copy * rows * k + c * rows + r : i) * element];
      double v = write_number(kind.numbers, x, at);
      if (!nan) {
        const int64_t g = meets == Meets::copies ? copy : groups.of_row[static_cast<size_t>(of_buffer)];
        const int64_t at_scale[] = {0, g, meets == Meets::rows ? r : g * rows + r, (copy * rows + r) * blocks + b,
                                    (copy * row_tiles + r / 128) * blocks + b};
        if (kind.scales != Scales::none) v *= scales[static_cast<size_t>(at_scale[static_cast<int>(kind.scales)])];
        if (kind.outer) v *= outer[static_cast<size_t>(g)];
        if (kind.macro) {
          const uint8_t byte = macro[static_cast<size_t>((copy * macro_rows + (kind.macro_tiles ? r / 128 : r)) * blocks + b)];
          v /= std::bit_cast<float>((static_cast<uint32_t>(byte) << 15) + 0x3F800000u);
        }
      }
      t.values[static_cast<size_t>(i)] = v;
    }
  });
  t.data = Device(bytes), t.scale_memory = Device(scales);
  GroupedOperand& x = t.operand;
  x.numbers = kind.numbers, x.transposed = kind.transposed, x.data = t.data.get();
  x.scales = kind.scales, x.scale = t.scale_memory.get<float>();
  if (meets == Meets::copies) {
    x.stride = rows * k;
    x.scale_stride = (kind.scales == Scales::block128 ? rows : row_tiles) * blocks;
  }
  if (kind.outer) t.outer_memory = Device(outer), x.outer = t.outer_memory.get<float>();
  if (kind.macro) t.macro_memory = Device(macro), x.macro = t.macro_memory.get<uint8_t>(), x.macro_tiles = kind.macro_tiles;
  return t;
}

}  // namespace halftone::gemm
