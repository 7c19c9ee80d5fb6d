#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/chat/jinja/value.h"

namespace halftone::jinja {

struct Native;
struct Node;
using NodePtr = std::unique_ptr<Node>;
using Body = std::vector<NodePtr>;

enum class Op : uint8_t {
  // Expressions. args: operands, null where absent; name: variable, attribute or operator.
  constant,
  variable,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  negate,
  plus,
  invert,
  logical_and,
  logical_or,
  binary,
  compare,
  conditional,
  list,
  tuple,
  dict,
  // Statements. args[0]: the target or expression.
  data,
  output,
  set,
  set_block,
  set_attribute,
  branch,
  loop,
  macro,
  call_block,
  filter_block,
  with,
  generation,
  break_loop,
  continue_loop,
};

// call, filter, test: the callee or input is args[0], which is null for the filter of a block; keywords name the last arguments.
// compare: keywords are the operators. macro, call_block: keywords are the parameters, args their defaults (null: none); the call of a
// call_block is args.back(). loop: args = target, iterable, condition. branch: args[i] guards bodies[i]; one more body is the else.
struct Node {
  Op op;
  uint32_t at = 0;     // byte offset in the source
  uint32_t depth = 1;  // of the expression tree
  std::string name;
  Value value;                     // constant, data
  const Native* native = nullptr;  // of a filter or test
  std::vector<NodePtr> args;
  std::vector<std::string> keywords;
  std::vector<Body> bodies;
};

struct Token {
  enum Type : uint8_t { data, output_begin, output_end, tag_begin, tag_end, name, text, integer, real, op, end } type;
  uint32_t at;
  std::string value;  // data and text without escapes
};

struct Template {
  std::string name, source;  // with \n as the end of lines
  Body body;
  bool has_generation = false;
};

// Error "<name>, line l, column c: ...".
[[noreturn]] void fail_at(const Template& source, size_t at, std::string_view message);
// Tokens of the template, white space controlled as with trim_blocks and lstrip_blocks.
std::vector<Token> tokenize(const Template& source);
// Parses a template of at most 1 MiB. Error with line and column for what is not in the supported subset.
Template parse(std::string_view text, std::string name);

}  // namespace halftone::jinja
