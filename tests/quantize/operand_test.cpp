#include "halftone/quantize/operand.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "halftone/quantize/operand_ref.h"
#include "quantize/operand_cases.h"

namespace halftone {
namespace {

using namespace testing;

// First difference between two runs of the same request; empty if there is none.
std::string difference(CopyBuffers& a, CopyBuffers& b) {
  const auto x = a.all(), y = b.all();
  for (size_t i = 0; i < x.size(); ++i) {
    const auto *p = x[i].second->data(), *q = y[i].second->data();
    for (int64_t j = 0; j < x[i].second->size(); ++j) {
      if (p[j] == q[j]) continue;
      return fmt::format("{} byte {}: {:02x} against {:02x}", x[i].first, j, static_cast<int>(p[j]), static_cast<int>(q[j]));
    }
    if (!x[i].second->guard_intact()) return fmt::format("{} written beyond its end", x[i].first);
  }
  return {};
}

struct Case {
  NamedSpec named;
  Shape shape;
  Fill fill;
  DType type;
  ValueForm form;
  bool stochastic, row, transposed;
  int64_t length = 0;
  std::string what() const {
    return fmt::format("{}{}{}{} {}x{} fill {} type {} form {} length {}", named.name, stochastic ? ", stochastic" : "", row ? ", row" : "",
                       transposed ? ", transposed" : "", shape.rows, shape.cols, static_cast<int>(fill), static_cast<int>(type),
                       static_cast<int>(form), length);
  }
};

QuantizedCopy copy_of(const Case& c, bool transposed) {
  QuantizedCopy copy;
  copy.spec = c.named.spec;
  copy.spec.stochastic = c.stochastic && !c.named.spec.eden;
  copy.form = c.form;
  copy.length = c.length;
  copy.signs = RotationSigns({0xB5297A4Du, 0x68E31DA4u, 0x1B56C4E9u, 0x9C4A30F7u});
  copy.rounding.key = philox_key(1234, transposed && c.named.spec.granularity != Granularity::tile ? "w#dy.wgrad" : "w#dy.dgrad");
  copy.rounding.step = 7, copy.rounding.micro = 1, copy.rounding.first_row = 5, copy.rounding.first_column = 3;
  copy.rounding.row_length = c.shape.cols + 7;
  return copy;
}

void expect_reference(const Case& c) {
  const auto x = elements(values(c.fill, c.shape.rows, c.shape.cols + c.shape.pad), c.type);
  QuantizeOperand p;
  p.x = x.data(), p.type = c.type, p.rows = c.shape.rows, p.cols = c.shape.cols, p.ld = c.shape.cols + c.shape.pad;
  p.want_row = c.row, p.want_transposed = c.transposed;
  p.row = copy_of(c, false), p.transposed = copy_of(c, true);
  QuantizeOperand ref = p;
  CopyBuffers row(ref.row, p.rows, p.cols), transposed(ref.transposed, p.cols, p.rows);
  ref::quantize_operand(ref);
  for (const Isa isa : isas()) {
    CopyBuffers r(p.row, p.rows, p.cols), t(p.transposed, p.cols, p.rows);
    quantize_operand(p, isa);
    const std::string in_row = difference(r, row), in_transposed = difference(t, transposed);
    ASSERT_EQ(in_row, "") << name(isa) << " " << c.what();
    ASSERT_EQ(in_transposed, "") << name(isa) << " (transposed) " << c.what();
  }
}

const std::vector<Fill> kFills = {Fill::normal, Fill::zeros, Fill::tiny, Fill::spread, Fill::nan, Fill::inf, Fill::ties};

TEST(Operand, EveryKindEqualsTheReferenceOnEveryFill) {
  size_t n = 0;
  for (const NamedSpec& named : operand_specs()) {
    for (const Fill fill : kFills) {
      const auto forms = value_forms(named.spec);
      const Shape shape = n % 3 == 0 ? Shape{67, 142, 6} : Shape{131, 60, 0};
      expect_reference({named, shape, fill, n % 2 == 0 ? DType::bf16 : DType::f32, forms[n % forms.size()], n % 4 == 0, true, n % 5 != 0});
      if (HasFatalFailure()) return;
      ++n;
    }
  }
}

TEST(Operand, EveryKindAndFormOnEveryShape) {
  size_t n = 0;
  for (const NamedSpec& named : operand_specs()) {
    for (const Shape shape : kShapes) {
      auto forms = value_forms(named.spec);
      if (shape.rows * shape.cols > 10'000) forms = {forms[n % forms.size()]};
      for (const ValueForm form : forms) {
        const int64_t length = n % 3 == 1 ? round_up(std::max(shape.rows, shape.cols), 32) : 0;
        expect_reference({named, shape, n % 7 == 0 ? Fill::spread : Fill::normal, n % 2 == 0 ? DType::bf16 : DType::f32, form, n % 4 < 2,
                          n % 5 != 1, n % 5 != 2, length});
        if (HasFatalFailure()) return;
        ++n;
      }
    }
  }
}

// Panels of the codes, or of the bf16 values, of the ordinary transposed copy.
Buffer panels_of(const QuantizedCopy& copy, int64_t k, int64_t n) {
  const DType type = panel_type(copy.spec);
  Buffer out(panels_bytes(type, k, n));
  std::memset(out.data(), 0, static_cast<size_t>(out.size()));
  const auto size = static_cast<int64_t>(size_of(type));
  const auto* from = type == DType::s8 ? reinterpret_cast<const std::byte*>(copy.codes) : static_cast<const std::byte*>(copy.values);
  for (int64_t r = 0; r < k; ++r) {
    for (int64_t c = 0; c < n; ++c)
      std::memcpy(out.data() + panel_offset(type, k, r, c), from + (c * k + r) * size, static_cast<size_t>(size));
  }
  return out;
}

TEST(Operand, PanelsHoldWhatTheTransposedCopyDoes) {
  int kinds = 0;
  for (const NamedSpec& named : operand_specs()) {
    for (const bool stochastic : {false, true}) {
      Case c{named, {}, {}, DType::bf16, ValueForm::none, stochastic, true, true};
      if (!has_panels(copy_of(c, true).spec)) continue;
      ++kinds;
      if (named.spec.element != Element::int8) c.form = ValueForm::bf16;
      for (const Shape& shape : kShapes) {
        if (shape.rows * shape.cols == 0) continue;
        for (const Fill fill : kFills) {
          c.shape = shape, c.fill = fill;
          const auto x = elements(values(fill, shape.rows, shape.cols + shape.pad), c.type);
          QuantizeOperand p;
          p.x = x.data(), p.type = c.type, p.rows = shape.rows, p.cols = shape.cols, p.ld = shape.cols + shape.pad;
          p.want_row = p.want_transposed = true, p.row = copy_of(c, false), p.transposed = copy_of(c, true);
          CopyBuffers row(p.row, p.rows, p.cols), transposed(p.transposed, p.cols, p.rows);
          ref::quantize_operand(p);
          Buffer expected = panels_of(p.transposed, p.rows, p.cols);
          QuantizeOperand q = p;
          q.transposed.form = ValueForm::none, q.transposed.codes = nullptr, q.transposed.values = nullptr;
          Buffer panels(expected.size()), scales(transposed.scales.size());
          q.transposed.panels = panels.data(), q.transposed.scales = scales.data();
          // Alone, beside rows of the same kind, beside others.
          for (const char* beside : {"", "row", "tensor"}) {
            q.want_row = *beside != '\0', q.row = copy_of(c, false);
            if (std::string(beside) == "tensor") q.row.spec = find_linear_recipe("fp8_tensorwise")->x_forward;
            CopyBuffers r(q.row, p.rows, p.cols);
            for (const Isa isa : {Isa::ref, Isa::v3, best_isa()}) {
              std::memset(panels.data(), 0xA5, static_cast<size_t>(panels.size()));
              quantize_operand(q, isa);
              const std::string what = fmt::format("{} {} beside '{}'", name(isa), c.what(), beside);
              ASSERT_EQ(std::memcmp(panels.data(), expected.data(), static_cast<size_t>(panels.size())), 0) << what;
              ASSERT_EQ(std::memcmp(scales.data(), transposed.scales.data(), static_cast<size_t>(scales.size())), 0) << what;
              ASSERT_TRUE(panels.guard_intact() && scales.guard_intact()) << what;
              ASSERT_TRUE(std::string(beside) != "row" || std::memcmp(r.scales.data(), row.scales.data(), row.scales.size()) == 0) << what;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(kinds, 3);  // int8, to nearest and stochastic; e4m3 rows with power-of-two scales
}

TEST(Operand, ResultsDoNotDependOnTheNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (const NamedSpec& named : operand_specs()) {
    const Case c{named, {300, 520, 8}, Fill::normal, DType::bf16, ValueForm::bf16, true, true, true};
    const auto x = elements(values(c.fill, 300, 528), c.type);
    std::vector<std::unique_ptr<CopyBuffers>> rows, transposed;
    for (const int threads : {1, 2, 5}) {
      omp_set_num_threads(threads);
      QuantizeOperand p;
      p.x = x.data(), p.rows = 300, p.cols = 520, p.ld = 528, p.want_row = c.row, p.want_transposed = true;
      p.row = copy_of(c, false), p.transposed = copy_of(c, true);
      rows.push_back(std::make_unique<CopyBuffers>(p.row, p.rows, p.cols));
      transposed.push_back(std::make_unique<CopyBuffers>(p.transposed, p.cols, p.rows));
      quantize_operand(p);
    }
    omp_set_num_threads(before);
    for (size_t i = 1; i < rows.size(); ++i) {
      ASSERT_EQ(difference(*rows[0], *rows[i]), "") << named.name;
      ASSERT_EQ(difference(*transposed[0], *transposed[i]), "") << named.name;
    }
  }
}

}  // namespace
}  // namespace halftone
