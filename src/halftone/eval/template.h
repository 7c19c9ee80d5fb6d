#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "halftone/eval/rows.h"

namespace halftone::eval {

// A text with fields of a row: "Question: {question|strip}\nA. {choices[0]}". A field is a name, names behind dots for nested ones, [n]
// for an element of a list; behind | follow functions: strip, capitalize, first_words and last_word (all but the last word at blanks, and
// that word), before_blank and after_blank (around the first _; the latter stripped), spaces (_ as blanks). {{ and }} are braces.
class Template {
 public:
  Template() = default;
  // Error "WHAT: ..." for wrong syntax or an unknown function.
  Template(std::string_view text, const std::string& what);
  bool empty() const { return parts_.empty(); }
  // Strings, numbers and booleans become text. Error naming the row, the field that is missing and those that it has.
  std::string render(const Row& row) const;
  // The strings of the list that the template's only field is.
  std::vector<std::string> render_list(const Row& row) const;
  bool is_field() const { return parts_.size() == 1 && !parts_[0].path.empty(); }

 private:
  struct Part {
    std::string text;               // without a path
    std::string name;               // the field as written
    std::vector<std::string> path;  // names, and indices as "[0]"
    std::vector<std::string> functions;
  };
  static std::string render_field(const Part& part, const Json& value, const Row& row);
  std::vector<Part> parts_;
};

// A whole rendered text as a task cleans it: "hellaswag" (brackets of WikiHow), "wikitext" (the tokenised text of WikiText as prose), by
// lm-evaluation-harness. Error for another name.
using Clean = std::string (*)(const std::string& text);
Clean clean_of(const std::string& name, const std::string& what);

}  // namespace halftone::eval
