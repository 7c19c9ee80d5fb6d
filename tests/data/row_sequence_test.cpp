#include "halftone/data/row_sequence.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <set>
#include <sstream>

#include "data/data_testing.h"
#include "halftone/data/best_fit.h"

namespace halftone {
namespace {

TEST(Shuffle, IsABijectionThatDependsOnSeedAndEpoch) {
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 16, 63, 64, 65, 1000, 4099}) {
    std::set<int64_t> seen;
    const Shuffle shuffle(n, true, 42, 3);
    for (int64_t i = 0; i < n; ++i) seen.insert(shuffle(i));
    ASSERT_EQ(static_cast<int64_t>(seen.size()), n);
    ASSERT_EQ(*seen.begin(), 0);
    ASSERT_EQ(*seen.rbegin(), n - 1);
  }
  const Shuffle a(1000, true, 42, 0), again(1000, true, 42, 0), seed(1000, true, 43, 0), epoch(1000, true, 42, 1), off(1000, false, 42, 1);
  int same = 0, same_seed = 0, same_epoch = 0, fixed = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    same += a(i) == again(i);
    same_seed += a(i) == seed(i);
    same_epoch += a(i) == epoch(i);
    fixed += a(i) == i;
    ASSERT_EQ(off(i), i);
  }
  EXPECT_EQ(same, 1000);
  // A random permutation has about one fixed point in common with another.
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(same_epoch, 10);
  EXPECT_LT(fixed, 10);
}

// The position of element 0 and the distance of neighbours over many epochs: uniform within 5 standard deviations.
TEST(Shuffle, LooksUniform) {
  constexpr int64_t n = 10;
  constexpr int trials = 20'000;
  int landed[n] = {}, next[n] = {};
  for (int e = 0; e < trials; ++e) {
    const Shuffle shuffle(n, true, 1, e);
    ++landed[shuffle(0)];
    ++next[(shuffle(1) - shuffle(0) + n) % n];
  }
  const double sigma = std::sqrt(trials * 0.1 * 0.9);
  for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(landed[i], trials / 10.0, 5 * sigma);
  EXPECT_EQ(next[0], 0);
  for (int64_t i = 1; i < n; ++i) EXPECT_NEAR(next[i], trials / 9.0, 5 * sigma);
}

TEST(EpochPlan, LocatesEveryUnit) {
  std::mt19937 random(5);
  std::vector<int64_t> weights(1000);
  for (int64_t& w : weights) w = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 30);
  const EpochPlan plan(Shuffle(1000, true, 1, 2), [&](int64_t d) { return weights[static_cast<size_t>(d)]; });
  int64_t unit = 0;
  for (int64_t place = 0; place < 1000; ++place)
    for (int64_t k = 0; k < weights[static_cast<size_t>(plan.document(place))]; ++k, ++unit) {
      const auto at = plan.locate(unit);
      ASSERT_EQ(at.place, place);
      ASSERT_EQ(at.offset, k);
    }
  EXPECT_EQ(plan.total(), unit);
  EXPECT_ERROR(plan.locate(unit), "epoch plan");
}

// A second implementation of platform.md 6.2, document by document and without lookahead.
struct Reference {
  const TokenStore& store;
  RowOptions options;

  std::vector<std::vector<int32_t>> documents(int64_t epoch) const {
    std::vector<std::vector<int32_t>> out;
    const Shuffle order(store.documents(), options.shuffle, options.seed, epoch);
    for (int64_t i = 0; i < store.documents(); ++i) {
      const int64_t d = order(i);
      const bool held_out = static_cast<double>(store.hash(d)) * 0x1p-64 < options.holdout;
      if (held_out == options.held_out) out.push_back(document_ids(store, d));
    }
    return out;
  }

  std::vector<Row> concat(int64_t epochs) const {
    const auto S = static_cast<size_t>(options.seq_len);
    std::deque<int32_t> buffer;
    std::vector<Row> rows;
    for (int64_t e = 0; e < epochs; ++e)
      for (const auto& d : documents(e)) {
        buffer.insert(buffer.end(), d.begin(), d.end());
        while (buffer.size() >= S + 1) {
          Row row(options.seq_len);
          for (size_t j = 0; j < S; ++j) {
            row.tokens[j] = buffer[j];
            row.labels[j] = buffer[j + 1];
            row.positions[j] = static_cast<int32_t>(j);
            row.doc_start[j] = static_cast<int32_t>(j > 0 && buffer[j - 1] != kEos ? row.doc_start[j - 1] : j);
          }
          if (options.document_positions.value_or(false))
            for (size_t j = 0; j < S; ++j) row.positions[j] -= row.doc_start[j];
          buffer.erase(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(S) + 1);
          rows.push_back(row);
        }
      }
    return rows;
  }

