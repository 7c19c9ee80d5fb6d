#include <map>
#include <numeric>
#include <set>

#include "data/data_testing.h"
#include "halftone/data/lane_feed.h"
#include "halftone/data/loader.h"

namespace halftone::stream_test {
namespace {

using Json = nlohmann::json;

// Rows of a feed as text, for comparison.
std::string row_text(RowFeed& feed, int64_t row, bool& end) {
  const auto S = static_cast<size_t>(feed.seq_len());
  std::vector<int64_t> wide(2 * S);
  std::vector<int32_t> narrow(2 * S);
  const int64_t filled = feed.fill({0, row}, {wide.data(), wide.data() + S, narrow.data(), narrow.data() + S});
  end = filled == RowFeed::kEnd;
  std::string out = std::to_string(filled) + "/" + std::to_string(feed.source());
  for (const int64_t v : wide) out += " " + std::to_string(v);
  for (const int32_t v : narrow) out += " " + std::to_string(v);
  return out;
}

class StreamTest : public testing::Test {
 protected:
  // Each document is "<number>:" and a random tail, so that it can be found again.
  void write_files(int files, int documents, unsigned seed, const std::string& folder = "set") {
    std::mt19937 random(seed);
    int number = 0;
    for (int f = 0; f < files; ++f) {
      std::string text;
      for (int d = 0; d < documents; ++d) {
        std::string body = std::to_string(number++) + ":";
        body.append(random() % 40, static_cast<char>('a' + random() % 26));
        text += R"({"text":")" + body + "\"}\n";
        if (random() % 7 == 0) text += "{\"text\":\"\"}\n";
      }
      folder_.write(folder + "/" + std::to_string(1000 + f) + ".jsonl", text);
    }
    documents_ = number;
  }
  std::shared_ptr<const DocumentSource> source(const std::string& folder = "set", bool streamed = true) {
    SourceOptions o;
    o.dataset = "jsonl";
    o.path = folder_ / folder;
    o.vocab_size = kVocab;
    o.streamed = streamed;
    return open_source(o);
  }
  RowOptions row_options(Packing packing) {
    RowOptions r;
    r.packing = packing, r.seq_len = 24, r.eos_id = kEos;
    return r;
  }
  // One rank's share of the steps.
  struct Share {
    int64_t local = 1, global = 6, rank = 0, size = 1;
  };
  std::unique_ptr<LaneFeed> feed(Packing packing, int64_t lanes, Share share, bool shuffle = true, int64_t epochs = 0) {
    StreamOptions o;
    o.lanes = lanes, o.window = 40, o.shuffle = shuffle, o.threads = 2, o.epochs = epochs;
    LaneFeed::Options f;
    f.lanes = o.lanes, f.seq_len = 24;
    f.local_batch = share.local, f.global_batch = share.global, f.dp_rank = share.rank, f.dp_size = share.size;
    std::vector<LaneFeed::Source> sources(1);
    sources[0].name = "set", sources[0].weight = WeightSchedule("1", "w");
    sources[0].rows = stream_rows(source(), byte_codec(), row_options(packing), o);
    return std::make_unique<LaneFeed>(std::move(sources), f);
  }
  std::vector<std::string> rows_of(Packing packing, int64_t n, int64_t lanes = 12) {
    auto all = feed(packing, lanes, {1, 1});
    std::vector<std::string> out;
    bool end = false;
    for (int64_t r = 0; r < n; ++r) out.push_back(row_text(*all, r, end));
    return out;
  }

  TempFolder folder_;
  int documents_ = 0;
};

constexpr Packing kPackings[] = {Packing::concat, Packing::concat_documents, Packing::first_fit, Packing::best_fit, Packing::none};

TEST_F(StreamTest, AnEpochGivesEveryDocumentOnceWhateverTheGroups) {
  for (const int files : {1, 3, 40}) {
    write_files(files, 200 / files + 3, 7, "f" + std::to_string(files));
    for (const int64_t lanes : {1, 12, 20}) {
      StreamOptions o;
      o.lanes = lanes, o.window = 50, o.shuffle = true, o.epochs = 2;
      StreamReader reader(source("f" + std::to_string(files)), byte_codec(), o);
      std::map<std::string, int> seen;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        int64_t ordinal = 0;
        while (const auto d = reader.next(lane)) {
          EXPECT_EQ(d->ordinal, ordinal++);
          std::string text;
          for (const int32_t id : d->ids)
            if (id < 256) text += static_cast<char>(id);
          ++seen[text];
        }
      }
      EXPECT_EQ(static_cast<int>(seen.size()), documents_) << files << " files, " << lanes << " lanes";
      for (const auto& [text, times] : seen) EXPECT_EQ(times, 2) << text;
    }
  }
}

