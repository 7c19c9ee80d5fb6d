#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/chat/jinja/ast.h"
#include "halftone/chat/jinja/builtins.h"

namespace halftone::jinja {
namespace {

constexpr uint32_t kMaxDepth = 200;

class Parser {
 public:
  explicit Parser(Template& result) : template_(result), tokens_(tokenize(result)) {}

  void run() {
    template_.body = body({});
    if (now().type != Token::end) unexpected("the end of the template");
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is(Token::Type type, std::string_view value) const { return now().type == type && now().value == value; }
  bool is_op(std::string_view value) const { return is(Token::op, value); }
  bool is_word(std::string_view value) const { return is(Token::name, value); }
  bool take_op(std::string_view value) { return is_op(value) && ++at_; }
  bool take_word(std::string_view value) { return is_word(value) && ++at_; }
  [[noreturn]] void error(std::string_view message) const { fail_at(template_, now().at, message); }
  [[noreturn]] void unexpected(std::string_view expected) const {
    static constexpr const char* kNames[] = {"text", "{{", "}}", "{%", "%}"};
    const std::string found = now().type == Token::end       ? "the end of the template"
                              : now().type <= Token::tag_end ? kNames[now().type]
                                                             : fmt::format("'{}'", now().value.substr(0, 40));
    error(fmt::format("expected {}, found {}", expected, found));
  }
  void expect_op(std::string_view value) {
    if (!take_op(value)) unexpected(fmt::format("'{}'", value));
  }
  std::string expect_name() {
    if (now().type != Token::name) unexpected("a name");
    return tokens_[at_++].value;
  }
  void expect(Token::Type type, std::string_view what) {
    if (now().type != type) unexpected(what);
    ++at_;
  }

  NodePtr make(Op op, size_t at, std::string name = {}) {
    auto node = std::make_unique<Node>();
    node->op = op, node->at = static_cast<uint32_t>(at), node->name = std::move(name);
    return node;
  }
  void add(Node& node, NodePtr arg) {
    if (arg) node.depth = std::max(node.depth, arg->depth + 1);
    if (node.depth > kMaxDepth) error(fmt::format("the expression is nested deeper than {} levels", kMaxDepth));
    node.args.push_back(std::move(arg));
  }
  template <class... Nodes>
  NodePtr make_with(Op op, size_t at, std::string name, Nodes... args) {
    auto node = make(op, at, std::move(name));
    (add(*node, std::move(args)), ...);
    return node;
  }

  // Counts the nesting of the recursive descent.
  struct Level {
    explicit Level(Parser& p) : parser(p) {
      if (++p.level_ > kMaxDepth) p.error(fmt::format("the template is nested deeper than {} levels", kMaxDepth));
    }
    ~Level() { --parser.level_; }
    Parser& parser;
  };

  // --- Statements ---

  // Up to a tag that begins with one of the words, whose name is the current token then.
  Body body(Words ends) {
    Level level(*this);
    Body result;
    while (true) {
      const Token& token = now();
      if (token.type == Token::data) {
        auto node = make(Op::data, token.at);
        node->value = text_value(token.value);
        result.push_back(std::move(node));
        ++at_;
      } else if (token.type == Token::output_begin) {
        ++at_;
        result.push_back(make_with(Op::output, token.at, "", tuple()));
        expect(Token::output_end, "}}");
      } else if (token.type == Token::tag_begin) {
        ++at_;
        if (now().type == Token::name && std::find(ends.begin(), ends.end(), now().value) != ends.end()) return result;
        result.push_back(statement());
        expect(Token::tag_end, "%}");
      } else {
        if (ends.size() != 0) unexpected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
        return result;
      }
    }
  }
  // The rest of a tag, and the body up to one of the words, whose token is taken.
  Body block(Words ends) {
    take_op(":");
    expect(Token::tag_end, "%}");
    Body result = body(ends);
    return result;
  }

  NodePtr statement() {
    const size_t at = now().at;
    if (now().type != Token::name) unexpected("a tag's name");
    const std::string tag = expect_name();
    if (tag == "if") return branch(at);
    if (tag == "for") return loop(at);
    if (tag == "set") return set(at);
    if (tag == "macro") return macro(at);
    if (tag == "call") return call_block(at);
    if (tag == "filter") {
      auto node = make_with(Op::filter_block, at, "", filters(nullptr, true));
      return close(std::move(node), "endfilter");
    }
    if (tag == "with") return with(at);
    if (tag == "generation") {
      template_.has_generation = true;
      return close(make(Op::generation, at), "endgeneration");
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail_at(template_, at, fmt::format("'{}' outside of a loop", tag));
      return make(tag == "break" ? Op::break_loop : Op::continue_loop, at);
    }
    fail_at(template_, at, fmt::format("the tag '{}' is not supported or not expected here", tag));
  }
  // A block that cannot leave a loop outside of it.
  NodePtr close(NodePtr node, std::string_view end) {
    const int loops = std::exchange(loops_, node->op == Op::with ? loops_ : 0);
    node->bodies.push_back(block({end}));
    loops_ = loops;
    ++at_;
    return node;
  }

  NodePtr branch(size_t at) {
    auto node = make(Op::branch, at);
    ++conditional_;
    do {
      node->args.push_back(tuple(false));
      node->bodies.push_back(block({"elif", "else", "endif"}));
    } while (take_word("elif"));
    if (take_word("else")) node->bodies.push_back(block({"endif"}));
    --conditional_;
    ++at_;
    return node;
  }

  NodePtr loop(size_t at) {
    auto node = make_with(Op::loop, at, "", target(false));
    if (!take_word("in")) unexpected("'in'");
    add(*node, tuple(false));
    add(*node, take_word("if") ? expression() : nullptr);
    if (is_word("recursive")) error("recursive loops are not supported");
    ++loops_;
    node->bodies.push_back(block({"else", "endfor"}));
    --loops_;
    if (take_word("else")) node->bodies.push_back(block({"endfor"}));
    ++at_;
    return node;
  }

  NodePtr set(size_t at) {
    auto node = make_with(Op::set, at, "", target(true));
    if (take_op("=")) {
      add(*node, tuple());
      return node;
    }
    node->op = Op::set_block;
    add(*node, is_op("|") ? filters(nullptr, false) : nullptr);
    return close(std::move(node), "endset");
  }

  void signature(Node& node) {
    expect_op("(");
    while (!is_op(")")) {
      if (!node.keywords.empty()) expect_op(",");
      node.keywords.push_back(expect_name());
      add(node, take_op("=") ? expression() : nullptr);
    }
    ++at_;
  }
  NodePtr macro(size_t at) {
    auto node = make(Op::macro, at, expect_name());
    signature(*node);
    return close(std::move(node), "endmacro");
  }
  NodePtr call_block(size_t at) {
    auto node = make(Op::call_block, at, "caller");
    if (is_op("(")) signature(*node);
    auto call = expression();
    if (call->op != Op::call) fail_at(template_, call->at, "expected a call");
    add(*node, std::move(call));
    return close(std::move(node), "endcall");
  }
  NodePtr with(size_t at) {
    auto node = make(Op::with, at);
    while (now().type != Token::tag_end) {
      if (!node->args.empty()) expect_op(",");
      add(*node, target(false));
      expect_op("=");
      add(*node, expression());
    }
    return close(std::move(node), "endwith");
  }

  // A name, names in a tuple, or the attribute of a namespace.
  NodePtr target(bool attribute) {
    const size_t at = now().at;
    const auto one = [&]() -> NodePtr {
      Level level(*this);
      if (take_op("(")) {
        auto inner = target(attribute);
        expect_op(")");
        return inner;
      }
      const size_t start = now().at;
      std::string name = expect_name();
      static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None", "loop"};
      if (std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) {
        fail_at(template_, start, fmt::format("cannot assign to '{}'", name));
      }
      if (!attribute || !take_op(".")) return make(Op::variable, start, std::move(name));
      return make_with(Op::set_attribute, start, expect_name(), make(Op::variable, start, std::move(name)));
    };
    auto first = one();
    if (!is_op(",")) return first;
    auto node = make_with(Op::tuple, at, "", std::move(first));
    while (take_op(",")) {
      if (is_op("=") || is_word("in") || is_op(")")) break;
      add(*node, one());
    }
    return node;
  }

  // --- Expressions, as Jinja's grammar nests them ---

  NodePtr tuple(bool with_conditional = true, bool parenthesised = false) {
    const size_t at = now().at;
    const auto at_end = [&] { return now().type == Token::output_end || now().type == Token::tag_end || is_op(")"); };
    if (at_end()) {
      if (parenthesised) return make(Op::tuple, at);
      unexpected("an expression");
    }
    auto first = with_conditional ? expression() : logical(0);
    if (!is_op(",")) return first;
    auto node = make_with(Op::tuple, at, "", std::move(first));
    while (take_op(",") && !at_end()) add(*node, with_conditional ? expression() : logical(0));
    return node;
  }

  NodePtr expression() {
    Level level(*this);
    const size_t at = now().at;
    auto value = logical(0);
    while (take_word("if")) {
      ++conditional_;
      auto condition = logical(0);
      auto other = take_word("else") ? expression() : nullptr;
      --conditional_;
      value = make_with(Op::conditional, at, "", std::move(condition), std::move(value), std::move(other));
    }
    return value;
  }

  // or, and, not
  NodePtr logical(int level) {
    if (level == 2) {
      Level guard(*this);
      const size_t at = now().at;
      return take_word("not") ? make_with(Op::invert, at, "", logical(2)) : comparison();
    }
    auto left = logical(level + 1);
    while (is_word(level == 0 ? "or" : "and")) {
      const size_t at = tokens_[at_++].at;
      auto right = logical(level + 1);
      left = make_with(level == 0 ? Op::logical_or : Op::logical_and, at, "", std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr comparison() {
    auto first = binary(0);
    NodePtr node;
    while (true) {
      static constexpr std::string_view kCompare[] = {"==", "!=", "<", "<=", ">", ">="};
      const size_t at = now().at;
      std::string op;
      if (now().type == Token::op && std::find(std::begin(kCompare), std::end(kCompare), now().value) != std::end(kCompare)) {
        op = tokens_[at_++].value;
      } else if (take_word("in")) {
        op = "in";
      } else if (is_word("not") && next().type == Token::name && next().value == "in") {
        op = "not in", at_ += 2;
      } else {
        return node ? std::move(node) : std::move(first);
      }
      if (!node) node = make_with(Op::compare, at, "", std::move(first));
      add(*node, binary(0));
      node->keywords.push_back(op);
    }
  }

  // Left-associative operators, weakest first; ~ binds between + and *.
  NodePtr binary(size_t level) {
    static constexpr std::string_view kLevels[][4] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    if (level == std::size(kLevels)) return unary(true);
    auto left = binary(level + 1);
    while (now().type == Token::op &&
           std::find(std::begin(kLevels[level]), std::end(kLevels[level]), now().value) != std::end(kLevels[level])) {
      const Token& op = tokens_[at_++];
      auto right = binary(level + 1);
      left = make_with(Op::binary, op.at, op.value, std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr unary(bool with_filters) {
    Level level(*this);
    const size_t at = now().at;
    NodePtr node;
    if (is_op("-") || is_op("+")) {
      const Op op = is_op("-") ? Op::negate : Op::plus;
      ++at_;
      node = make_with(op, at, "", unary(false));
    } else {
      node = primary();
    }
    node = postfix(std::move(node));
    while (with_filters) {
      if (is_op("|"))
        node = filters(std::move(node), false);
      else if (is_word("is"))
        node = test(std::move(node));
      else if (is_op("("))
        node = call(std::move(node));
      else
        break;
    }
    return node;
  }

  NodePtr primary() {
    const Token& token = now();
    if (token.type == Token::name) {
      ++at_;
      auto node = make(Op::constant, token.at);
      if (token.value == "true" || token.value == "True") return node->value = true, std::move(node);
      if (token.value == "false" || token.value == "False") return node->value = false, std::move(node);
      if (token.value == "none" || token.value == "None") return node->value = None{}, std::move(node);
      return make(Op::variable, token.at, token.value);
    }
    if (token.type == Token::text) {
      std::string text;
      while (now().type == Token::text) text += tokens_[at_++].value;
      auto node = make(Op::constant, token.at);
      node->value = text_value(std::move(text));
      return node;
    }
    if (token.type == Token::integer || token.type == Token::real) {
      ++at_;
      auto node = make(Op::constant, token.at);
      const char* end = token.value.data() + token.value.size();
      int64_t integer = 0;
      double real = 0;
      const bool fits = token.type == Token::integer ? std::from_chars(token.value.data(), end, integer).ec == std::errc()
                                                     : std::from_chars(token.value.data(), end, real).ec == std::errc();
      if (!fits) fail_at(template_, token.at, fmt::format("the number {} is out of range", token.value));
      token.type == Token::integer ? node->value = integer : node->value = real;
      return node;
    }
    if (take_op("(")) {
      auto node = tuple(true, true);
      expect_op(")");
      return node;
    }
    const bool list = is_op("[");
    if (!list && !is_op("{")) unexpected("an expression");
    ++at_;
    auto node = make(list ? Op::list : Op::dict, token.at);
    const std::string_view end = list ? "]" : "}";
    while (!is_op(end)) {
      if (!node->args.empty()) expect_op(",");
      if (is_op(end)) break;
      add(*node, expression());
      if (!list) expect_op(":"), add(*node, expression());
    }
    ++at_;
    return node;
  }

  NodePtr postfix(NodePtr node) {
    while (true) {
      const size_t at = now().at;
      if (take_op(".")) {
        if (now().type == Token::integer) {
          node = make_with(Op::item, at, "", std::move(node), primary());
        } else {
          std::string name = expect_name();
          node = make_with(Op::attribute, at, std::move(name), std::move(node));
        }
      } else if (take_op("[")) {
        node = subscript(std::move(node), at);
        expect_op("]");
      } else if (is_op("(")) {
        node = call(std::move(node));
      } else {
        return node;
      }
    }
  }

  NodePtr subscript(NodePtr node, size_t at) {
    NodePtr parts[3];
    if (!is_op(":")) parts[0] = expression();
    if (!is_op(":")) return make_with(Op::item, at, "", std::move(node), std::move(parts[0]));
    for (int i = 1; i < 3 && take_op(":"); ++i) {
      if (!is_op(":") && !is_op("]")) parts[i] = expression();
    }
    return make_with(Op::slice, at, "", std::move(node), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
  }

  void arguments(Node& node) {
    expect_op("(");
    bool first = true;
    while (!is_op(")")) {
      if (!std::exchange(first, false)) expect_op(",");
      if (is_op(")")) break;
      if (is_op("*") || is_op("**")) error("'*' and '**' in calls are not supported");
      if (now().type == Token::name && next().type == Token::op && next().value == "=") {
        node.keywords.push_back(expect_name());
        ++at_;
      } else if (!node.keywords.empty()) {
        error("a positional argument follows a named one");
      }
      add(node, expression());
    }
    ++at_;
  }
  NodePtr call(NodePtr callee) {
    auto node = make_with(Op::call, now().at, "", std::move(callee));
    arguments(*node);
    return node;
  }

  // As Jinja: an unknown filter or test in a branch is an error only where it is reached.
  void resolve(Node& node, const char* what) {
    node.native = node.op == Op::filter ? find_filter(node.name) : find_test(node.name);
    if (!node.native && conditional_ == 0) fail_at(template_, node.at, fmt::format("no {} named '{}'", what, node.name));
  }
  NodePtr filters(NodePtr input, bool first) {
    while (first || is_op("|")) {
      if (!first) ++at_;
      first = false;
      const size_t at = now().at;
      std::string name = expect_name();
      auto node = make_with(Op::filter, at, std::move(name), std::move(input));
      if (is_op("(")) arguments(*node);
      resolve(*node, "filter");
      input = std::move(node);
    }
    return input;
  }
  NodePtr test(NodePtr input) {
    ++at_;
    const bool negated = take_word("not");
    const size_t at = now().at;
    std::string name = expect_name();
    auto node = make_with(Op::test, at, std::move(name), std::move(input));
    const bool word = now().type == Token::name && !is_word("else") && !is_word("or") && !is_word("and");
    if (is_op("(")) {
      arguments(*node);
    } else if (word || (now().type >= Token::text && now().type <= Token::real) || is_op("[") || is_op("{")) {
      if (is_word("is")) error("tests with 'is' cannot be chained");
      add(*node, postfix(primary()));
    }
    resolve(*node, "test");
    return negated ? make_with(Op::invert, at, "", std::move(node)) : std::move(node);
  }

  Template& template_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  uint32_t level_ = 0;
  int loops_ = 0, conditional_ = 0;
};

}  // namespace

Template parse(std::string_view text, std::string name) {
  constexpr size_t kMaxBytes = 1 << 20;
  check(text.size() <= kMaxBytes, "{}: a template of {} bytes; at most {} are supported", name, text.size(), kMaxBytes);
  check(is_valid_utf8(text), "{}: not valid UTF-8 near byte {}", name, valid_utf8_prefix(text));
  Template result{std::move(name), {}, {}};
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    result.source += text[i] == '\r' ? '\n' : text[i];
  }
  if (result.source.ends_with('\n')) result.source.pop_back();
  Parser(result).run();
  return result;
}

}  // namespace halftone::jinja