  // Rows of (token, label, document) positions.
  struct Place {
    int32_t token, label;
    int document;
  };
  Row finish(const std::vector<Place>& places) const {
    Row row(options.seq_len);
    for (size_t j = 0; j < row.tokens.size(); ++j) {
      if (j >= places.size()) {
        row.tokens[j] = row.positions[j] = 0;
        row.labels[j] = -100;
        row.doc_start[j] = static_cast<int32_t>(places.size());
        continue;
      }
      const bool starts = j == 0 || places[j].document != places[j - 1].document;
      row.tokens[j] = places[j].token;
      row.labels[j] = places[j].label;
      row.doc_start[j] = starts ? static_cast<int32_t>(j) : row.doc_start[j - 1];
      row.positions[j] = options.document_positions.value_or(true) ? (starts ? 0 : row.positions[j - 1] + 1) : static_cast<int32_t>(j);
    }
    return row;
  }
  std::vector<Place> pairs(const std::vector<int32_t>& d, int number) const {
    std::vector<Place> out;
    for (size_t k = 0; k + 1 < d.size(); ++k) out.push_back({d[k], d[k + 1], number});
    return out;
  }

  std::vector<Row> concat_documents(int64_t epoch) const {
    std::vector<Row> rows;
    std::vector<Place> open;
    int number = 0;
    for (const auto& d : documents(epoch)) {
      for (const Place& p : pairs(d, number)) {
        open.push_back(p);
        if (open.size() == static_cast<size_t>(options.seq_len)) {
          rows.push_back(finish(open));
          open.clear();
        }
      }
      ++number;
    }
    return rows;
  }

  std::vector<Row> first_fit(int64_t epoch) const {
    std::vector<Row> rows;
    std::deque<std::vector<Place>> open;
    int number = 0;
    for (const auto& d : documents(epoch)) {
      const auto p = pairs(d, number++);
      if (p.empty() || p.size() > static_cast<size_t>(options.seq_len)) continue;
      size_t b = 0;
      while (b < open.size() && open[b].size() + p.size() > static_cast<size_t>(options.seq_len)) ++b;
      if (b == open.size()) {
        if (b == static_cast<size_t>(options.bins)) {
          rows.push_back(finish(open.front()));
          open.pop_front();
        }
        open.emplace_back();
        b = open.size() - 1;
      }
      open[b].insert(open[b].end(), p.begin(), p.end());
    }
    for (const auto& bin : open) rows.push_back(finish(bin));
    return rows;
  }

  // All documents are in one window.
  std::vector<Row> best_fit(int64_t epoch) const {
    const auto S = static_cast<size_t>(options.seq_len);
    std::vector<std::vector<Place>> parts;
    std::vector<int64_t> lengths;
    int number = 0;
    for (const auto& d : documents(epoch)) {
      const auto p = pairs(d, number++);
      for (size_t at = 0; at < p.size(); at += S) {
        parts.emplace_back(p.begin() + static_cast<int64_t>(at), p.begin() + static_cast<int64_t>(std::min(p.size(), at + S)));
        lengths.push_back(static_cast<int64_t>(parts.back().size()));
        for (Place& place : parts.back()) place.document = static_cast<int>(parts.size());  // a part of its own
      }
    }
    const BinRows bins = best_fit_decreasing(lengths, options.seq_len);
    std::vector<Row> rows;
    for (size_t r = 0; r + 1 < bins.row_begin.size(); ++r) {
      std::vector<Place> row;
      for (int64_t k = bins.row_begin[r]; k < bins.row_begin[r + 1]; ++k) {
        const auto& part = parts[static_cast<size_t>(bins.items[static_cast<size_t>(k)])];
        row.insert(row.end(), part.begin(), part.end());
      }
      rows.push_back(finish(row));
    }
    return rows;
  }

  std::vector<Row> single(int64_t epoch) const {
    std::vector<Row> rows;
    for (const auto& d : documents(epoch)) {
      auto p = pairs(d, 0);
      p.resize(std::min(p.size(), static_cast<size_t>(options.seq_len)));
      rows.push_back(finish(p));
    }
    return rows;
  }

