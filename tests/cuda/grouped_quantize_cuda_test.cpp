// Grouped quantisation: every byte equals that of the CPU quantiser on each group's rows alone.
#include <cmath>
#include <cstring>

#include "cuda/operand_device.h"

namespace halftone {
namespace {

using namespace testing;

// Output offsets of one group among all groups. Rows after the last group are set number `groups`.
struct Place {
  const QuantizeOperand& all;
  int64_t begin, set;

  void operator()(CopyBuffers& to, CopyBuffers& from, const QuantizedCopy& copy, bool transposed) const {
    const OperandSpec& s = copy.spec;
    const bool tile = s.granularity == Granularity::tile;
    const auto out = to.all(), own = from.all();
    for (size_t i = 0; i < out.size(); ++i) {
      const std::string_view name = out[i].first;
      std::byte *at = out[i].second->data(), *own_at = own[i].second->data();
      const int64_t bytes = own[i].second->size();
      if (name == "lost") {
        *out[i].second->as<unsigned long long>() += *own[i].second->as<unsigned long long>() - 3;
        continue;
      }
      const bool of_group =
          name == "outer" || (name == "fold_scale" && (transposed || copy.form == ValueForm::fold_e5m2)) ||
          (name == "scales" && (s.granularity == Granularity::tensor || (transposed && s.granularity == Granularity::row)));
      if (of_group && set < all.groups.groups) std::memcpy(at + set * bytes, own_at, static_cast<size_t>(bytes));
      if (of_group || bytes == 0) continue;
      // A transposed copy has its tokens along its rows; with tiles one row covers several tokens.
      const int64_t high = name == "scales" && tile ? s.block : name == "macro" && tile ? 128 : 1;
      const int64_t vectors = transposed ? ceil_div(all.cols, high) : 1, pitch = out[i].second->size() / vectors, part = bytes / vectors;
      for (int64_t v = 0; v < vectors; ++v)
        std::memcpy(at + v * pitch + pitch * begin / all.rows, own_at + v * part, static_cast<size_t>(part));
    }
  }
};

// Gathers rows from a smaller matrix, which provides each row up to three times in irregular order; rows at the end of each group and
// after the last one are zero.
void from_elsewhere(Request& r, std::vector<float>& x) {
  const Case& c = r.what;
  const int64_t ld = r.p.ld, tokens = r.p.rows / 3;
  const bool weighted = c.rows == Case::Rows::weighted, wide = c.type == DType::f32;
  std::vector<float> tokens_of = values(c.fill, tokens, ld);
  r.elsewhere = elements(tokens_of, c.type);
  r.p.from.each = 3;
  r.source.assign(static_cast<size_t>(r.p.rows), -1);
  if (weighted) {
    for (int64_t i = 0; i < tokens * 3; ++i) r.weight.push_back((i % 2 == 0 ? 0.3f : -1.7f) * std::exp2(static_cast<float>(i % 7 - 3)));
  }
  for (int64_t row = 0, at = 0; row < r.p.rows; ++row) {
    float* to = x.data() + row * ld;
    const bool padding = std::all_of(to, to + ld, [](float v) { return v == 0 && !std::signbit(v); });
    std::fill_n(to, ld, 0.0f);
    if (padding || at == tokens * 3) continue;
    const int64_t i = at++ * 5 % (tokens * 3);
    r.source[static_cast<size_t>(row)] = static_cast<int32_t>(i);
    for (int64_t j = 0; j < ld; ++j) {
      const float v = tokens_of[static_cast<size_t>(i / 3 * ld + j)], given = wide ? v : to_float(bf16(v));
      to[j] = weighted ? r.weight[static_cast<size_t>(i)] * given : given;
    }
  }
  for (int64_t tile = 0, n = r.p.rows / kGroupRows; weighted && tile < n; ++tile)
    r.order.push_back(static_cast<int32_t>((tile + n / 2) % n));
}

void groups_alone(Request& r) {
  const Case& c = r.what;
  const int64_t groups = r.p.groups.groups, ld = r.p.ld;
  const auto end_of = [&](int64_t set) { return set < groups ? c.offsets[static_cast<size_t>(set + 1)] : r.p.rows; };
  // Each group has its own magnitude and ends with rows of zeros; after the last group there are only zeros.
  std::vector<float> x = values(c.fill, r.p.rows, ld);
  for (int64_t set = 0, row = 0; set <= groups; ++set) {
    for (; row < end_of(set); ++row) {
      const float by = set == groups || row + 3 >= end_of(set) ? 0.0f : std::exp2(static_cast<float>(set % 5 * 3));
      for (int64_t j = 0; j < ld; ++j) x[static_cast<size_t>(row * ld + j)] = by == 0 ? 0 : x[static_cast<size_t>(row * ld + j)] * by;
    }
  }
  if (c.rows != Case::Rows::given) from_elsewhere(r, x);
  r.x = elements(x, c.type), r.p.x = r.x.data();
  if (c.master) r.wide = elements(x, DType::f32);

  for (int64_t set = 0, begin = 0; set <= groups; begin = end_of(set++)) {
    QuantizeOperand p = r.p;
    p.groups = {}, p.amax = nullptr;
    p.x = r.x.data() + static_cast<size_t>(begin * ld) * size_of(c.type), p.rows = end_of(set) - begin;
    p.row.rounding.first_row += begin, p.transposed.rounding.first_row += begin;
    std::unique_ptr<CopyBuffers> row, transposed;
    if (p.want_row) row = std::make_unique<CopyBuffers>(p.row, p.rows, p.cols), keep(p.row, c.only);
    if (p.want_transposed) {
      transposed = std::make_unique<CopyBuffers>(p.transposed, p.cols, p.rows);
      keep(p.transposed, c.transposed_only ? c.transposed_only->first : c.only);
    }
    quantize_operand(p);
    const Place place{r.p, begin, set};
    if (row) place(*r.expected_row, *row, p.row, false);
    if (transposed) place(*r.expected_transposed, *transposed, p.transposed, true);
  }
}

constexpr Fill kFills[] = {Fill::normal, Fill::nan, Fill::spread, Fill::ties, Fill::inf, Fill::tiny, Fill::zeros};
// Ragged groups with empty ones among them and rows after the last; only empty groups; and a single group with all rows.
const std::vector<std::pair<int64_t, std::vector<int32_t>>> kRows = {
    {1024, {0, 256, 256, 384, 768, 768, 896}}, {640, {0, 0, 128, 128, 128, 640, 640}}, {256, {0, 0, 0}}, {384, {0, 384}}};

// One case, with this turn's rows, data and types.
Case case_of(const NamedSpec& row, const NamedSpec& transposed, ValueForm form, bool stochastic, size_t turn) {
  const auto& [rows, offsets] = kRows[turn % 7 < 4 ? 0 : turn % 7 - 3];
  const Shape shape{rows, turn % 5 == 4 ? 150 : turn % 2 == 0 ? 264 : 200, turn % 3 == 0 ? 8 : 0};
  Case c{row,
         transposed,
         shape,
         kFills[turn / 2 % 7],
         turn % 4 == 1 ? DType::f32 : DType::bf16,
         form,
         stochastic,
         row.spec.quantized(),
         transposed.spec.quantized(),
         turn % 11 != 3};
  c.offsets = offsets, c.given_amax = turn % 3 == 1, c.device_step = stochastic && turn % 3 == 2;
  return c;
}
// Fp32 masters that are rounded to bf16.
std::optional<Case> of_master(Case c) {
  if (c.row.spec.hadamard != 0 || c.transposed.spec.hadamard != 0) return {};
  c.type = DType::bf16, c.master = Master{true, false};
  return c;
}

// The same rows, gathered from another matrix.
std::optional<Case> elsewhere(Case c) {
  if (c.row.spec.element == Element::ternary || c.transposed.spec.element == Element::ternary) return {};
  c.rows = c.shape.cols % 16 == 8 ? Case::Rows::weighted : Case::Rows::elsewhere;
  return c;
}

// Output combinations that layers request: everything, or one output.
std::vector<std::pair<Only, ValueForm>> outputs_of(const OperandSpec& s) {
  std::vector<std::pair<Only, ValueForm>> out = {{Only::codes, ValueForm::none}};
  if (bits_of(s.element) < 8) out.emplace_back(Only::packed, ValueForm::none);
  for (const ValueForm form : value_forms(s)) {
    out.emplace_back(Only::all, form);
    if (form != ValueForm::none) out.emplace_back(Only::values, form);
  }
  return out;
}

constexpr int kParts = 4;
class GroupedQuantizeCuda : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, GroupedQuantizeCuda, ::testing::Range(0, kParts));

TEST_P(GroupedQuantizeCuda, OperandsOfRecipes) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  size_t turn = 0;
  for (const LinearRecipe& recipe : kLinearRecipes) {
    for (const auto& [row, transposed] :
         {std::pair{recipe.x_forward, recipe.x_wgrad}, {recipe.dy_dgrad, recipe.dy_wgrad}, {recipe.w_forward, recipe.w_dgrad}}) {
      if (!row.quantized() && !transposed.quantized()) continue;
      const NamedSpec a{std::string(recipe.name), row, false}, b{std::string(recipe.name), transposed, transposed.hadamard != 0};
      for (const auto& [only, form] : outputs_of(row.quantized() ? row : transposed)) {
        for (const bool stochastic : {false, true}) {
          for (int i = 0; i < 3; ++i, ++turn) {
            if (static_cast<int>(turn / 3 % kParts) != GetParam()) continue;
            Case c = case_of(a, b, form, stochastic, turn);
            c.only = only;
            cases.push_back(c);
            if (const auto master = of_master(c); master && i == 0) cases.push_back(*master);
            if (const auto other = elsewhere(c); other && i > 0) cases.push_back(*other);
          }
        }
      }
    }
  }
  expect_reference(cases, 0, groups_alone);
}

