#include "halftone/eval/task.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "halftone/base/error.h"
#include "halftone/eval/run.h"

namespace halftone::eval_task_test {
namespace {

namespace fs = std::filesystem;
using namespace eval;

constexpr const char* kChoice = R"(
[quiz]
kind = "multiple_choice"
file = "quiz.jsonl"
shots_file = "quiz.jsonl"
text = "Q: {q}"
choices = "{c}"
answer = "{a}"
)";

class EvalTask : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(::testing::TempDir()) / ("eval_task_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_), fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::vector<PreparedTask> prepared(const std::string& toml, RunOptions options = {}) {
    options.data = folder_.string();
    return prepare(parse_tasks(toml, "mine.toml", folder_.string()), options);
  }
  // The one line of the error, with the folder as @.
  std::string error(const std::string& toml, RunOptions options = {}) {
    try {
      prepared(toml, options);
      return "none";
    } catch (const Error& e) {
      std::string text = e.what();
      for (size_t at; (at = text.find(folder_.string())) != std::string::npos;) text.replace(at, folder_.string().size(), "@");
      EXPECT_EQ(text.find('\n'), std::string::npos);
      return text;
    }
  }
  fs::path folder_;
};

TEST_F(EvalTask, EveryBuiltinTaskIsComplete) {
  const std::vector<Task> all = parse_tasks(builtin_tasks(), "table", "");
  ASSERT_EQ(all.size(), 9);
  size_t subjects = 0;
  for (const Task& t : all)
    for (const auto& [name, members] : t.groups) subjects += members.size();
  EXPECT_EQ(subjects, 57);
}

TEST_F(EvalTask, MakesQuestions) {
  write("quiz.jsonl", R"({"q": "one", "c": ["x", "y"], "a": 1})"
                      "\n"
                      R"({"q": "two", "c": ["u", "v", "w"], "a": "u"})"
                      "\n");
  RunOptions options;
  options.shots = 1, options.first_shots = true;
  const std::vector<PreparedTask> p = prepared(kChoice, options);
  ASSERT_EQ(p.size(), 1);
  ASSERT_EQ(p[0].questions.size(), 2);
  EXPECT_EQ(p[0].questions[1].contexts, (std::vector<std::string>{"Q: one y\n\nQ: two"}));
  EXPECT_EQ(p[0].questions[1].choices.size(), 3);
  EXPECT_EQ(p[0].questions[0].gold, 1);
  EXPECT_EQ(p[0].questions[1].gold, 0);
}

// Random(1234).sample draws places 7, 1, 0 of ten rows; a question that may be its own example draws one more.
TEST_F(EvalTask, DrawsExamplesAsTheHarness) {
  std::string rows;
  for (int i = 0; i < 10; ++i) rows += fmt::format("{{\"q\": \"q{}\", \"c\": [\"x\"], \"a\": 0}}\n", i);
  write("quiz.jsonl", rows);
  RunOptions options;
  options.shots = 3, options.limit = 1;
  EXPECT_EQ(prepared(kChoice, options)[0].questions[0].contexts[0], "Q: q7 x\n\nQ: q1 x\n\nQ: q0 x\n\nQ: q0");
  options.shots = 2;
  EXPECT_EQ(prepared(std::string(kChoice) + "shots_without_self = true\n", options)[0].questions[0].contexts[0],
            "Q: q7 x\n\nQ: q1 x\n\nQ: q0");
  options.shots = 11;
  EXPECT_EQ(error(kChoice, options), "task quiz: expected at least 11 rows to draw 11 examples from, found 10; lower --shots");
}

TEST_F(EvalTask, BadRowsAreNamed) {
  EXPECT_NE(error(kChoice).find("@/quiz.jsonl"), std::string::npos);  // no such file
  write("quiz.jsonl", "");
  EXPECT_EQ(error(kChoice), "@/quiz.jsonl: expected rows of a task, found none in 1 files");
  write("quiz.jsonl", "{\"q\": \"one\", \"c\": [\"x\"], \"a\": 0}\n{\"q\": \"two\", \"c\": [\"x\"]}\n");
  EXPECT_EQ(error(kChoice), "@/quiz.jsonl:2: expected the field 'a', found q, c");
  write("quiz.jsonl", "{\"q\": \"one\", \"c\": [\"x\", \"y\"], \"a\": 2}\n");
  EXPECT_EQ(error(kChoice),
            "@/quiz.jsonl:1: task quiz: expected the answer to be one of 2 choices, by number from 0 or by text, found '2'");
  write("quiz.jsonl", "{\"q\": \"one\", \"c\": [], \"a\": 0}\n");
  EXPECT_EQ(error(kChoice), "@/quiz.jsonl:1: task quiz: expected choices, found none");
  write("quiz.jsonl", "{\"q\": \"one\", \"c\": [\"x\"], \"a\": 0}\n{\"q\": \"two\", \"c");
  EXPECT_EQ(error(kChoice).substr(0, 16), "@/quiz.jsonl:2: ");
  write("quiz.jsonl", "[1, 2]\n");
  EXPECT_EQ(error(kChoice).substr(0, 16), "@/quiz.jsonl:1: ");
  EXPECT_EQ(error(std::string(kChoice) + "labels = [\"A\", \"B\"]\n").substr(0, 16), "@/quiz.jsonl:1: ");
}

