// The rows of schemes and options: their words name each other, and docs/recipes.md shows what they say.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "halftone/config/quantize_config.h"
#include "halftone/formats/recipe.h"
#include "source_dir.h"

namespace halftone::recipe_tables_test {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view text) {
  std::istringstream in{std::string(text)};
  return {std::istream_iterator<std::string>(in), {}};
}

const RecipeOption* find_option(std::string_view name) {
  for (const RecipeOption& row : recipe_options()) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

TEST(RecipeTables, SchemesNameOptionsAndOptionsSchemes) {
  for (const Scheme& s : kLinearRecipes) {
    EXPECT_FALSE(s.help.empty()) << s.name;
    for (const std::string_view words : {s.options, s.family->options, s.recommended, s.family->recommended, s.torchao}) {
      for (const std::string& word : split(words)) {
        const std::string name = word.substr(0, word.find('='));
        ASSERT_NE(find_option(name), nullptr) << s.name << ": " << word;
        EXPECT_TRUE(s.find_option(name)) << s.name << " sets " << word << " without having it";
      }
    }
  }
  for (const RecipeOption& row : recipe_options()) {
    const bool general = row.info.scope == Scope::rule || row.info.scope == Scope::run;
    EXPECT_EQ(row.info.schemes.empty(), general) << row.name;
    for (const auto& [other, why] : row.excludes) EXPECT_NE(find_option(other), nullptr) << row.name << ": " << other;
  }
}

TEST(RecipeTables, WordsAreFoundWhole) {
  constexpr std::string_view kWords = "two_level_scaling=blockwise scale style=x";
  EXPECT_EQ(find_word(kWords, "two_level_scaling"), "blockwise");
  EXPECT_EQ(find_word(kWords, "scale"), "");
  EXPECT_EQ(find_word(kWords, "style"), "x");
  for (const char* absent : {"two_level", "sty", "x", "scaling", "scale_mode"}) EXPECT_FALSE(find_word(kWords, absent)) << absent;
  EXPECT_FALSE(find_word("", "style"));
}

std::string code(const Words& words) {
  std::string out;
  for (const std::string& word : words) out += fmt::format("{}`{}`", out.empty() ? "" : ", ", word);
  return out;
}

std::string tables() {
  std::string out = "| scheme | what | K, N multiples of | experts | preset `recommended` sets |\n|---|---|---|---|---|\n";
  for (const Scheme& s : kLinearRecipes) {
    Words set = split(s.family->recommended);
    for (const std::string& word : split(s.recommended)) set.push_back(word);
    out += fmt::format("| {} | {} | {} | {} | {} |\n", s.name, s.help, s.dim_multiple, s.family->experts ? "yes" : "no", code(set));
  }
  out += "\n| option | what | schemes | not with | preset `alto` |\n|---|---|---|---|---|\n";
  for (const RecipeOption& row : recipe_options()) {
    Words excluded;
    for (const RecipeOption& other : recipe_options()) {
      for (const auto& [name, why] : other.excludes) {
        if (name == row.name) excluded.emplace_back(other.name);
      }
    }
    for (const auto& [name, why] : row.excludes) excluded.emplace_back(name);
    const std::string schemes = row.info.schemes.empty() ? "all" : fmt::format("{}", fmt::join(row.info.schemes, ", "));
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, row.help, schemes, code(excluded), row.info.alto);
  }
  return out;
}

TEST(RecipeTables, TheDocumentationShowsTheRows) {
  std::ifstream in(source_dir() + "/docs/recipes.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string begin = "<!-- from the rows -->\n", end = "<!-- end -->\n";
  const size_t from = text.find(begin), to = text.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos) << "docs/recipes.md lacks " << begin << " or " << end;
  const std::string shown = text.substr(from + begin.size(), to - from - begin.size());
  EXPECT_EQ(shown, tables()) << "put these tables between the marks of docs/recipes.md";
}

}  // namespace
}  // namespace halftone::recipe_tables_test