  std::vector<Row> rows(int64_t epochs) const {
    if (options.packing == Packing::concat) return concat(epochs);
    std::vector<Row> out;
    for (int64_t e = 0; e < epochs; ++e) {
      const auto more = options.packing == Packing::concat_documents ? concat_documents(e)
                        : options.packing == Packing::first_fit      ? first_fit(e)
                        : options.packing == Packing::best_fit       ? best_fit(e)
                                                                     : single(e);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }
};

class Packings : public testing::TestWithParam<Packing> {};

TEST_P(Packings, EqualTheRulesAppliedDocumentByDocument) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    const TempFolder folder;
    const auto store =
        open_jsonl(folder.write("a.jsonl", random_jsonl(1 + static_cast<int>(seed) * 13, seed % 2 == 0 ? 40 : 9, seed)), folder / "cache");
    RowOptions options;
    options.packing = GetParam();
    options.seq_len = seed % 3 == 0 ? 7 : 32;
    options.bins = 1 + seed % 4;
    options.shuffle = seed % 4 != 0;
    options.seed = seed;
    options.eos_id = kEos;
    if (seed % 5 == 1) options.document_positions = seed % 2 == 0;
    if (seed > 4) options.holdout = 0.3;
    options.held_out = seed > 4 && seed % 2 == 0;
    std::unique_ptr<RowSequence> rows;
    const std::vector<Row> want = Reference{*store, options}.rows(4);
    try {
      rows = std::make_unique<RowSequence>(store, options);
    } catch (const Error& error) {
      EXPECT_TRUE(want.empty()) << error.what();
      continue;
    }
    ASSERT_FALSE(want.empty());
    int64_t per_epochs = 0;
    for (int64_t e = 0; e < 4; ++e) per_epochs += rows->rows(e);
    // A row of concat that starts in epoch 3 may end in epoch 4, which the reference does not read.
    ASSERT_LE(per_epochs - static_cast<int64_t>(want.size()), GetParam() == Packing::concat ? 1 : 0);
    ASSERT_GE(per_epochs, static_cast<int64_t>(want.size()));
    for (size_t i = 0; i < want.size(); ++i) {
      const Row row = row_of(*rows, rows->advance({}, static_cast<int64_t>(i)));
      ASSERT_EQ(row.tokens, want[i].tokens) << "seed " << seed << " row " << i;
      ASSERT_EQ(row.labels, want[i].labels) << "seed " << seed << " row " << i;
      ASSERT_EQ(row.positions, want[i].positions) << "seed " << seed << " row " << i;
      ASSERT_EQ(row.doc_start, want[i].doc_start) << "seed " << seed << " row " << i;
    }
    // The result does not depend on the order of access.
    for (size_t i = want.size(); i-- > 0;) ASSERT_EQ(row_of(*rows, rows->advance({}, static_cast<int64_t>(i))), want[i]);
  }
}
INSTANTIATE_TEST_SUITE_P(All, Packings,
                         testing::Values(Packing::concat, Packing::concat_documents, Packing::first_fit, Packing::best_fit, Packing::none));

TEST(RowSequence, ShuffledRowsAreThePackedRowsOfEachEpochInAnotherOrder) {
  const TempFolder folder;
  const auto store = open_jsonl(folder.write("a.jsonl", random_jsonl(60, 40, 5)), folder / "cache");
  for (const Packing packing : {Packing::concat, Packing::concat_documents, Packing::first_fit, Packing::best_fit, Packing::none}) {
    RowOptions options;
    options.packing = packing, options.seq_len = 16, options.shuffle = true;
    RowSequence packed(store, options);
    options.shuffle_rows = true;
    RowSequence shuffled(store, options);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::multiset<std::vector<int64_t>> before, after;
      int64_t kept = 0;
      ASSERT_EQ(packed.rows(epoch), shuffled.rows(epoch));
      for (int64_t r = 0; r < packed.rows(epoch); ++r) {
        const Row a = row_of(packed, {epoch, r}), b = row_of(shuffled, {epoch, r});
        before.insert(a.tokens), after.insert(b.tokens), kept += a == b;
      }
      EXPECT_EQ(before, after);
      EXPECT_LT(kept, packed.rows(epoch) / 2);
    }
    EXPECT_NE(packed.describe(), shuffled.describe());
  }
}