TEST_F(StreamTest, RowsAreTheSameForAnyNumberOfProcesses) {
  write_files(30, 20, 3);
  for (const Packing packing : kPackings) {
    const std::vector<std::string> expected = rows_of(packing, 120);
    for (const int64_t size : {1, 2, 3, 8}) {
      const int64_t local = 2, global = local * size * 2;
      for (int64_t rank = 0; rank < size; ++rank) {
        auto own = feed(packing, 12, {local, global, rank, size});
        bool end = false;
        for (int64_t first = rank * local; first + local <= 120; first += size * local)
          for (int64_t b = 0; b < local; ++b) EXPECT_EQ(row_text(*own, first + b, end), expected[static_cast<size_t>(first + b)]);
      }
    }
  }
}

TEST_F(StreamTest, ResumesExactlyFromTheUnionOfThePositionsOnAnotherNumberOfProcesses) {
  write_files(30, 20, 4);
  std::mt19937 random(1);
  for (const Packing packing : kPackings) {
    const std::vector<std::string> expected = rows_of(packing, 300);
    for (int round = 0; round < 4; ++round) {
      const int64_t size = std::array{1, 2, 3, 8}[random() % 4], local = 1 + random() % 2, global = size * local * (1 + random() % 2);
      const int64_t boundary = (1 + random() % (150 / global + 1)) * global;
      std::vector<std::string> states;
      for (int64_t rank = 0; rank < size; ++rank) {
        auto own = feed(packing, 12, {local, global, rank, size});
        bool end = false;
        for (int64_t first = rank * local; first < boundary; first += size * local)
          for (int64_t b = 0; b < local; ++b) row_text(*own, first + b, end);
        states.push_back(Json{{"positions", own->positions({0, boundary})}}.dump());
      }
      const Json merged = merge_states(states);
      const int64_t then = 1 + random() % 3, step = then * 2;
      for (int64_t rank = 0; rank < then; ++rank) {
        auto own = feed(packing, 12, {2, step, rank, then});
        own->restore(merged["positions"], {0, boundary});
        bool end = false;
        for (int64_t first = boundary + rank * 2; first + 2 <= std::min<int64_t>(300, boundary + 60); first += step)
          for (int64_t b = 0; b < 2; ++b)
            ASSERT_EQ(row_text(*own, first + b, end), expected[static_cast<size_t>(first + b)]) << first + b << " after " << boundary;
      }
    }
  }
}

// One lane without a shuffle is the plain order of documents.
TEST_F(StreamTest, OneLanePacksAsTheIndexedRowsDo) {
  write_files(5, 40, 5);
  auto store = open_token_store(*source("set", false), byte_codec(), folder_ / "cache", 2);
  for (const Packing packing : {Packing::concat, Packing::concat_documents}) {
    RowSequence indexed(store, row_options(packing));
    auto streamed = feed(packing, 1, {}, false);
    bool end = false;
    for (int64_t r = 0; r < indexed.rows(0) - 1; ++r) EXPECT_EQ(row_text(indexed, r, end), row_text(*streamed, r, end)) << r;
  }
}

// Ids with a mask are one document, whatever EOS stands inside, and keep their labels as in an index.
TEST_F(StreamTest, MaskedIdsKeepTheirLossAsInTheIndex) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += R"({"input_ids":[256,97,257,98,99,257],"loss_mask":[0,0,1,0,)" + std::to_string(i % 2) + ",1]}\n";
  folder_.write("set/a.jsonl", lines);
  auto store = open_token_store(*source("set", false), byte_codec(), folder_ / "cache", 2);
  for (const Packing packing : {Packing::none, Packing::concat_documents}) {
    RowSequence indexed(store, row_options(packing));
    auto streamed = feed(packing, 1, {}, false);
    bool end = false;
    int64_t ignored = 0;
    for (int64_t r = 0; r < indexed.rows(0) - 1; ++r) {
      const std::string text = row_text(indexed, r, end);
      EXPECT_EQ(text, row_text(*streamed, r, end)) << r;
      for (size_t at = text.find("-100"); at != std::string::npos; at = text.find("-100", at + 1)) ++ignored;
    }
    EXPECT_GT(ignored, 0);
  }
  bool end = false;
  EXPECT_ERROR(row_text(*feed(Packing::concat, 1, {}, false), 0, end), "best_fit");
}

