#include "halftone/eval/python_text.h"

#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/eval/python_random.h"
#include "halftone/eval/template.h"

namespace halftone::eval_python_test {
namespace {

using Groups = std::vector<std::vector<std::string>>;

// Expected values of this file are what CPython 3.11 gives.
TEST(PythonText, StripsAndCounts) {
  EXPECT_EQ(python::strip("a \u00a0\u3000\n\x1c", python::Side::right), "a");
  EXPECT_EQ(python::strip(" \t", python::Side::right), "");
  EXPECT_EQ(python::strip("\u2003 b c\u200b ", python::Side::both), "b c\u200b");  // a zero-width space is no blank
  EXPECT_EQ(python::code_points("a\u00e9\U0001F600"), 3);
  EXPECT_EQ(python::capitalize("\u00e9COLE Nine"), "\u00c9cole nine");
  EXPECT_EQ(python::replaced("aaa", "aa", "b"), "ba");
}

TEST(PythonText, RegexesFindAndReplace) {
  EXPECT_EQ(python::Regex("(-?[$0-9.,]{2,})|(-?[0-9]+)").find_all("The answer is $18.50, or 7."), (Groups{{"$18.50,", ""}, {"7.", ""}}));
  EXPECT_EQ(python::Regex("a*").find_all("baac"), (Groups{{""}, {"aa"}, {""}, {""}}));
  EXPECT_EQ(python::Regex("x*").substituted("abxd", "-"), "-a-b--d-");
  EXPECT_EQ(python::Regex(R"(\((\w)\))").substituted("(a) (b)", R"([\1])"), "[a] [b]");
  EXPECT_EQ(python::Regex(R"(\s+)").count("a\u00a0b  c"), 2);
  EXPECT_THROW(python::Regex("(a"), Error);
}

TEST(PythonRandom, DrawsAsCPython) {
  python::Random random(1234);
  EXPECT_EQ(random.sample(10, 3), (std::vector<size_t>{7, 1, 0}));
  EXPECT_EQ(random.sample(1000, 5), (std::vector<size_t>{92, 932, 965, 961, 826}));
  std::vector<size_t> many = random.sample(30, 25);
  many.resize(6);
  EXPECT_EQ(many, (std::vector<size_t>{18, 1, 21, 22, 2, 3}));
  python::Random other(7);
  EXPECT_EQ(other.random(), 0.32383276483316237);
  EXPECT_EQ(other.random(), 0.15084917392450192);
  EXPECT_EQ(other.bits32(), 2795742288U);
}

// Expected: the results of utils.preprocess and wikitext_detokenizer of lm-evaluation-harness 0.4.13.
TEST(EvalClean, TextsOfHellaSwagAndWikiText) {
  EXPECT_EQ(eval::clean_of("hellaswag", "")("  [header] How to do [title] Step  one [substeps] go  now "), " How to do. Step one go now");
  EXPECT_EQ(eval::clean_of("wikitext", "")(" \n = Robert <unk> = \n \n The 1 @,@ 000 @-@ year ( or so ) , said \" quoted text \" ; 5 @.@ 3 "
                                           "% . It 's { a } [ b ] ' c ' N 20 \u00b0 C \n = = Early = = \n"),
            "\n= Robert <unk> =\n\nThe 1,000-year (or so), said \"quoted text\"; 5.3 %. It's {a} [b]' c ' 1 20\u00b0C\n== Early ==\n");
}

TEST(EvalTemplate, RendersFields) {
  const eval::Row row{eval::Json::parse(R"({"q": " why? ", "n": 3, "c": {"text": ["a", "b"]}, "s": "The _ fell.", "w": "one two three"})"),
                      "rows.jsonl:4"};
  const auto render = [&](const char* text) { return eval::Template(text, "text").render(row); };
  EXPECT_EQ(render("{{{q|strip}}} {n} {c.text[1]}"), "{why?} 3 b");
  EXPECT_EQ(render("{s|before_blank}|{s|after_blank}|{w|first_words}|{w|last_word}"), "The |fell.|one two|three");
  EXPECT_EQ(eval::Template("{c.text}", "choices").render_list(row), (std::vector<std::string>{"a", "b"}));
}

TEST(EvalTemplate, ErrorsNameTheRow) {
  const eval::Row row{eval::Json::parse(R"({"q": "x", "c": ["a"], "none": null})"), "rows.jsonl:4"};
  const auto message = [&](const char* text) -> std::string {
    try {
      return eval::Template(text, "mine.toml:2: text").render(row);
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message("{answer}"), "rows.jsonl:4: expected the field 'answer', found q, c, none");
  EXPECT_EQ(message("{none}"), "rows.jsonl:4: expected the field 'none', found q, c, none");
  EXPECT_EQ(message("{c[1]}"), "rows.jsonl:4: c[1]: expected a list of more than 1 elements, found 1");
  EXPECT_EQ(message("{c}"), "rows.jsonl:4: c: expected text or a number, found a value of type array");
  EXPECT_EQ(message("{q|after_blank}"), "rows.jsonl:4: q: expected a _ in 'x'");
  EXPECT_EQ(message("{q|upper}"),
            "mine.toml:2: text: expected a function of strip, capitalize, first_words, last_word, before_blank, after_blank, spaces, found "
            "|upper");
  EXPECT_EQ(message("{q"), "mine.toml:2: text: a { without its partner in '{q'; {{ and }} are braces");
}

}  // namespace
}  // namespace halftone::eval_python_test
