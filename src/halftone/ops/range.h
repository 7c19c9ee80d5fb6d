#pragma once
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace halftone {

// Names the work done during its lifetime for a recorder (train/profiler.h). Without a recorder the name is not even built.
class Range {
 public:
  template <class... T>
  explicit Range(fmt::format_string<T...> name, T&&... values) {
    if (record_.isActive()) record_.before(fmt::format(name, std::forward<T>(values)...));
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  at::RecordFunction record_{at::RecordScope::USER_SCOPE};
};

// Names the owner of the memory allocated during its lifetime, for a dry run (train/dry_run.h).
class Owner {
 public:
  explicit Owner(std::string_view name) : range_("{}{}", kPrefix, name) {}
  static constexpr std::string_view kPrefix = "memory of ";

 private:
  Range range_;
};

}  // namespace halftone