TEST_F(StreamTest, SkippedLinesAreLogged) {
  folder_.write("set/a.jsonl", "no document\n{\"text\":\"a\"}\n");
  SourceOptions o;
  o.dataset = "jsonl", o.path = folder_ / "set", o.vocab_size = kVocab, o.streamed = true, o.on_bad_line = "skip";
  StreamOptions s;
  s.lanes = 1, s.epochs = 1;
  testing::internal::CaptureStdout();
  {
    StreamReader reader(open_source(o), byte_codec(), s);
    while (reader.next(0)) {}
  }
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "skipped 1 bad lines so far, the last at", testing::internal::GetCapturedStdout());
}

TEST_F(StreamTest, TheShuffleChangesTheOrderAndEpochsDiffer) {
  write_files(20, 20, 6);
  bool end = false;
  auto shuffled = feed(Packing::none, 1, {}), plain = feed(Packing::none, 1, {}, false);
  std::vector<std::string> first, second, natural;
  for (int64_t r = 0; r < documents_; ++r) first.push_back(row_text(*shuffled, r, end)), natural.push_back(row_text(*plain, r, end));
  for (int64_t r = documents_; r < 2 * documents_; ++r) second.push_back(row_text(*shuffled, r, end));
  EXPECT_NE(first, natural);
  EXPECT_NE(first, second);
  for (auto* rows : {&first, &second, &natural}) std::sort(rows->begin(), rows->end());
  EXPECT_EQ(first, natural);
  EXPECT_EQ(first, second);
}

TEST_F(StreamTest, EndsBehindItsEpochsAndSaysSoAgain) {
  write_files(3, 10, 8);
  auto one = feed(Packing::none, 2, {}, true, 1);
  bool end = false;
  int64_t rows = 0;
  std::set<std::string> seen;
  for (; rows < 100; ++rows) {
    const std::string text = row_text(*one, rows, end);
    if (end) break;
    seen.insert(text);
  }
  EXPECT_GE(rows, documents_ - 2);
  EXPECT_EQ(seen.size(), static_cast<size_t>(rows));
  row_text(*one, rows, end);
  EXPECT_TRUE(end);
}

TEST_F(StreamTest, AFailingFileEndsTheStreamWithItsError) {
  write_files(2, 10, 9);
  folder_.write("set/2000.jsonl", "{\"text\": 3}\n");
  auto all = feed(Packing::concat, 1, {}, false);
  bool end = false;
  EXPECT_ERROR(for (int64_t r = 0; r < 1000; ++r) row_text(*all, r, end), "2000.jsonl:1: field \"text\": expected a string");
  folder_.write("empty/a.jsonl", "\n");
  StreamOptions o;
  o.lanes = 1;
  StreamReader reader(source("empty"), byte_codec(), o);
  EXPECT_ERROR(reader.next(0), "hold no document with text");
}

TEST_F(StreamTest, DocumentsThatNeverFillARowEndTheStreamWithAnError) {
  std::string text;
  for (int d = 0; d < 4000; ++d) text += R"({"text":")" + std::string(60, 'x') + "\"}\n";
  folder_.write("set/long.jsonl", text);
  bool end = false;
  EXPECT_ERROR(row_text(*feed(Packing::first_fit, 2, {}), 0, end), "fits into a row with a loss: raise seq_len (now 24)");
  EXPECT_NO_THROW(row_text(*feed(Packing::best_fit, 2, {}), 0, end));
}

TEST_F(StreamTest, SmallSetsSayOnceThatTheyRepeat) {
  write_files(1, 5, 1);
  bool end = false;
  testing::internal::CaptureStdout();
  {
    auto all = feed(Packing::best_fit, 2, {1, 1});
    for (int64_t r = 0; r < 50; ++r) row_text(*all, r, end);
  }
  const std::string said = testing::internal::GetCapturedStdout();
  const size_t first = said.find("is being re-looped (epoch 2)");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("re-looped (epoch 3)"), std::string::npos) << said;
}

