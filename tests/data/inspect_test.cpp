#include "halftone/data/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <sstream>

#include "data/data_testing.h"
#include "halftone/data/bin_writer.h"

namespace halftone::inspect_test {
namespace {

using Words = std::vector<std::string>;

std::string joined(const Words& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

// Words drawn as in a language: few are frequent.
std::string random_word(std::mt19937& random) {
  const double u = std::uniform_real_distribution<>(0, 1)(random);
  return "w" + std::to_string(static_cast<int>(20000 * u * u * u));
}

Words random_words(int n, std::mt19937& random) {
  Words out;
  for (int i = 0; i < n; ++i) out.push_back(random_word(random));
  return out;
}

// With each word replaced with probability `share`.
Words edited(Words words, double share, std::mt19937& random) {
  for (std::string& word : words)
    if (std::uniform_real_distribution<>(0, 1)(random) < share) word = random_word(random);
  return words;
}

double exact_jaccard(const Words& a, const Words& b) {
  const auto shingles = [](const Words& words) {
    std::set<std::string> out;
    for (size_t i = 0; i + kShingleWords <= words.size(); ++i) {
      std::string shingle;
      for (size_t k = 0; k < kShingleWords; ++k) shingle += words[i + k] + " ";
      out.insert(shingle);
    }
    return out;
  };
  const auto x = shingles(a), y = shingles(b);
  std::vector<std::string> both;
  std::ranges::set_intersection(x, y, std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(x.size() + y.size() - both.size());
}

Sketch sketch_of(std::string_view text) {
  Sketch out{};
  EXPECT_TRUE(sketch_text(text, out)) << text;
  return out;
}

// 3,000 pairs of texts of 60 to 600 words with exact Jaccard similarities from 0.3 to 1. The estimate's standard deviation is at most 1/16
// (64 permutations). At the threshold of 0.8, around which half of the pairs lie, precision is 0.89 and recall 0.90; of the pairs above
// 0.87 99% are found, and none below 0.7.
TEST(Sketch, EstimatesExactJaccard) {
  std::mt19937 random(3);
  double error = 0;
  int pairs = 0, found = 0, alike = 0, right = 0, clear = 0, clear_found = 0, far_found = 0;
  for (int i = 0; i < 3000; ++i) {
    const Words a = random_words(60 + static_cast<int>(random() % 540), random);
    const Words b = edited(a, 0.1 * std::uniform_real_distribution<>(0, 1)(random), random);
    const double exact = exact_jaccard(a, b), estimate = similarity(sketch_of(joined(a)), sketch_of(joined(b)));
    error += std::abs(exact - estimate);
    ++pairs;
    NearDuplicates near;
    int64_t earlier = 0;
    EXPECT_EQ(near.add(sketch_of(joined(a)), 1, earlier), 0);
    const bool is_found = near.add(sketch_of(joined(b)), 2, earlier) > 0;
    EXPECT_EQ(is_found, estimate >= kNearDuplicate) << "the bands lost a pair";
    found += is_found, alike += exact >= kNearDuplicate, right += is_found && exact >= kNearDuplicate;
    clear += exact >= 0.87, clear_found += is_found && exact >= 0.87;
    far_found += is_found && exact < 0.7;
  }
  EXPECT_LT(error / pairs, 0.05);
  EXPECT_GT(clear, 400);
  EXPECT_GT(pairs - alike, 500);
  EXPECT_GE(clear_found, 0.97 * clear) << clear_found << " of " << clear;
  EXPECT_EQ(far_found, 0);
  EXPECT_GE(right, 0.85 * found) << "precision";
  EXPECT_GE(right, 0.85 * alike) << "recall";
}

TEST(Sketch, UnrelatedTextsAreNotAlike) {
  std::mt19937 random(4);
  NearDuplicates near;
  int64_t earlier = 0;
  for (int i = 0; i < 20000; ++i) EXPECT_EQ(near.add(sketch_of(joined(random_words(80, random))), i, earlier), 0) << i;
  EXPECT_EQ(near.share().documents(), 20000);
  EXPECT_EQ(near.share().found(), 0);
}

TEST(Sketch, WordsAreLettersInAnyCaseAndSingleCharactersOfScriptsWithoutBlanks) {
  const auto same = [](std::string_view a, std::string_view b) { return sketch_of(a).minima == sketch_of(b).minima; };
  EXPECT_TRUE(same("The quick, brown Fox; jumps (over) it", "the QUICK brown fox jumps\n\nover it."));
  EXPECT_TRUE(same("one “two” three—four five six", "one two three four five six"));
  EXPECT_FALSE(same("the quick brown fox jumps over it", "the quick brown fox jumps under it"));
  EXPECT_TRUE(same("天地玄黄宇宙洪荒", "天地玄黄、宇宙 洪荒。 "));
  EXPECT_FALSE(same("天地玄黄宇宙洪荒", "天地玄黄宇宙"));
}

TEST(Sketch, TextsWithoutWordsHaveNone) {
  Sketch out{};
  for (const char* text : {"", "   \n", "?! -- ...", "\xE2\x80\x94"}) EXPECT_FALSE(sketch_text(text, out)) << text;
  EXPECT_FALSE(sketch_ids({}, out));
  EXPECT_TRUE(sketch_text("word", out));
  EXPECT_TRUE(sketch_text("\xE4", out)) << "cut character";
  EXPECT_TRUE(sketch_text("\xFF\xE0", out)) << "no UTF-8";
}

// 24,000 documents, a quarter of them lightly edited copies of an earlier one: found in a sample that memory limits.
TEST(Duplicates, AreCountedInBoundedMemory) {
  std::mt19937 random(5);
  std::vector<Words> originals;
  NearDuplicates all, some(1000);
  ExactDuplicates all_exact, some_exact(1000);
  int64_t earlier = 0, copies = 0, number = 0;
  while (number < 24000) {
    const bool copy = !originals.empty() && random() % 4 == 0;
    if (!copy) originals.push_back(random_words(120, random));
    const size_t of = copy ? random() % originals.size() : originals.size() - 1;
    copies += copy;
    const Sketch sketch = sketch_of(joined(copy ? edited(originals[of], 0.003, random) : originals[of]));
    all.add(sketch, number, earlier), some.add(sketch, number, earlier);
    const uint64_t hash = (of + 1) * 0x9E3779B97F4A7C15;
    EXPECT_EQ(all_exact.add(hash), copy);
    some_exact.add(hash);
    ++number;
  }
  const double share = static_cast<double>(copies) / static_cast<double>(number);
  EXPECT_EQ(all_exact.share().found(), copies);
  EXPECT_NEAR(all.share().share(), share, 0.02);
  EXPECT_NEAR(some_exact.share().share(), share, 0.08) << some_exact.share().documents() << " documents";
  EXPECT_NEAR(some.share().share(), share, 0.08) << some.share().documents() << " documents";
  for (const SampledShare& sampled : {some.share(), some_exact.share()}) {
    EXPECT_FALSE(sampled.whole());
    EXPECT_LT(sampled.documents(), 3000);
    EXPECT_GT(sampled.documents(), 400);
  }
  EXPECT_TRUE(all.share().whole());
}

TEST(LengthCounts, QuantilesAreExactBelow128AndWithinASixtyFourthAbove) {
  std::mt19937 random(6);
  std::vector<int64_t> lengths = {0, 0, 1, 127, 128, 129, int64_t{1} << 40};
  for (int i = 0; i < 5000; ++i) lengths.push_back(static_cast<int64_t>(std::exp(std::uniform_real_distribution<>(0, 20)(random))));
  LengthCounts counts, first, second;
  for (size_t i = 0; i < lengths.size(); ++i) counts.add(lengths[i]), (i % 3 == 0 ? first : second).add(lengths[i]);
  first.add(second);
  std::ranges::sort(lengths);
  int64_t sum = 0;
  for (const int64_t length : lengths) sum += length;
  for (const LengthCounts* c : {&counts, &first}) {
    EXPECT_EQ(c->count(), static_cast<int64_t>(lengths.size()));
    EXPECT_EQ(c->sum(), sum);
    EXPECT_EQ(c->smallest(), 0);
    EXPECT_EQ(c->largest(), int64_t{1} << 40);
    for (const double q : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0}) {
      const auto at = static_cast<size_t>(std::max(1.0, std::ceil(q * static_cast<double>(lengths.size())))) - 1;
      const int64_t exact = lengths[at], found = c->quantile(q);
      EXPECT_LE(found, exact) << q;
      EXPECT_GE(found, exact < 128 ? exact : exact - exact / 64 - 1) << q;
    }
    for (const int most : {4, 12, 100}) {
      int64_t in_bins = 0;
      const auto bins = c->bins(most);
      EXPECT_LE(static_cast<int>(bins.size()), most + 1);
      for (size_t i = 0; i < bins.size(); ++i) {
        in_bins += bins[i].count;
        EXPECT_EQ(bins[i].count, std::ranges::count_if(lengths, [&](int64_t n) { return n >= bins[i].begin && n < bins[i].end; })) << i;
        EXPECT_EQ(bins[i].begin, i == 0 ? 0 : bins[i - 1].end);
      }
      EXPECT_EQ(in_bins, c->count());
    }
  }
  EXPECT_EQ(LengthCounts().quantile(0.5), 0);
  EXPECT_TRUE(LengthCounts().bins(10).empty());
}

// Documents in memory, as many shards as there are lists.
class Listed : public DocumentSource {
 public:
  struct Item {
    Document::Kind kind = Document::Kind::text;
    std::string text;
    std::vector<ByteRange> learned;
    std::vector<int32_t> ids;
  };
  explicit Listed(std::vector<std::vector<Item>> shards) : DocumentSource({}), shards_(std::move(shards)) {}
  std::string kind() const override { return "listed"; }
  std::string options() const override { return ""; }
  int64_t shard_count() const override { return static_cast<int64_t>(shards_.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override {
    for (const Item& item : shards_.at(static_cast<size_t>(shard))) {
      Document document;
      document.kind = item.kind;
      document.text = item.text, document.learned = item.learned, document.ids = item.ids;
      visit(document);
    }
  }
  void read_file(size_t file, const DocumentVisitor& visit) const override { read_shard(static_cast<int64_t>(file), visit); }

 private:
  std::vector<std::vector<Item>> shards_;
};

// Every figure, for comparisons.
std::string figures(const Inspection& f) {
  std::ostringstream out;
  out << f.whole << f.by_files << ' ' << f.parts << ' ' << f.parts_read << ' ' << f.cut << ' ' << f.documents << ' ' << f.empty << ' '
      << f.text_bytes << ' ' << f.characters << ' ' << f.not_utf8 << ' ' << f.bad.count << ' ' << f.special_documents << ' ' << f.ready_made
      << ' ' << f.conversations << ' ' << f.answers << ' ' << f.learned_bytes << ' ' << f.pieces << ' ' << f.tokens << ' '
      << f.exact.found() << ' ' << f.near.found() << ' ' << f.near.documents() << ' ' << f.lengths.sum() << ' ' << f.first_is_all;
  for (const std::string& place : f.bad.places()) out << ' ' << place;
  for (const auto& [token, count] : f.special) out << ' ' << token << count;
  for (const double q : {0.1, 0.5, 0.9}) out << ' ' << f.lengths.quantile(q);
  for (const DocumentEntry& entry : f.entries) out << ' ' << entry.end << ':' << entry.hash;
  for (const auto* list : {&f.exact_first, &f.near_first})
    for (const Repeated& r : *list) out << ' ' << r.document << ' ' << r.earlier << ' ' << r.similarity << ' ' << r.begin;
  if (f.first) f.first->read_shard(0, [&](const Document& d) { out << '\n' << static_cast<int>(d.kind) << d.text << d.ids.size(); });
  return out.str();
}

std::unique_ptr<DocumentSource> jsonl(const std::string& path) {
  SourceOptions options;
  options.dataset = "jsonl", options.path = path, options.on_bad_line = "skip", options.vocab_size = kVocab;
  return open_source(options);
}

std::string line(const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; }

TEST(Inspect, CountsWhatIsInAFile) {
  const TempFolder folder;
  std::mt19937 random(7);
  const Words words = random_words(200, random);
  Words close = words;
  close[50] = "other";
  std::string text = line("a first text of seven short words") + line("") + line(joined(words)) + line("h\xC3\xA9llo <stop> w\xC3\xB6rld") +
                     line(joined(close)) + line("a first text of seven short words") + line("<stop>") + "{\"text\": 3}\n" +
                     line("\xE9t\xE9") + "{\"input_ids\": [1, 2, 3, 4, 5, 6]}\n" + "no JSON\n";
  folder.write("a.jsonl", text);
  const TextCodec codec = byte_codec();
  InspectOptions options;
  options.codec = &codec;
  options.keep_bytes = 1 << 20;
  options.find_special = [](std::string_view t) { return t.find("<stop>") == t.npos ? std::string_view() : std::string_view("<stop>"); };
  const auto source = jsonl(folder / "a.jsonl");
  const Inspection f = inspect_source(*source, options);
  EXPECT_TRUE(f.whole);
  EXPECT_EQ(f.share(), 1);
  EXPECT_EQ(f.documents, 8);
  EXPECT_EQ(f.empty, 1);
  EXPECT_EQ(f.ready_made, 1);
  EXPECT_EQ(f.special_documents, 2);
  EXPECT_EQ(f.special.at("<stop>"), 2);
  EXPECT_EQ(f.bad.count, 3);
  EXPECT_EQ(f.not_utf8, 1);
  ASSERT_EQ(f.bad.places().size(), 3U);
  EXPECT_NE(f.bad.places()[0].find("a.jsonl:8:"), std::string::npos) << f.bad.places()[0];
  const int64_t text_bytes = 2 * 33 + static_cast<int64_t>(joined(words).size() + joined(close).size()) + 20 + 6;
  EXPECT_EQ(f.text_bytes, text_bytes);
  EXPECT_EQ(f.characters, text_bytes - 2);
  EXPECT_EQ(f.tokens, text_bytes + 2 * 6 + 6) << "BOS and EOS of six texts, the ids as they are; an empty text has none";
  EXPECT_EQ(f.pieces, 7);
  EXPECT_EQ(f.lengths.sum(), f.tokens);
  EXPECT_EQ(f.entries.back().end, static_cast<uint64_t>(f.tokens));
  EXPECT_EQ(f.exact.found(), 1);
  EXPECT_EQ(f.exact.documents(), 7);
  ASSERT_EQ(f.exact_first.size(), 1U);
  EXPECT_EQ(f.exact_first[0].document, 6);
  EXPECT_EQ(f.exact_first[0].begin, "a first text of seven short words");
  EXPECT_EQ(f.near.found(), 1);
  EXPECT_EQ(f.near.documents(), 6) << "exact duplicates are not compared";
  ASSERT_EQ(f.near_first.size(), 1U);
  EXPECT_EQ(f.near_first[0].document, 5);
  EXPECT_EQ(f.near_first[0].earlier, 3);
  EXPECT_NEAR(f.near_first[0].similarity, exact_jaccard(words, close), 0.15);
  // The documents kept are those of the file.
  EXPECT_TRUE(f.first_is_all);
  ASSERT_NE(f.first, nullptr);
  std::vector<std::string> kept, read;
  f.first->read_shard(0, [&](const Document& d) { kept.push_back(std::string(d.text) + std::to_string(d.ids.size())); });
  source->read_shard(0, [&](const Document& d) {
    if (d.kind != Document::Kind::bad) read.push_back(std::string(d.text) + std::to_string(d.ids.size()));
  });
  EXPECT_EQ(kept, read);
}

TEST(Inspect, IsTheSameOnAnyNumberOfThreads) {
  const TempFolder folder;
  std::mt19937 random(8);
  std::vector<Words> texts;
  for (int file = 0; file < 5; ++file) {
    std::string lines;
    for (int i = 0; i < 3000; ++i) {
      if (texts.empty() || random() % 5 != 0) texts.push_back(random_words(20 + static_cast<int>(random() % 100), random));
      lines += i % 100 == 7 ? "[1]\n" : line(joined(edited(texts[random() % texts.size()], 0.005, random)));
    }
    folder.write("f" + std::to_string(file) + ".jsonl", lines);
  }
  const auto source = jsonl(folder.str());
  ASSERT_GT(source->shard_count(), 5);
  const TextCodec codec = byte_codec();
  for (const TextCodec* c : {static_cast<const TextCodec*>(nullptr), &codec}) {
    for (const int64_t bytes : {int64_t{0}, int64_t{2} << 20}) {
      for (const int64_t documents : {0, 1000}) {
        std::vector<std::string> said;
        for (const int threads : {1, 2, 5}) {
          InspectOptions options;
          options.codec = c;
          options.threads = threads;
          options.sample_bytes = bytes, options.sample_documents = documents;
          options.keep_bytes = 3000;
          const Inspection f = inspect_source(*source, options);
          said.push_back(figures(f));
          EXPECT_EQ(f.documents, documents > 0 ? documents : f.documents);
          EXPECT_EQ(f.whole, bytes == 0 && documents == 0);
          EXPECT_GT(f.near.found(), 20);
          EXPECT_EQ(f.lengths.sum(), c == nullptr ? f.characters : f.tokens);
        }
        EXPECT_EQ(said[0], said[1]);
        EXPECT_EQ(said[0], said[2]);
      }
    }
  }
}

TEST(Inspect, ALargeSourceIsReadInPartsSpreadOverItsFiles) {
  const TempFolder folder;
  std::mt19937 random(9);
  for (int file = 0; file < 400; ++file) {
    std::string lines;
    for (int i = 0; i < 20; ++i) lines += line("file " + std::to_string(file) + " " + joined(random_words(40, random)));
    folder.write("f" + std::to_string(1000 + file) + ".jsonl", lines);
  }
  const auto source = jsonl(folder.str());
  const int64_t bytes = source->files().bytes();
  InspectOptions options;
  options.threads = 2;
  options.keep_bytes = 1 << 20;
  options.sample_bytes = bytes / 4;
  const Inspection quarter = inspect_source(*source, options);
  EXPECT_TRUE(quarter.by_files);
  EXPECT_FALSE(quarter.whole);
  EXPECT_EQ(quarter.parts, 400);
  EXPECT_NEAR(static_cast<double>(quarter.parts_read), 100, 2);
  EXPECT_LE(quarter.text_bytes, options.sample_bytes);
  // Small pieces: 40 files, each from its start.
  options.sample_bytes = bytes / 100;
  const Inspection little = inspect_source(*source, options);
  EXPECT_EQ(little.parts_read, kSampleFiles);
  EXPECT_TRUE(little.cut);
  EXPECT_EQ(little.share(), 0) << "not known";
  EXPECT_GE(little.documents, kSampleFiles);
  EXPECT_LT(little.text_bytes, 2 * options.sample_bytes);
  EXPECT_FALSE(little.first_is_all);
  ASSERT_NE(little.first, nullptr) << "the documents at the start of the first file";
  little.first->read_shard(0, [](const Document& d) { EXPECT_TRUE(d.text.starts_with("file 0 ")) << d.text; });
  // A streamed source has only files.
  options.by_files = true, options.sample_bytes = 0;
  const Inspection streamed = inspect_source(*source, options);
  EXPECT_TRUE(streamed.whole);
  EXPECT_EQ(streamed.documents, 8000);
  options.by_files = false;
  EXPECT_EQ(inspect_source(*source, options).text_bytes, streamed.text_bytes);
  // More documents than there are: everything was read.
  options.sample_documents = 1'000'000'000;
  const Inspection many = inspect_source(*source, options);
  EXPECT_EQ(many.documents, 40 * 20) << "40 files of 20";
}

TEST(Inspect, ConversationsShowTheirAnswers) {
  const TextCodec codec = byte_codec();
  using Kind = Document::Kind;
  const Listed source({{{Kind::chat, "user: hi bot: hello user: bye bot: ok", {{14, 19}, {35, 37}}, {}}},
                       {{Kind::chat, "user: hi bot: hello", {{14, 19}}, {}}, {Kind::text, "no conversation", {}, {}}}});
  InspectOptions options;
  options.codec = &codec;
  options.find_special = [](std::string_view) { return std::string_view("bot"); };
  const Inspection f = inspect_source(source, options);
  EXPECT_EQ(f.documents, 3);
  EXPECT_EQ(f.conversations, 2);
  EXPECT_EQ(f.answers, 3);
  EXPECT_EQ(f.answers_each.largest(), 2);
  EXPECT_EQ(f.conversation_bytes, 37 + 19);
  EXPECT_EQ(f.learned_bytes, 5 + 2 + 5);
  EXPECT_EQ(f.special_documents, 1) << "the template's control tokens are meant";
}

TEST(Inspect, IdsInFilesAreDocuments) {
  const TempFolder folder;
  const TextCodec codec = byte_codec();
  const auto text = jsonl(folder.write("a.jsonl", random_jsonl(200, 60, 10)));
  InspectOptions options;
  options.codec = &codec;
  const Inspection from_text = [&] {
    BinWriter writer(*text, folder / "a.bin", 2, kEos, "--write");
    InspectOptions with_writer = options;
    with_writer.take = [&](const TokenisedShard& shard) { writer.add(shard); };
    Inspection f = inspect_source(*text, with_writer);
    EXPECT_EQ(writer.tokens(), f.tokens);
    EXPECT_NE(writer.commit().find("uint16"), std::string::npos);
    return f;
  }();
  SourceOptions bin;
  bin.dataset = "bin", bin.path = folder / "a.bin", bin.vocab_size = kVocab, bin.eos_id = kEos, bin.bos_id = kBos;
  const auto ids = open_source(bin);
  options.keep_bytes = 1 << 20;
  const Inspection f = inspect_source(*ids, options);
  EXPECT_EQ(f.tokens, from_text.tokens);
  EXPECT_EQ(f.documents, 200);
  EXPECT_EQ(f.ready_made, 200);
  EXPECT_EQ(f.entries.size(), from_text.entries.size());
  for (size_t i = 0; i < f.entries.size(); ++i) EXPECT_EQ(f.entries[i].hash, from_text.entries[i].hash) << i;
  ASSERT_NE(f.first, nullptr);
  int64_t copied = 0;
  f.first->read_shard(0, [&](const Document& d) { copied += static_cast<int64_t>(d.ids.size()); });
  EXPECT_EQ(copied, f.tokens);
  EXPECT_ERROR(BinWriter(*ids, folder / "b.bin", 2, kEos, "--write"), "holds ids already");
  EXPECT_ERROR(BinWriter(*text, folder / "a.jsonl", 2, kEos, "--write"), "is one of the input files");
}

TEST(Inspect, FailuresOfTheSourceEndIt) {
  const TempFolder folder;
  SourceOptions options;
  options.dataset = "jsonl", options.path = folder.write("a.jsonl", line("good") + "bad\n"), options.vocab_size = kVocab;
  const auto source = open_source(options);
  const TextCodec codec = byte_codec();
  InspectOptions with, without;
  with.codec = &codec;
  EXPECT_ERROR(inspect_source(*source, with), "a.jsonl:2:");
  EXPECT_ERROR(inspect_source(*source, without), "a.jsonl:2:");
}

}  // namespace
}  // namespace halftone::inspect_test
