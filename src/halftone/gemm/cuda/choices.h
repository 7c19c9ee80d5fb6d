#pragma once
#include <cstring>

#include "halftone/gemm/product_choice.h"

namespace halftone::gemm {

// Measured choices shared between processes: choices recalled from others (halftone_cuda_recall_choices), and the list of choices made
// here. find_choice returns false if this GEMM was never measured; the result may come from a file and must be checked.
bool find_choice(ProductChoice& owner_and_key);
void note_choice(const ProductChoice& made);

template <class Key, class Value>
ProductChoice choice_of(ProductChoice::Owner owner, const Key& key, const Value& value) {
  static_assert(std::has_unique_object_representations_v<Key> && std::is_trivially_copyable_v<Value>);
  ProductChoice c;
  static_assert(sizeof(Key) <= sizeof(c.key) && sizeof(Value) <= sizeof(c.value));
  c.owner = owner;
  std::memcpy(c.key.data(), &key, sizeof key);
  std::memcpy(c.value.data(), &value, sizeof value);
  return c;
}
// Recalls the value of a key, unchecked; false if there is none.
template <class Key, class Value>
bool recall(ProductChoice::Owner owner, const Key& key, Value& value) {
  ProductChoice c = choice_of(owner, key, Value{});
  if (!find_choice(c)) return false;
  std::memcpy(&value, c.value.data(), sizeof value);
  return true;
}

}  // namespace halftone::gemm
