#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "halftone/chat/jinja/ast.h"
#include "halftone/chat/jinja/builtins.h"

namespace halftone::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables;
  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

struct Namespace : Object {
  const char* type() const override { return "Namespace"; }
  std::vector<std::pair<std::string, Value>> attributes;
  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};

struct LoopState : Object {
  const char* type() const override { return "LoopContext"; }
  Values items;
  size_t index = 0, nesting = 1;
  Values changed;  // arguments of the last loop.changed()
};

struct Macro : Object {
  const char* type() const override { return "Macro"; }
  const Node* node = nullptr;
  std::weak_ptr<Scope> scope;  // where it is defined
};

// A function of the table, or a method with its receiver.
struct Function : Object {
  Function(const Native* f, Value receiver) : native(f), self(std::move(receiver)) {}
  const char* type() const override { return "builtin_function_or_method"; }
  const Native* native;
  Value self;
};

// Ranges [begin, end) of the output.
using Spans = std::vector<std::pair<size_t, size_t>>;

// Runs a template once.
class Interpreter {
 public:
  Interpreter(const Template& source, const Limits& limits) : budget(limits), template_(source) {}
  ~Interpreter();
  // The output; generated: the {% generation %} blocks in it. Error with the place of what went wrong.
  std::string run(std::vector<std::pair<std::string_view, Value>> variables, Spans* generated);

  // For the built-in functions.
  Budget budget;
  Value text(std::string text) { return budget.text(text.size()), text_value(std::move(text)); }
  Value list(Values items, Sequence kind = Sequence::list) { return make_list(std::move(items), budget, kind); }
  Values iterate(const Value& v);                               // takes a generator's items
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  bool contains(const Value& container, const Value& value);
  Value call_native(const Native& native, const Value& self, Args args);
  Value new_namespace(const Args& args);
  std::string string(const Value& v) { return str(v, budget); }

 private:
  enum class Flow { normal, broken, continued };
  struct Depth;
  Flow execute(const Body& body);
  Flow execute(const Node& node);
  Flow run_loop(const Node& node);
  std::string capture(const Body& body, ScopePtr scope);
  void assign(const Node& target, Value value);
  Value evaluate(const Node& node);
  Value evaluate_slice(const Node& node);
  Value compare(const Node& node);
  Value binary(const Node& node);
  Value variable(const std::string& name);
  Value filter(const Node& node, Value input);
  Args arguments(const Node& node, size_t first);
  Value call(const Value& callee, Args args);
  Value call_macro(const Macro& macro, Args args);
  void write(std::string_view text);

  const Template& template_;
  const Node* at_ = nullptr;
  uint32_t depth_ = 0;
  ScopePtr scope_;
  std::string root_;
  std::string* out_ = &root_;
  Spans* generated_ = nullptr;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // cleared in the end, since they can hold each other
};

}  // namespace halftone::jinja
