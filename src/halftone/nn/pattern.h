#pragma once
#include <memory>
#include <string>

namespace halftone::nn {

// A pattern for names of modules and parameters, in ECMAScript syntax, from an untrusted configuration: its length and the steps of a
// match are limited.
class Pattern {
 public:
  enum class Begins { anywhere, at_start };
  // Error: `text` is not a pattern, or too long. place: prefix of messages, which quote `shown`, the full entry of the configuration.
  Pattern(const std::string& text, Begins begins, const std::string& place, const std::string& shown);
  // Whether it matches, not necessarily to the end. Error: the match takes too many steps.
  bool matches(const std::string& name) const;

 private:
  std::string what_;                  // place and entry
  std::shared_ptr<const void> code_;  // PCRE2's
};

}  // namespace halftone::nn
