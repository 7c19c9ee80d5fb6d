#include "halftone/comm/flight_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace halftone::comm {
namespace {

TEST(FlightRecorder, TheRingHoldsTheLastOperations) {
  FlightRecorder recorder({4, ""});
  const auto group = std::make_shared<Group>(Group{"pp", "pp@0", {0, 2}});
  for (int64_t i = 1; i <= 10; ++i) {
    EXPECT_EQ(recorder.begin(i == 10 ? Operation{"send", group, 0, 2} : Operation{"all-reduce", group, i}), i);
  }
  recorder.end(6);  // no longer recorded
  recorder.end(9);
  std::istringstream lines(recorder.text(0, 4, "a \"reason\""));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(nlohmann::json::parse(line)["reason"], "a \"reason\"");
  for (int64_t i = 7; i <= 10; ++i) {
    std::getline(lines, line);
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json.value("number", 0), i == 10 ? 0 : i) << line;
    EXPECT_EQ(json.value("peer", -1), i == 10 ? 2 : -1) << line;
    EXPECT_EQ(json["ended"] == "under way", i != 9) << line;
    EXPECT_EQ(json["begun"].get<std::string>().size(), std::string("2026-03-01T12:00:00.123Z").size()) << line;
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

TEST(FlightRecorder, OffItKeepsNothing) {
  FlightRecorder recorder({});
  EXPECT_FALSE(recorder.on());
  EXPECT_EQ(recorder.begin({"barrier", std::make_shared<Group>()}), 0);
  recorder.end(0);
  const std::string text = recorder.text(0, 1, "");
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
}

TEST(FlightRecorder, AFileIsReplacedAsAWholeOrSaysWhyNot) {
  const std::filesystem::path folder = testing::TempDir() + fmt::format("flight{}", getpid()), file = folder / "new" / "rank_0.jsonl";
  for (const char* text : {"a longer text", "text"}) {
    EXPECT_EQ(FlightRecorder({4, file}).write(text, Milliseconds(60'000)), "");
    std::ifstream in(file);
    EXPECT_EQ((std::ostringstream() << in.rdbuf()).str(), text);
  }
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".tmp"));
  EXPECT_EQ(FlightRecorder({4, file / "below"}).write("text", Milliseconds(60'000)), "Not a directory");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace halftone::comm
