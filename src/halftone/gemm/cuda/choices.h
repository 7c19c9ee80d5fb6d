#pragma once
#include <cstring>

#include "halftone/gemm/product_choice.h"

namespace halftone::gemm {

// Measured choices beyond this process: those that others made (halftone_cuda_recall_choices), and a list of those made here for others.
// False where nobody has measured this product. What it gives is to be checked: it may come from a file.
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
// The value that belongs to a key, unchecked; false where there is none.
template <class Key, class Value>
bool recall(ProductChoice::Owner owner, const Key& key, Value& value) {
  ProductChoice c = choice_of(owner, key, Value{});
  if (!find_choice(c)) return false;
  std::memcpy(&value, c.value.data(), sizeof value);
  return true;
}

}  // namespace halftone::gemm