// One copy or both, of every kind.
TEST_P(GroupedQuantizeCuda, EveryOperand) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  size_t turn = 0;
  for (const NamedSpec& named : operand_specs()) {
    const NamedSpec row = unrotated(named);
    for (const ValueForm form : value_forms(named.spec)) {
      for (int which = 1; which <= 3; ++which, ++turn) {
        if (static_cast<int>(turn % kParts) != GetParam()) continue;
        Case c = case_of(row, named, form, turn / kParts % 2 == 1, turn);
        c.want_row = (which & 1) != 0, c.want_transposed = (which & 2) != 0;
        cases.push_back(c);
        if (form == ValueForm::none && which == 1) c.only = Only::codes;  // the kernel that holds entire rows
        if (const auto other = elsewhere(c)) cases.push_back(*other);
      }
    }
  }
  expect_reference(cases, 0, groups_alone);
}

// Weights of 48 experts, and as many token groups, every third of them non-empty.
TEST(GroupedQuantizeCuda, ManyGroups) {
  if (!missing().empty()) GTEST_SKIP() << missing();
  std::vector<Case> cases;
  for (const NamedSpec& named : operand_specs()) {
    const OperandSpec& s = named.spec;
    const bool folds = s.element == Element::e2m1 && s.block == 32 && s.mode == ScaleMode::adaptive && s.clip == Clip::none;
    if (s.granularity != Granularity::tensor && s.granularity != Granularity::row && s.two_level != TwoLevel::tensor && !folds) continue;
    for (const int every : {1, 3}) {
      Case c = case_of(unrotated(named), named, folds ? ValueForm::fold_e4m3 : ValueForm::none, every == 3, 0);
      c.offsets = {0}, c.fill = Fill::normal;
      for (int g = 0; g < 48; ++g) c.offsets.push_back(c.offsets.back() + (g % every == 0 ? 128 : 0));
      c.shape = {c.offsets.back() + (every == 3 ? 256 : 0), 72, 0};
      cases.push_back(c);
    }
  }
  expect_reference(cases, 0, groups_alone);
}

}  // namespace
}  // namespace halftone