TEST_F(EvalTask, BadTasksAreNamed) {
  const auto with = [](const std::string& line) { return "[t]\nkind = \"multiple_choice\"\nfile = \"x.jsonl\"\n" + line + "\n"; };
  EXPECT_EQ(error(with("text = \"x\"\nchoices = [\"a\"]")), "mine.toml:2: [t]: a task of kind multiple_choice needs the field 'answer'");
  EXPECT_EQ(error("[t]\nkind = \"guess\"\n"),
            "mine.toml:2: t.kind: expected multiple_choice, completion, perplexity or generate, found \"guess\"");
  EXPECT_EQ(error(with("chioces = [\"a\"]")).substr(0, 46), "mine.toml:4: unknown field 'chioces' of task t");
  EXPECT_EQ(error(with("choices = \"a\"")),
            "mine.toml:4: t.choices: expected a list of texts, or a text that is a field with a list, such as \"{choices}\", found \"a\"");
  EXPECT_EQ(error(with("text = \"x\"\nchoices = [\"a\"]\nanswer = \"{a}\"\nmetrics = [\"f1\"]")),
            "mine.toml:2: [t]: metrics: expected acc, acc_norm, acc_bytes for kind multiple_choice, found 'f1'");
  EXPECT_EQ(error("kind = 1\n"), "mine.toml:1: expected a table for each task such as [mine], found the field 'kind' outside");
  EXPECT_EQ(error(""), "mine.toml: expected a table for each task such as [mine], found none");
  EXPECT_EQ(error("[t]\nkind = \"generate\"\ntext = \"x\"\ntarget = \"y\"\nfilters = [{regex = \"(\"}]\n").substr(0, 20),
            "mine.toml:5: t.filte");
  EXPECT_EQ(error("[t]\nkind = \"perplexity\"\ntext = \"x\"\nuntil = \"y\"\n"),
            "mine.toml:2: [t]: until is a field of kind generate, the task is of kind perplexity");
  EXPECT_EQ(error(with("text = \"x\"\nchoices = [\"a\"]\nanswer = \"{a}\"\n[t.groups]\ng = [\"a\"]")),
            "mine.toml:2: [t]: groups need split_by, whose values they group");
  EXPECT_THROW(find_tasks({"hellaswig"}), Error);
}

TEST_F(EvalTask, FindsPublishedLayouts) {
  write("ai2_arc/ARC-Easy/test.jsonl", R"({"question": "Why?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"})");
  write("ai2_arc/ARC-Challenge/test.jsonl", R"({"question": "No", "choices": {"text": ["x"], "label": ["A"]}, "answerKey": "A"})");
  RunOptions options;
  options.data = folder_.string();
  const std::vector<PreparedTask> p = prepare(find_tasks({"arc_easy", "arc_challenge"}), options);
  EXPECT_EQ(p[0].questions[0].contexts[0], "Question: Why?\nAnswer:");
  EXPECT_EQ(p[0].questions[0].gold, 1);
  EXPECT_EQ(p[1].questions[0].contexts[0], "Question: No\nAnswer:");
  try {
    prepare(find_tasks({"piqa"}), options);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("expected its data in"), std::string::npos);
  }
}

TEST_F(EvalTask, WinograndeHasTwoContexts) {
  write("winogrande/validation.jsonl", R"({"sentence": "The cup fell as _ was hot.", "option1": "tea", "option2": "ice", "answer": "2"})");
  RunOptions options;
  options.data = folder_.string();
  const std::vector<PreparedTask> p = prepare(find_tasks({"winogrande"}), options);
  EXPECT_EQ(p[0].questions[0].contexts, (std::vector<std::string>{"The cup fell as tea", "The cup fell as ice"}));
  EXPECT_EQ(p[0].questions[0].target, "was hot.");
  EXPECT_EQ(p[0].questions[0].gold, 1);
}

}  // namespace
}  // namespace halftone::eval_task_test
