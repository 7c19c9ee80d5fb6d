#include "halftone/quantize/operand_stats.h"

#include "halftone/formats/pairwise_sum.h"

namespace halftone::quantize {
namespace {

int64_t row_grain(const Source& s) { return std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(1, s.cols)); }

uint32_t bits_of_element(float x) { return std::bit_cast<uint32_t>(x); }
uint32_t bits_of_element(bf16 x) { return static_cast<uint32_t>(x.bits) << 16; }

// One row; separate loops over plain arrays, which the compiler vectorises.
template <class T>
void signed_row(const T* x, int64_t n, uint32_t* row, uint32_t* __restrict__ pos, uint32_t* __restrict__ neg) {
  uint32_t p = 0, q = 0;
  for (int64_t c = 0; c < n; ++c) {
    const uint32_t bits = bits_of_element(x[c]), a = bits & 0x7FFFFFFFu,
                   below = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) & a;
    p = std::max(p, a - below), q = std::max(q, below);
    pos[c] = std::max(pos[c], a - below), neg[c] = std::max(neg[c], below);
  }
  row[0] = p, row[1] = q;
}

constexpr int64_t kPiece = 4096;  // elements per leaf of the sum; a power of two

double piece_sum(const Source& s, int64_t first, int64_t last) {
  static thread_local std::vector<double> buffer;
  double* a = scratch(buffer, kPiece);
  int64_t at = 0;
  for (int64_t i = first; i < last;) {
    const int64_t r = i / s.cols, c = i % s.cols, n = std::min(last - i, s.cols - c);
    typed(s.row(r, c), s.type, [&](const auto* x) {
      for (int64_t j = 0; j < n; ++j) a[at + j] = std::bit_cast<float>(bits_of_element(x[j]) & 0x7FFFFFFFu);
    });
    at += n, i += n;
  }
  for (; at < kPiece; ++at) a[at] = 0;
  for (int64_t n = kPiece / 2; n > 0; n /= 2)
    for (int64_t i = 0; i < n; ++i) a[i] = a[2 * i] + a[2 * i + 1];
  return a[0];
}

}  // namespace

SignedStats signed_amax(const Source& s) {
  SignedStats out;
  out.row_pos.resize(static_cast<size_t>(s.rows)), out.row_neg = out.row_pos;
  const auto width = static_cast<size_t>(s.cols), slots = static_cast<size_t>(max_threads());
  std::vector<uint32_t> partial(2 * slots * width);
  std::atomic<size_t> used = 0;
  parallel_for(s.rows, row_grain(s), [&](int64_t begin, int64_t end) {
    uint32_t *pos = partial.data() + 2 * width * used.fetch_add(1), *neg = pos + width;
    for (int64_t r = begin; r < end; ++r) {
      uint32_t row[2];
      typed(s.row(r), s.type, [&](const auto* x) { signed_row(x, s.cols, row, pos, neg); });
      out.row_pos[static_cast<size_t>(r)] = row[0], out.row_neg[static_cast<size_t>(r)] = row[1];
    }
  });
  for (const uint32_t a : out.row_pos) out.pos = std::max(out.pos, a);
  for (const uint32_t a : out.row_neg) out.neg = std::max(out.neg, a);
  out.column_pos.assign(width, 0), out.column_neg.assign(width, 0);
  for (size_t i = 0; i < slots; ++i) {
    for (size_t c = 0; c < width; ++c) {
      out.column_pos[c] = std::max(out.column_pos[c], partial[2 * i * width + c]);
      out.column_neg[c] = std::max(out.column_neg[c], partial[(2 * i + 1) * width + c]);
    }
  }
  return out;
}

DrawTile draw_tile(const OperandKernels& k, const Rounding& how, int64_t cols, int64_t r0, int64_t c0, int64_t rows, int64_t width,
                   uint16_t* out) {
  const int64_t length = how.row_length == 0 ? cols : how.row_length, ld = round_up(width, 8) + 8, slack = how.index(r0, c0, cols) & 7;
  const bool aligned = length % 8 == 0;  // then all rows have the same slack
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = how.index(r0 + r, c0, cols), at = i & 7;
    uint16_t* row = out + r * ld;
    k.draw16(how.key, how.step, how.micro, i >> 3, ceil_div(at + width, 8), row);
    if (!aligned && at != slack) std::memmove(row + slack, row + at, static_cast<size_t>(width) * sizeof(uint16_t));
  }
  return {out + slack, ld};
}

double absolute_sum(const Source& s) {
  const int64_t n = s.rows * s.cols, pieces = ceil_div(n, kPiece);
  std::vector<double> sums(static_cast<size_t>(pieces));
  parallel_for(pieces, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(i)] = piece_sum(s, i * kPiece, std::min(n, (i + 1) * kPiece));
  });
  return pairwise_sum(pieces, [&](int64_t i) { return sums[static_cast<size_t>(i)]; });
}

}  // namespace halftone::quantize