TEST_F(StreamTest, RejectsDamagedPositions) {
  write_files(3, 10, 10);
  auto all = feed(Packing::concat, 2, {});
  bool end = false;
  for (int64_t r = 0; r < 6; ++r) row_text(*all, r, end);
  const Json good = all->positions({0, 6});
  ASSERT_EQ(good["lanes"].size(), 2u);
  for (const char* key : {"epoch", "document", "ordinal", "used", "bytes", "dealt", "drawn"}) {
    for (const Json& wrong : {Json(-1), Json("x"), Json(nullptr), Json(Json::array({-1}))}) {
      Json bad = good;
      bad["lanes"]["0"]["sources"]["set"][key] = wrong;
      EXPECT_ERROR(feed(Packing::concat, 2, {})->restore(bad, {0, 6}), "data position of the checkpoint") << key;
    }
  }
  Json other = good;
  other["data"]["set"]["digest"] = "0";
  EXPECT_ERROR(feed(Packing::concat, 2, {})->restore(other, {0, 6}), "the files of set differ");
}

TEST(Mixture, DrawsTheSharesOfEveryRound) {
  const std::vector<double> weights = {0.7, 0.2, 0.1, 0};
  std::vector<int64_t> total(4, 0);
  for (int64_t round = 0; round < 500; ++round) {
    std::vector<int64_t> count(4, 0);
    for (int64_t lane = 0; lane < 64; ++lane) ++count[static_cast<size_t>(draw_source(round * 64 + lane, 64, 1, weights))];
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_LE(std::abs(static_cast<double>(count[i]) - 64 * weights[i]), 1.0);
      total[i] += count[i];
    }
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(static_cast<double>(total[i]) / 32000, weights[i], 0.002);
  // Every lane has every source at its share.
  std::vector<int64_t> lane0(4, 0);
  for (int64_t round = 0; round < 4000; ++round) ++lane0[static_cast<size_t>(draw_source(round * 64 + 5, 64, 1, weights))];
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(static_cast<double>(lane0[i]) / 4000, weights[i], 0.03);
  EXPECT_EQ(draw_source(3, 64, 1, std::vector<double>{0, 0}), -1);
}

TEST(Mixture, ReadsSchedules) {
  const WeightSchedule w("0.7, 100: 0.3,  200:0", "f");
  EXPECT_EQ(w.at(0), 0.7);
  EXPECT_EQ(w.at(99), 0.7);
  EXPECT_EQ(w.at(100), 0.3);
  EXPECT_EQ(w.at(5000), 0);
  for (const char* bad : {"", "x", "-1", "nan", "5: 1", "1, 1", "1, 10: 2, 5: 3", "1,", "1 2"})
    EXPECT_ERROR(WeightSchedule(bad, "f"), "expected a weight") << bad;
}

class MixtureTest : public StreamTest {
 protected:
  struct Part {
    std::string name, weight;
    bool streamed;
    int64_t row_limit = 0, epochs = 0;
  };
  std::unique_ptr<LaneFeed> mix(const std::vector<Part>& parts, Share share = {1, 8}) {
    std::vector<LaneFeed::Source> sources;
    const int64_t lanes = 8;
    for (const Part& p : parts) {
      LaneFeed::Source& s = sources.emplace_back();
      s.name = p.name, s.weight = WeightSchedule(p.weight, "w"), s.row_limit = p.row_limit;
      if (p.streamed) {
        StreamOptions o;
        o.lanes = lanes, o.window = 30, o.shuffle = true, o.epochs = p.epochs;
        s.rows = stream_rows(source(p.name), byte_codec(), row_options(Packing::concat), o);
      } else {
        RowOptions r = row_options(Packing::concat);
        r.shuffle = true;
        auto store = open_token_store(*source(p.name, false), byte_codec(), folder_ / "cache", 2);
        s.rows = indexed_rows(std::make_unique<RowSequence>(store, r), lanes, p.epochs);
      }
    }
    LaneFeed::Options f;
    f.lanes = lanes, f.seq_len = 24, f.mixture = true;
    f.local_batch = share.local, f.global_batch = share.global, f.dp_rank = share.rank, f.dp_size = share.size;
    return std::make_unique<LaneFeed>(std::move(sources), f);
  }
  void SetUp() override {
    write_files(20, 10, 1, "a");
    write_files(20, 10, 2, "b");
    write_files(20, 10, 3, "c");
  }
};