TEST(RowSequence, BlockCausalStartsBehindEos) {
  const TempFolder folder;
  const auto store =
      open_jsonl(folder.write("a.jsonl", "{\"text\":\"abc\"}\n{\"text\":\"d\"}\n{\"text\":\"efghijkl\"}\n"), folder / "cache");
  RowOptions options;
  options.seq_len = 10;
  options.eos_id = kEos;
  RowSequence rows(store, options);
  const Row row = row_of(rows, {0, 0});
  EXPECT_EQ(row.tokens, (std::vector<int64_t>{kBos, 'a', 'b', 'c', kEos, kBos, 'd', kEos, kBos, 'e'}));
  EXPECT_EQ(row.labels, (std::vector<int64_t>{'a', 'b', 'c', kEos, kBos, 'd', kEos, kBos, 'e', 'f'}));
  EXPECT_EQ(row.doc_start, (std::vector<int32_t>{0, 0, 0, 0, 0, 5, 5, 5, 8, 8}));
  EXPECT_EQ(row.positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  options.eos_id.reset();  // a tokenizer without EOS: document boundaries come from the documents themselves
  RowSequence plain(store, options);
  EXPECT_EQ(row_of(plain, {0, 0}).doc_start, row.doc_start);
}

using DocumentSet = std::multiset<std::vector<int64_t>>;

// Documents (truncated to 40 tokens) on one side of the holdout.
DocumentSet side_of(const std::shared_ptr<const TokenStore>& store, double share, bool held_out, uint64_t seed) {
  RowOptions options;
  options.packing = Packing::none;
  options.seq_len = 40;
  options.holdout = share;
  options.held_out = held_out;
  options.shuffle = seed != 0;
  options.seed = seed;
  RowSequence rows(store, options);
  DocumentSet out;
  for (int64_t r = 0; r < rows.rows(0); ++r) out.insert(row_of(rows, {0, r}).tokens);
  return out;
}

TEST(RowSequence, HoldoutIsDisjointCompleteAndIndependentOfOrderAndOfOtherDocuments) {
  const TempFolder folder;
  const std::string text = random_jsonl(3000, 30, 9);
  const auto store = open_jsonl(folder.write("a.jsonl", text), folder / "cache");
  const DocumentSet held = side_of(store, 0.1, true, 0), rest = side_of(store, 0.1, false, 0);
  EXPECT_EQ(held.size() + rest.size(), 3000u);
  EXPECT_NEAR(static_cast<double>(held.size()), 300, 5 * std::sqrt(3000 * 0.1 * 0.9));
  for (const auto& d : held) EXPECT_EQ(rest.count(d), 0u);  // equal documents are on the same side
  EXPECT_EQ(side_of(store, 0.1, true, 7), held);

  // The same documents in another order among others: the old ones stay on their side.
  std::vector<std::string> lines;
  std::istringstream in(text + random_jsonl(500, 30, 10));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::shuffle(lines.begin(), lines.end(), std::mt19937(3));
  std::string mixed;
  for (const std::string& line : lines) mixed += line + "\n";
  const DocumentSet more = side_of(open_jsonl(folder.write("b.jsonl", mixed), folder / "cache"), 0.1, true, 0);
  EXPECT_GT(more.size(), held.size());
  EXPECT_TRUE(std::includes(more.begin(), more.end(), held.begin(), held.end()));
  // A larger share contains the smaller one.
  const DocumentSet larger = side_of(store, 0.2, true, 0);
  EXPECT_TRUE(std::includes(larger.begin(), larger.end(), held.begin(), held.end()));
}

TEST(RowSequence, TooLittleTextIsAnError) {
  const TempFolder folder;
  const auto store = open_jsonl(folder.write("a.jsonl", "{\"text\":\"abc\"}\n"), folder / "cache");
  RowOptions options;
  options.seq_len = 100;
  options.packing = Packing::concat_documents;
  EXPECT_ERROR(RowSequence(store, options), "less than one row");
  options.packing = Packing::first_fit;
  options.seq_len = 3;
  EXPECT_ERROR(RowSequence(store, options), "raise seq_len");
  options.holdout = 1e-6;
  options.held_out = true;
  EXPECT_ERROR(RowSequence(store, options), "no document is left for held-out validation");
  options.holdout = 1;
  EXPECT_ERROR(RowSequence(store, options), "expected a share");
  // A corpus shorter than a row repeats.
  options = {};
  options.seq_len = 11;
  RowSequence rows(store, options);
  EXPECT_EQ(row_of(rows, {0, 0}).tokens, (std::vector<int64_t>{kBos, 'a', 'b', 'c', kEos, kBos, 'a', 'b', 'c', kEos, kBos}));
  EXPECT_EQ(rows.pass_rows(), 0);
}

}  // namespace
}  // namespace halftone
