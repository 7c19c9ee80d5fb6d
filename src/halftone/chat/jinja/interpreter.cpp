#include "halftone/chat/jinja/interpreter.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/chat/jinja/operators.h"
#include "halftone/chat/jinja/text.h"

namespace halftone::jinja {
namespace {

template <class Variables>
auto* find_in(Variables& variables, std::string_view name) {
  const auto found = std::find_if(variables.begin(), variables.end(), [&](const auto& v) { return v.first == name; });
  return found == variables.end() ? nullptr : &found->second;
}

ObjectPtr function(const Native* native, Value self) {
  auto object = std::make_shared<Function>(native, std::move(self));
  if (const auto* list = as_list(object->self)) object->depth = list->depth + 1;
  if (const auto* dict = as_dict(object->self)) object->depth = dict->depth + 1;
  if (const auto* loop = as_object<LoopState>(object->self)) object->depth = loop->depth + 1;
  return object;
}

constexpr Native kLoopMethods[] = {
    {"cycle", "*",
     [](Interpreter&, const Value& self, const Args& args) {
       if (args.positional.empty()) fault("loop.cycle() needs items");
       return args.positional[as_object<LoopState>(self)->index % args.positional.size()];
     }},
    {"changed", "*",
     [](Interpreter& in, const Value& self, const Args& args) -> Value {
       auto& loop = *as_object<LoopState>(self);
       const bool same = std::equal(loop.changed.begin(), loop.changed.end(), args.positional.begin(), args.positional.end(),
                                    [&](const Value& a, const Value& b) { return equal(a, b, in.budget); });
       for (const Value& v : args.positional) {
         if (std::holds_alternative<ObjectPtr>(v)) fault("loop.changed() takes no objects");
       }
       loop.changed = args.positional;
       return !same;
     }},
};

}  // namespace

Value* Scope::find(std::string_view name) {
  for (Scope* scope = this; scope; scope = scope->parent.get()) {
    if (Value* value = find_in(scope->variables, name)) return value;
  }
  return nullptr;
}
void Scope::set(std::string_view name, Value value) {
  if (Value* known = find_in(variables, name))
    *known = std::move(value);
  else
    variables.emplace_back(name, std::move(value));
}
Value* Namespace::find(std::string_view name) { return find_in(attributes, name); }
void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_')) fault("a namespace cannot store '{}': a name that begins with an underscore", name);
  if (Value* known = find(name))
    *known = std::move(value);
  else
    attributes.emplace_back(name, std::move(value));
}

struct Interpreter::Depth {
  explicit Depth(Interpreter& i) : interpreter(i) {
    if (++i.depth_ > i.budget.limits().depth)
      --i.depth_, fault("macros, blocks or expressions are nested deeper than {} levels", i.budget.limits().depth);
  }
  ~Depth() { --interpreter.depth_; }
  Interpreter& interpreter;
};

Interpreter::~Interpreter() {
  for (const auto& ns : namespaces_) ns->attributes.clear();
}

std::string Interpreter::run(std::vector<std::pair<std::string_view, Value>> variables, Spans* generated) {
  generated_ = generated;
  scope_ = std::make_shared<Scope>();
  scope_->variables = std::move(variables);
  try {
    execute(template_.body);
  } catch (const Fault& error) {
    fail_at(template_, at_ ? at_->at : 0, error.what());
  }
  return std::move(root_);
}