TEST_F(MixtureTest, MixesStreamedAndIndexedSourcesByWeightAndSchedule) {
  auto feed = mix({{"a", "0.5, 50: 0", true}, {"b", "0.5", false}});
  std::vector<int> count(2, 0);
  bool end = false;
  for (int64_t r = 0; r < 400; ++r) row_text(*feed, r, end), ++count[static_cast<size_t>(feed->source())];
  EXPECT_NEAR(count[0], 200, 1);
  for (int64_t r = 400; r < 500; ++r) {
    row_text(*feed, r, end);
    EXPECT_EQ(feed->source(), 1);
  }
}

TEST_F(MixtureTest, RowsAreTheSameForAnyNumberOfProcessesAndResumeExactly) {
  const std::vector<Part> parts = {{"a", "3", true}, {"b", "2", false}, {"c", "1", true}};
  auto whole = mix(parts);
  std::vector<std::string> expected;
  bool end = false;
  for (int64_t r = 0; r < 240; ++r) expected.push_back(row_text(*whole, r, end));
  std::vector<std::string> states;
  for (int64_t rank = 0; rank < 2; ++rank) {
    auto own = mix(parts, {2, 8, rank, 2});
    for (int64_t first = rank * 2; first < 80; first += 4)
      for (int64_t b = 0; b < 2; ++b) EXPECT_EQ(row_text(*own, first + b, end), expected[static_cast<size_t>(first + b)]);
    states.push_back(Json{{"positions", own->positions({0, 80})}}.dump());
  }
  auto resumed = mix(parts);
  resumed->restore(merge_states(states)["positions"], {0, 80});
  for (int64_t r = 80; r < 240; ++r) ASSERT_EQ(row_text(*resumed, r, end), expected[static_cast<size_t>(r)]) << r;
}

TEST_F(MixtureTest, SourcesMayBeAddedAndReweightedOnResume) {
  auto before = mix({{"a", "1", true}, {"b", "1", false}});
  std::map<int, std::vector<std::string>> rows_of_source;
  bool end = false;
  for (int64_t r = 0; r < 80; ++r) row_text(*before, r, end);
  const Json saved = before->positions({0, 80});
  std::vector<std::vector<std::string>> expected(2);
  for (int64_t r = 80; r < 400; ++r) {
    std::string text = row_text(*before, r, end);
    expected[static_cast<size_t>(before->source())].push_back(text.substr(text.find(' ')));
  }
  auto after = mix({{"a", "2", true}, {"b", "1", false}, {"c", "1", true}});
  after->restore(saved, {0, 80});
  // Lane by lane each old source goes on where it was: the same rows, as a set, over a long run.
  std::multiset<std::string> old(expected[0].begin(), expected[0].end());
  int64_t found = 0, seen = 0, fresh = 0;
  for (int64_t r = 80; r < 200; ++r) {
    const std::string text = row_text(*after, r, end);
    if (after->source() == 2) ++fresh;
    if (after->source() != 0) continue;
    ++seen;
    found += static_cast<int64_t>(old.count(text.substr(text.find(' '))) > 0);
  }
  EXPECT_EQ(found, seen);
  EXPECT_GT(fresh, 20);
}

TEST_F(MixtureTest, LimitsEndASourceAndTheFeed) {
  auto feed = mix({{"a", "1", true, 20}, {"b", "1", false, 0, 1}, {"c", "1", true, 0, 1}});
  std::vector<int64_t> count(3, 0);
  bool end = false;
  int64_t rows = 0;
  for (; rows < 100000; ++rows) {
    row_text(*feed, rows, end);
    if (end) break;
    ++count[static_cast<size_t>(feed->source())];
  }
  EXPECT_TRUE(end);
  EXPECT_GE(count[0], 15);
  EXPECT_LE(count[0], 20);
  EXPECT_GT(count[1], 150);
  EXPECT_GT(count[2], 150);
}

}  // namespace
}  // namespace halftone::stream_test
