#pragma once
#include <memory>
#include <string>

namespace halftone::nn {

// A pattern for names of modules and parameters, in ECMAScript's syntax, from a configuration that nobody has checked: its length and the
// steps of a match are limited.
class Pattern {
 public:
  enum class Begins { anywhere, at_start };
  // Error: `text` is no pattern, or too long. place: in front of messages, which quote `shown`, the whole entry of the configuration.
  Pattern(const std::string& text, Begins begins, const std::string& place, const std::string& shown);
  // Whether it matches, not necessarily to the end. Error: that takes too many steps.
  bool matches(const std::string& name) const;

 private:
  std::string what_;                  // place and entry
  std::shared_ptr<const void> code_;  // PCRE2's
};

}  // namespace halftone::nn
