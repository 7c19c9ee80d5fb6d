#pragma once
#include <algorithm>
#include <type_traits>

#include "halftone/optim/rule.h"

namespace halftone::optim {

struct NoOptions {
  static void fields(auto&, auto&&) {}
};
template <class Base, class More>
struct Joined : Base, More {
  static void fields(auto& self, auto&& field) {
    Base::fields(self, field);
    More::fields(self, field);
  }
};
// The options of all optimizers as one struct, those of two optimizers once.
template <class Base, class... More>
struct Join {
  using type = Base;
};
template <class Base, class First, class... Rest>
struct Join<Base, First, Rest...> : Join<std::conditional_t<std::is_base_of_v<First, Base>, Base, Joined<Base, First>>, Rest...> {};

template <class... Rules>
struct List {
  using Options = typename Join<NoOptions, typename Rules::Options...>::type;
  static constexpr size_t kMostStates = std::max({Rules::kStates.size()...});

  // f(std::type_identity<Rule>{}) for every optimizer, and for the one at a place.
  template <class F>
  static void each(F&& f) {
    (f(std::type_identity<Rules>{}), ...);
  }
  template <class F>
  static void with(size_t place, F&& f) {
    size_t i = 0;
    each([&](auto rule) {
      if (i++ == place) f(rule);
    });
  }
};

}  // namespace halftone::optim
