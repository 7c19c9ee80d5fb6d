#include "halftone/gemm/choice_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <thread>

namespace halftone::gemm {
namespace {

namespace fs = std::filesystem;

ProductChoice choice(uint32_t key, uint32_t value, ProductChoice::Owner owner = ProductChoice::library) {
  ProductChoice c;
  c.owner = owner;
  std::memcpy(c.key.data(), &key, sizeof key);
  std::memcpy(c.value.data(), &value, sizeof value);
  return c;
}
// Owner, key and value of each choice.
std::vector<std::array<uint32_t, 3>> numbers(const std::vector<ProductChoice>& choices) {
  std::vector<std::array<uint32_t, 3>> out;
  for (const ProductChoice& c : choices) {
    auto& n = out.emplace_back();
    n[0] = static_cast<uint32_t>(c.owner);
    std::memcpy(&n[1], c.key.data(), 4), std::memcpy(&n[2], c.value.data(), 4);
  }
  return out;
}

class ChoiceFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "halftone-choices-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name, file_ = choice_file(folder_ / "new", "NVIDIA H100/80GB", "130100", "0.1.0");
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  std::string bytes() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(file_, std::ios::binary) << bytes; }

  fs::path folder_, file_;
};

TEST_F(ChoiceFile, KeepsTheNewestChoiceOfEachProduct) {
  EXPECT_EQ(file_.filename(), "products-NVIDIA_H100_80GB-130100-0.1.0");
  EXPECT_TRUE(load_choices(file_).choices.empty());
  EXPECT_EQ(load_choices(file_).problem, "");  // there is none yet
  const ProductChoice first[] = {choice(1, 10), choice(2, 20), choice(1, 30, ProductChoice::ours)},
                      second[] = {choice(1, 11), choice(4, 40)};
  EXPECT_EQ(add_choices(file_, first), "");
  EXPECT_EQ(add_choices(file_, second), "");
  const LoadedChoices loaded = load_choices(file_);
  EXPECT_EQ(loaded.problem, "");
  const std::vector<std::array<uint32_t, 3>> expected = {{0, 2, 20}, {1, 1, 30}, {0, 1, 11}, {0, 4, 40}};
  EXPECT_EQ(numbers(loaded.choices), expected);
  EXPECT_EQ(std::distance(fs::directory_iterator(file_.parent_path()), {}), 1);  // no temporary file remains
  std::vector<ProductChoice> many;
  for (uint32_t i = 0; i < kMostChoices; ++i) many.push_back(choice(100 + i, i));
  EXPECT_EQ(add_choices(file_, many), "");
  EXPECT_EQ(numbers(load_choices(file_).choices), numbers(many));
}

TEST_F(ChoiceFile, DamagedFilesCountAsEmptyAndAreReplaced) {
  const ProductChoice two[] = {choice(1, 10), choice(2, 20)};
  ASSERT_EQ(add_choices(file_, two), "");
  const std::string good = bytes();
  std::vector<std::string> damaged = {
      "", "x", good.substr(0, 31), good.substr(0, good.size() - 1), good + "x", std::string(good.size(), '\0')};
  for (size_t at = 0; at < good.size(); at += at < 32 ? 1 : 7) {  // every byte of the header, and some of the records
    damaged.push_back(good);
    damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ 0x40);
  }
  for (const std::string& text : damaged) {
    write(text);
    const LoadedChoices loaded = load_choices(file_);
    EXPECT_TRUE(loaded.choices.empty());
    EXPECT_NE(loaded.problem, "");
  }
  const ProductChoice three[] = {choice(3, 30)};
  EXPECT_EQ(add_choices(file_, three), "");
  const std::vector<std::array<uint32_t, 3>> expected = {{0, 3, 30}};
  EXPECT_EQ(numbers(load_choices(file_).choices), expected);
  // Another device's file under this name.
  const fs::path other = choice_file(file_.parent_path(), "NVIDIA A100", "130100", "0.1.0");
  fs::copy_file(file_, other);
  EXPECT_NE(load_choices(other).problem, "");
}

TEST_F(ChoiceFile, SaysWhyNothingIsKept) {
  const ProductChoice one[] = {choice(1, 10)};
  std::ofstream(folder_ / "file") << "x";
  EXPECT_NE(add_choices(folder_ / "file" / "products", one), "");  // no folder can be made there
  fs::create_directories(file_);                                   // a folder has this name
  EXPECT_NE(load_choices(file_).problem, "");
  EXPECT_NE(add_choices(file_, one), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(file_.parent_path()), {}), 1);
}

// Files are replaced atomically: a reader sees one writer's file or another's.
TEST_F(ChoiceFile, WritersAtOnceLeaveAWholeFile) {
  std::vector<std::thread> writers;
  for (uint32_t w = 0; w < 4; ++w) {
    writers.emplace_back([&, w] {
      std::vector<ProductChoice> mine;
      for (uint32_t i = 0; i < 25; ++i) {
        mine.push_back(choice(100 * w + i, i));
        EXPECT_EQ(add_choices(file_, mine), "");
        EXPECT_EQ(load_choices(file_).problem, "");
      }
    });
  }
  for (std::thread& w : writers) w.join();
  EXPECT_GE(load_choices(file_).choices.size(), 25u);  // at least the last writer's
}

TEST(CacheFolder, FollowsTheEnvironment) {
  std::map<std::string, std::string> set;
  const auto folder = [&] {
    return cache_folder([&](const char* name) { return set.count(name) != 0 ? set[name].c_str() : nullptr; }).string();
  };
  EXPECT_EQ(folder(), "");
  EXPECT_EQ(choice_file(folder(), "a", "b", "c"), "");
  set["HOME"] = "/h";
  EXPECT_EQ(folder(), "/h/.cache/halftone");
  set["XDG_CACHE_HOME"] = "relative";  // which the XDG specification says to ignore
  EXPECT_EQ(folder(), "/h/.cache/halftone");
  set["XDG_CACHE_HOME"] = "/x";
  EXPECT_EQ(folder(), "/x/halftone");
  set["HALFTONE_CACHE"] = "cache";
  EXPECT_EQ(folder(), "cache");
}

}  // namespace
}  // namespace halftone::gemm
