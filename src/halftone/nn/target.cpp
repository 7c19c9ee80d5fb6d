#include "halftone/nn/target.h"

#include <algorithm>
#include <utility>

namespace halftone::nn {

Target::Target(std::string text, Rule rule, const std::string& place) : text_(std::move(text)), rule_(rule) {
  if (rule == Rule::c && text_.starts_with("re:")) pattern_.emplace(text_.substr(3), Pattern::Begins::at_start, place, text_);
}

bool Target::names(const Module& module) const {
  return rule_ == Rule::c && (text_ == module.fqn() || (text_ == "lm_head" && module.fqn() == "output"));
}

bool Target::matches(const Module& module) const {
  if (rule_ == Rule::substring) return module.fqn().find(text_) != std::string::npos;
  if (pattern_) return pattern_->matches(module.fqn());
  const auto classes = module.class_names();
  return names(module) || std::find(classes.begin(), classes.end(), text_) != classes.end();
}

std::vector<Target> targets_of(const std::vector<std::string>& texts, Target::Rule rule, const std::string& place) {
  std::vector<Target> targets;
  for (const std::string& text : texts) targets.emplace_back(text, rule, place);
  return targets;
}

bool matches_any(const Module& module, const std::vector<Target>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](const Target& t) { return t.matches(module); });
}

}  // namespace halftone::nn
