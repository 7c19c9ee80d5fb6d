#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/eval/python_text.h"
#include "halftone/eval/scorer.h"

namespace halftone::eval {

int32_t prefix_token(const Tokenizer& t) {
  const std::optional<int32_t> id = t.bos_id() ? t.bos_id() : t.eos_id();
  check(id.has_value(),
        "the tokenizer has neither a begin-of-text nor an end-of-text token, which stands in front of texts without context");
  return *id;
}

std::vector<int32_t> encode_context(const Tokenizer& t, const std::string& text) {
  const std::optional<int32_t> id = t.bos_id() ? t.bos_id() : t.eos_id();
  return t.encode(text, !(id && !t.token_bytes(*id).empty() && text.starts_with(t.token_bytes(*id))));
}

TokenPair split_tokens(const Tokenizer& t, const Continuation& asked) {
  TokenPair pair;
  if (asked.context.empty()) {
    std::vector<int32_t> ids = t.encode(asked.continuation, false);
    const int32_t prefix = prefix_token(t);
    check(!ids.empty(), "expected a continuation, found an empty text");
    if (ids[0] != prefix) {
      pair = {{prefix}, std::move(ids)};
    } else {
      pair = {{prefix}, {ids.begin() + 1, ids.end()}};
    }
  } else {
    const size_t size = python::strip(asked.context, python::Side::right).size();
    const std::string context = asked.context.substr(0, size);
    std::vector<int32_t> whole = encode_context(t, asked.context + asked.continuation);
    pair.context = encode_context(t, context);
    if (pair.context.empty()) pair.context = {prefix_token(t)}, whole.insert(whole.begin(), pair.context[0]);
    const size_t given = std::min(pair.context.size(), whole.size());
    pair.continuation.assign(whole.begin() + static_cast<int64_t>(given), whole.end());
  }
  check(!pair.continuation.empty(), "expected a continuation with at least one token, found '{}' behind '{}'", asked.continuation,
        asked.context.substr(asked.context.size() - std::min<size_t>(asked.context.size(), 40)));
  return pair;
}

TokenPair cut(TokenPair pair, int64_t longest) {
  const auto judged = static_cast<int64_t>(pair.continuation.size());
  check(judged <= longest, "a continuation of {} tokens is longer than the {} that are read; raise --max-length, in a run training.seq_len",
        judged, longest);
  const int64_t more = static_cast<int64_t>(pair.context.size()) + judged - longest - 1;
  if (more > 0) pair.context.erase(pair.context.begin(), pair.context.begin() + more);
  return pair;
}

std::vector<TokenPair> rolling_windows(std::span<const int32_t> ids, int32_t prefix, int64_t longest) {
  std::vector<TokenPair> windows;
  const auto n = static_cast<int64_t>(ids.size());
  const auto slice = [&](int64_t begin, int64_t end) { return std::vector<int32_t>(ids.begin() + begin, ids.begin() + end); };
  for (int64_t done = 0; done < n;) {
    const int64_t judged = std::min(longest, n - done), end = done + judged;
    std::vector<int32_t> context = done == 0 ? std::vector<int32_t>{prefix} : slice(end - longest - 1, done);
    windows.push_back({std::move(context), slice(done, end)});
    done = end;
  }
  return windows;
}

}  // namespace halftone::eval