void Interpreter::write(std::string_view text) {
  if (text.size() > budget.limits().bytes - std::min(out_->size(), budget.limits().bytes)) budget.text(budget.limits().bytes + 1);
  budget.spend(text.size() / 128);
  out_->append(text);
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const auto& node : body) {
    if (const Flow flow = execute(*node); flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

// The output of a body in a scope.
std::string Interpreter::capture(const Body& body, ScopePtr scope) {
  std::string text;
  std::swap(scope, scope_);
  std::string* outer = std::exchange(out_, &text);
  execute(body);
  out_ = outer;
  scope_ = std::move(scope);
  return text;
}

Interpreter::Flow Interpreter::execute(const Node& node) {
  Depth depth(*this);
  budget.spend(1);
  at_ = &node;
  const auto inner = [&] { return std::make_shared<Scope>(Scope{scope_, {}}); };
  switch (node.op) {
    case Op::data:
      write(*as_text(node.value));
      break;
    case Op::output: {
      const Value value = evaluate(*node.args[0]);
      if (const auto* text = as_text(value))
        write(*text);
      else
        write(string(value));
      break;
    }
    case Op::set:
      assign(*node.args[0], evaluate(*node.args[1]));
      break;
    case Op::set_block: {
      Value value = text(capture(node.bodies[0], inner()));
      assign(*node.args[0], node.args[1] ? filter(*node.args[1], std::move(value)) : std::move(value));
      break;
    }
    case Op::filter_block:
      write(string(filter(*node.args[0], text(capture(node.bodies[0], inner())))));
      break;
    case Op::branch:
      for (size_t i = 0; i < node.bodies.size(); ++i) {
        if (i >= node.args.size() || truth(evaluate(*node.args[i]))) return execute(node.bodies[i]);
      }
      break;
    case Op::loop:
      return run_loop(node);
    case Op::macro: {
      auto macro = std::make_shared<Macro>();
      macro->node = &node, macro->scope = scope_;
      scope_->set(node.name, ObjectPtr(std::move(macro)));
      break;
    }
    case Op::call_block: {
      auto macro = std::make_shared<Macro>();
      macro->node = &node, macro->scope = scope_;
      const Node& call_node = *node.args.back();
      const Value callee = evaluate(*call_node.args[0]);
      Args args = arguments(call_node, 1);
      args.named.emplace_back("caller", ObjectPtr(std::move(macro)));
      at_ = &call_node;
      write(string(call(callee, std::move(args))));
      break;
    }
    case Op::with: {
      auto scope = inner();
      for (size_t i = 0; i + 1 < node.args.size(); i += 2) {
        Value value = evaluate(*node.args[i + 1]);
        std::swap(scope, scope_);
        assign(*node.args[i], std::move(value));
        std::swap(scope, scope_);
      }
      std::swap(scope, scope_);
      const Flow flow = execute(node.bodies[0]);
      std::swap(scope, scope_);
      return flow;
    }
    case Op::generation: {
      if (generated_ && out_ != &root_)
        fault("a generation block in a macro or in the body of set, filter or call has no place in the text");
      const size_t begin = out_->size();
      auto scope = inner();
      std::swap(scope, scope_);
      execute(node.bodies[0]);
      std::swap(scope, scope_);
      if (generated_) generated_->emplace_back(begin, out_->size());
      break;
    }
    case Op::break_loop:
      return Flow::broken;
    case Op::continue_loop:
      return Flow::continued;
    default:
      fault("not a statement");
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::run_loop(const Node& node) {
  auto loop = std::make_shared<LoopState>();
  Values items = iterate(evaluate(*node.args[1]));
  const ScopePtr outer = scope_;
  const auto enter = [&] { scope_ = std::make_shared<Scope>(Scope{outer, {}}); };
  if (node.args[2]) {
    Values kept;
    for (Value& item : items) {
      enter();
      assign(*node.args[0], item);
      if (truth(evaluate(*node.args[2]))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
    scope_ = outer;
  }
  if (const Value* parent = outer->find("loop")) {
    if (const auto* state = as_object<LoopState>(*parent)) loop->nesting = state->nesting + 1;
  }
  const size_t n = items.size();
  loop->depth = as_list(list(items))->depth + 1;
  if (loop->depth > budget.limits().nesting) fault("lists or dicts are nested deeper than {} levels", budget.limits().nesting);
  loop->items = std::move(items);
  for (size_t i = 0; i < n; ++i) {
    enter();
    loop->index = i;
    assign(*node.args[0], loop->items[i]);
    scope_->set("loop", ObjectPtr(loop));
    if (execute(node.bodies[0]) == Flow::broken) break;
    budget.spend(1);
  }
  scope_ = outer;
  if (n != 0 || node.bodies.size() < 2) return Flow::normal;
  enter();
  const Flow flow = execute(node.bodies[1]);
  scope_ = outer;
  return flow;
}

void Interpreter::assign(const Node& target, Value value) {
  if (target.op == Op::variable) return scope_->set(target.name, std::move(value));
  if (target.op == Op::set_attribute) {
    at_ = &target;
    const Value object = variable(target.args[0]->name);
    auto* ns = as_object<Namespace>(object);
    if (!ns) fault("cannot set the attribute '{}' of a {}; only namespaces take attributes", target.name, type_name(object));
    return ns->set(target.name, std::move(value));
  }
  const Values items = iterate(value);
  if (items.size() != target.args.size()) fault("expected {} values to unpack, found {}", target.args.size(), items.size());
  for (size_t i = 0; i < items.size(); ++i) assign(*target.args[i], items[i]);
}

Value Interpreter::variable(const std::string& name) {
  if (const Value* value = scope_->find(name)) return *value;
  if (const Native* native = find_global(name)) return function(native, undefined(name));
  return undefined("'" + name + "' is undefined");
}

Value Interpreter::evaluate(const Node& node) {
  Depth depth(*this);
  budget.spend(1);
  at_ = &node;
  const auto arg = [&](size_t i) { return evaluate(*node.args[i]); };
  const auto all = [&] {
    Values values;
    for (const auto& a : node.args) values.push_back(evaluate(*a));
    return values;
  };
  switch (node.op) {
    case Op::constant:
      return node.value;
    case Op::variable:
      return variable(node.name);
    case Op::attribute: {
      const Value object = arg(0);
      at_ = &node;
      return attribute(object, node.name);
    }
    case Op::item: {
      const Value object = arg(0), key = arg(1);
      at_ = &node;
      return item(object, key);
    }
    case Op::slice:
      return evaluate_slice(node);
    case Op::call: {
      const Value callee = arg(0);
      Args args = arguments(node, 1);
      at_ = &node;
      return call(callee, std::move(args));
    }
    case Op::filter:
      return filter(node, Undefined{});
    case Op::test: {
      const Value input = arg(0);
      Args args = arguments(node, 1);
      at_ = &node;
      if (!node.native) fault("no test named '{}'", node.name);
      return call_native(*node.native, input, std::move(args));
    }
    case Op::negate:
    case Op::plus: {
      const Value value = arg(0);
      at_ = &node;
      if (const auto* number = std::get_if<double>(&value)) return node.op == Op::negate ? -*number : *number;
      return apply_binary(node.op == Op::negate ? "-" : "+", int64_t{0}, value, *this);
    }
    case Op::invert:
      return !truth(arg(0));
    case Op::logical_and: {
      Value left = arg(0);
      return truth(left) ? arg(1) : left;
    }
    case Op::logical_or: {
      Value left = arg(0);
      return truth(left) ? left : arg(1);
    }
    case Op::binary: {
      const Value left = arg(0), right = arg(1);
      at_ = &node;
      return apply_binary(node.name, left, right, *this);
    }
    case Op::compare:
      return compare(node);
    case Op::conditional:
      if (truth(arg(0))) return arg(1);
      return node.args[2] ? arg(2) : undefined("the inline if-expression is false and has no else");
    case Op::list:
      return list(all());
    case Op::tuple:
      return list(all(), Sequence::tuple);
    case Op::dict: {
      std::vector<std::pair<Value, Value>> items;
      for (size_t i = 0; i + 1 < node.args.size(); i += 2) {
        Value key = arg(i);
        items.emplace_back(std::move(key), arg(i + 1));
      }
      budget.spend(items.size());
      return make_dict(std::move(items), budget);
    }
    default:
      fault("not an expression");
  }
}

Value Interpreter::compare(const Node& node) {
  Value left = evaluate(*node.args[0]);
  for (size_t i = 0; i < node.keywords.size(); ++i) {
    Value right = evaluate(*node.args[i + 1]);
    at_ = &node;
    const std::string& op = node.keywords[i];
    const bool holds = op == "=="       ? equal(left, right, budget)
                       : op == "!="     ? !equal(left, right, budget)
                       : op == "in"     ? contains(right, left)
                       : op == "not in" ? !contains(right, left)
                                        : ordered(op, left, right, budget);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_slice(const Node& node) {
  const Value object = evaluate(*node.args[0]);
  std::optional<int64_t> parts[3];
  for (int i = 0; i < 3; ++i) {
    if (!node.args[i + 1]) continue;
    const Value part = evaluate(*node.args[i + 1]);
    at_ = &node;
    if (std::holds_alternative<None>(part)) continue;
    const int64_t* integer = integer_of(part);
    if (!integer) fault("a slice takes integers or none, not {}", type_name(part));
    parts[i] = *integer;
  }
  at_ = &node;
  return slice(object, parts[0], parts[1], parts[2].value_or(1), *this);
}

Value Interpreter::filter(const Node& node, Value input) {
  Depth depth(*this);
  if (node.args[0]) input = node.args[0]->op == Op::filter ? filter(*node.args[0], std::move(input)) : evaluate(*node.args[0]);
  Args args = arguments(node, 1);
  at_ = &node;
  if (!node.native) fault("no filter named '{}'", node.name);
  return call_native(*node.native, input, std::move(args));
}

Args Interpreter::arguments(const Node& node, size_t first) {
  Args args;
  const size_t named = node.args.size() - node.keywords.size();
  for (size_t i = first; i < node.args.size(); ++i) {
    Value value = evaluate(*node.args[i]);
    if (i < named)
      args.positional.push_back(std::move(value));
    else
      args.named.emplace_back(node.keywords[i - named], std::move(value));
  }
  return args;
}

Value Interpreter::call(const Value& callee, Args args) {
  if (as_undefined(callee)) undefined_fault(callee);
  if (const auto* f = as_object<Function>(callee)) return call_native(*f->native, f->self, std::move(args));
  if (const auto* macro = as_object<Macro>(callee)) return call_macro(*macro, std::move(args));
  fault("'{}' object is not callable", type_name(callee));
}

Value Interpreter::call_native(const Native& native, const Value& self, Args args) {
  budget.spend(1);
  args.bind(native.parameters, native.name);
  return native.run(*this, self, args);
}

Value Interpreter::call_macro(const Macro& macro, Args args) {
  const Node& node = *macro.node;
  auto parent = macro.scope.lock();
  if (!parent) fault("the macro '{}' is called outside of the block that defines it", node.name);
  if (args.positional.size() > node.keywords.size()) fault("macro '{}' takes not more than {} arguments", node.name, node.keywords.size());
  auto scope = std::make_shared<Scope>(Scope{std::move(parent), {}});
  for (auto& [name, value] : args.named) {
    const auto known = std::find(node.keywords.begin(), node.keywords.end(), name);
    if (name == "caller" || known != node.keywords.end())
      scope->set(name, std::move(value));
    else
      fault("macro '{}' takes no keyword argument '{}'", node.name, name);
  }
  std::swap(scope, scope_);
  for (size_t i = 0; i < node.keywords.size(); ++i) {
    const std::string& name = node.keywords[i];
    const bool passed = find_in(scope_->variables, name) != nullptr;
    if (i < args.positional.size()) {
      if (passed) fault("macro '{}' got two values for the argument '{}'", node.name, name);
      scope_->set(name, std::move(args.positional[i]));
    } else if (!passed) {
      scope_->set(name, node.args[i] ? evaluate(*node.args[i]) : undefined("parameter '" + name + "' was not provided"));
    }
  }
  std::swap(scope, scope_);
  return text(capture(node.bodies[0], std::move(scope)));
}

Value Interpreter::new_namespace(const Args& args) {
  auto ns = std::make_shared<Namespace>();
  if (args.positional.size() > 1 || (args.positional.size() == 1 && !as_dict(args.positional[0])))
    fault("namespace() takes a dict and names");
  if (args.positional.size() == 1) {
    for (const auto& [key, value] : as_dict(args.positional[0])->items) ns->set(string(key), value);
  }
  for (const auto& [name, value] : args.named) ns->set(name, value);
  namespaces_.push_back(ns);
  return ObjectPtr(std::move(ns));
}

Values Interpreter::iterate(const Value& v) {
  if (as_undefined(v)) return {};
  Values items;
  if (const auto* list = as_list(v)) {
    items.assign(list->items.begin() + static_cast<ptrdiff_t>(list->consumed), list->items.end());
    if (list->kind == Sequence::generator) list->consumed = list->items.size();
  } else if (const auto* dict = as_dict(v)) {
    for (const auto& item : dict->items) items.push_back(item.first);
  } else if (const auto* text = as_text(v)) {
    budget.spend(text->size());
    for (size_t i = 0, n; i < text->size(); i += n) items.push_back(text_value(text->substr(i, n = code_point_bytes(*text, i))));
  } else {
    fault("'{}' object is not iterable", type_name(v));
  }
  budget.spend(items.size());
  return items;
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (as_undefined(object)) undefined_fault(object);
  if (const Native* method = find_method(object, name)) return function(method, object);
  if (const auto* dict = as_dict(object)) {
    static constexpr std::string_view kMutating[] = {"clear", "pop", "popitem", "setdefault", "update"};
    if (std::find(std::begin(kMutating), std::end(kMutating), name) != std::end(kMutating)) {
      return undefined(fmt::format("access to attribute '{}' of 'dict' object is unsafe: it would change the dict", name));
    }
    if (const Value* found = find(*dict, name, budget)) return *found;
  }
  if (const auto* ns = as_object<Namespace>(object)) {
    if (const Value* found = const_cast<Namespace*>(ns)->find(name)) return *found;
  }
  if (const auto* loop = as_object<LoopState>(object)) {
    const auto index = static_cast<int64_t>(loop->index), n = static_cast<int64_t>(loop->items.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return n - index;
    if (name == "revindex0") return n - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == n;
    if (name == "length") return n;
    if (name == "depth") return static_cast<int64_t>(loop->nesting);
    if (name == "depth0") return static_cast<int64_t>(loop->nesting) - 1;
    if (name == "previtem") return index > 0 ? loop->items[loop->index - 1] : undefined("there is no previous item");
    if (name == "nextitem") return index + 1 < n ? loop->items[loop->index + 1] : undefined("there is no next item");
    for (const Native& method : kLoopMethods) {
      if (method.name == name) return function(&method, object);
    }
  }
  return undefined(fmt::format("'{}' object has no attribute '{}'", type_name(object), name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (as_undefined(object)) undefined_fault(object);
  const int64_t* index = integer_of(key);
  if (const auto* dict = as_dict(object)) {
    if (const Value* found = find(*dict, key, budget)) return *found;
  } else if (const auto* list = as_list(object); list && list->kind <= Sequence::range && index) {
    const auto n = static_cast<int64_t>(list->items.size());
    const int64_t i = *index < 0 ? *index + n : *index;
    if (i >= 0 && i < n) return list->items[static_cast<size_t>(i)];
  } else if (const auto* text = as_text(object); text && index) {
    budget.spend(text->size() / 128);
    const auto n = static_cast<int64_t>(code_points(*text));
    const int64_t i = *index < 0 ? *index + n : *index;
    if (i >= 0 && i < n) {
      const size_t at = code_point_offset(*text, static_cast<size_t>(i));
      return text_value(text->substr(at, code_point_bytes(*text, at)));
    }
  }
  const auto* name = as_text(key);
  if (name && !as_dict(object)) return attribute(object, *name);
  if (name) {
    if (const Native* method = find_method(object, *name)) return function(method, object);
  }
  return undefined(fmt::format("{} object has no element {}", type_name(object),
                               name    ? *name
                               : index ? std::to_string(*index)
                                       : type_name(key)));
}

bool Interpreter::contains(const Value& container, const Value& value) {
  if (const auto* text = as_text(container)) {
    const auto* part = as_text(value);
    if (as_undefined(value)) undefined_fault(value);
    if (!part) fault("'in <string>' needs a string as the left operand, not {}", type_name(value));
    budget.spend(text->size() / 1024);
    return text->find(*part) != std::string::npos;
  }
  if (const auto* dict = as_dict(container)) {
    if (as_list(value) || as_dict(value)) fault("unhashable type: '{}'", type_name(value));
    return find(*dict, value, budget) != nullptr;
  }
  if (!as_list(container) && !as_undefined(container)) fault("argument of type '{}' is not iterable", type_name(container));
  const Values items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(item, value, budget); });
}

}  // namespace halftone::jinja
