#include "halftone/data/dataset_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// Options that decide the documents of one data set; packing and shuffle are the run's.
constexpr std::array<std::string_view, 15> kReading = {"read",        "text_key",     "subset",        "split",   "text_split",
                                                       "on_bad_line", "token_dtype",  "add_bos",       "add_eos", "special_tokens_in_text",
                                                       "chat_format", "messages_key", "chat_template", "loss_on", "max_turns"};

template <class T>
bool assign(T& out, const OptionValue& value) {
  if constexpr (std::is_same_v<T, std::optional<bool>>) return assign(out.emplace(), value);
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> || std::is_same_v<T, std::string>) {
    if (const T* same = std::get_if<T>(&value)) return out = *same, true;
  }
  return false;
}

std::string text_of(const OptionValue& value) {
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

}  // namespace

void apply_dataset_table(const OptionTable& table, const std::string& field, DatasetSettings& settings, SourceShare* share) {
  for (const auto& [key, value] : table) {
    const std::string name = field + "." + key;
    const auto typed = [&](bool fits, const char* expected) { check(fits, "{}: expected {}, found {}", name, expected, text_of(value)); };
    if (key == "dataset") {
      typed(assign(settings.dataset, value), "a string");
    } else if (key == "path") {
      typed(assign(settings.path.emplace(), value), "a string");
    } else if (share != nullptr && key == "weight") {
      share->weight = text_of(value);
    } else if (share != nullptr && (key == "epochs" || key == "tokens")) {
      int64_t& out = key == "epochs" ? share->epochs : share->tokens;
      typed(assign(out, value) && out >= 1, "an integer of at least 1");
    } else {
      bool known = false;
      DataloaderConfig::fields(settings.loader, [&](std::string_view option, auto& member, std::string_view, const FieldInfo& info = {}) {
        if (option != key || std::find(kReading.begin(), kReading.end(), option) == kReading.end()) return;
        known = true;
        typed(assign(member, value), "a value of the type of training.dataloader's");
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, std::string>) {
          check(info.choices.empty() || std::find(info.choices.begin(), info.choices.end(), member) != info.choices.end(),
                "{}: expected one of {}, found \"{}\"", name, fmt::join(info.choices, ", "), member);
        }
      });
      check(known, "{}: no such option; expected dataset, path, {}{}", name, share == nullptr ? "" : "weight, epochs, tokens, ",
            fmt::join(kReading, ", "));
    }
  }
}

}  // namespace halftone
