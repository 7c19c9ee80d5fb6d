#pragma once
#include <optional>
#include <string>
#include <vector>

#include "halftone/nn/module.h"
#include "halftone/nn/pattern.h"

namespace halftone::nn {

// An entry of targets, ignore or filter_fqns, which selects modules.
class Target {
 public:
  // rule C of platform.md 3.2: `re:P` matches when P, in ECMAScript syntax, matches from the first character of the name; anything else
  // is an exact name or class name, and lm_head and output name the same module. substring (rule T): anywhere in the name.
  enum class Rule { c, substring };
  // Error: P is not a pattern. place: prefix of messages, for example "FILE:LINE: quantize.targets: ".
  Target(std::string text, Rule rule, const std::string& place);
  // Error: P takes too many steps, as patterns from untrusted files may.
  bool matches(const Module& module) const;
  // Whether the entry is the module's full name, not a class or a pattern.
  bool names(const Module& module) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Rule rule_;
  std::optional<Pattern> pattern_;
};

// For a list, with a common `place`.
std::vector<Target> targets_of(const std::vector<std::string>& texts, Target::Rule rule, const std::string& place);
bool matches_any(const Module& module, const std::vector<Target>& targets);

}  // namespace halftone::nn
