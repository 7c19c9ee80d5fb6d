// Time and bandwidth of quantize_operand on the CPU, for every kind of operand of the recipes:
//   bench_quantize_bench [ROWS COLS [NAME]]     those whose name contains NAME, or all; OMP_NUM_THREADS and HALFTONE_ISA choose the threads
//   and the instruction set
// GB/s counts the bytes that a scheme needs: one read of the matrix, and what it writes (an amax pass that a tensor or row
// scale needs is a second read, counted). The last column is the share of a copy of the same number of bytes in this run.
#include <chrono>
#include <cstdlib>
#include <functional>

#include "halftone/base/parallel.h"
#include "halftone/quantize/operand.h"
#include "quantize/operand_cases.h"

using namespace halftone;
using namespace halftone::testing;

namespace {

double best_seconds(const std::function<void()>& f) {
  double best = 1e9, spent = 0;
  for (int i = 0; i < 200 && (i < 4 || spent < 0.3); ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (i > 0) best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

// Bytes a second that a parallel copy reads and writes.
double copy_rate(int64_t bytes) {
  std::vector<char> a(static_cast<size_t>(bytes), 1), b(a);
  const double seconds = best_seconds([&] {
    parallel_for(bytes, 1 << 16,
                 [&](int64_t begin, int64_t end) { std::memcpy(b.data() + begin, a.data() + begin, static_cast<size_t>(end - begin)); });
  });
  return 2 * static_cast<double>(bytes) / seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rows = argc > 2 ? std::atoll(argv[1]) : 4096, cols = argc > 2 ? std::atoll(argv[2]) : 4096;
  const std::string only = argc > 3 ? argv[3] : "";
  const auto x = elements(values(Fill::normal, rows, cols), DType::bf16);
  const double copy = copy_rate(rows * cols);
  fmt::print("{} x {} bf16, {} threads, {}; a copy moves {:.1f} GB/s\n", rows, cols, max_threads(), name(best_isa()), copy / 1e9);
  fmt::print("{:<34} {:<11} {:>8} {:>8} {:>9} {:>8}\n", "operand", "copies", "SR", "ms", "GB/s", "of copy");
  for (const NamedSpec& named : operand_specs()) {
    if (named.name.find(only) == std::string::npos) continue;
    for (const bool stochastic : {false, true}) {
      for (const int copies : {1, 2, 3}) {
        if (named.rotates && copies != 2) continue;
        QuantizeOperand p;
        p.x = x.data(), p.rows = rows, p.cols = cols, p.ld = cols;
        p.want_row = (copies & 1) != 0, p.want_transposed = (copies & 2) != 0;
        double bytes = 2.0 * static_cast<double>(rows * cols);
        const OperandSpec& s = named.spec;
        if (s.granularity == Granularity::tensor || s.granularity == Granularity::row || s.two_level == TwoLevel::tensor) bytes *= 2;
        for (QuantizedCopy* c : {&p.row, &p.transposed}) c->spec = s, c->spec.stochastic = stochastic;
        CopyBuffers row(p.row, rows, cols), transposed(p.transposed, cols, rows);
        for (QuantizedCopy* c : {&p.row, &p.transposed}) {
          c->packed = nullptr;
          if (c == &p.row ? p.want_row : p.want_transposed)
            bytes += static_cast<double>(row.codes.size() + row.scales.size() + row.macro.size());
        }
        const double seconds = best_seconds([&] { quantize_operand(p); });
        fmt::print("{:<34} {:<11} {:>8} {:>8.3f} {:>9.1f} {:>7.0f}%\n", named.name,
                   copies == 1   ? "row"
                   : copies == 2 ? "transposed"
                                 : "both",
                   stochastic ? "yes" : "", seconds * 1e3, bytes / seconds / 1e9, 100 * bytes / seconds / copy);
      }
    }
  }
}
