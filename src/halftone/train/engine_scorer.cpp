#include "halftone/train/engine_scorer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/train/prefix_attention.h"

namespace halftone {
namespace {

using eval::TokenPair;

// Rows are multiples of it, or as long as the run's: tensor and context parallelism share their positions, the latter in two pieces each.
int64_t block_of(const Processes* processes) {
  constexpr int64_t kBlock = 128;
  if (processes == nullptr || !processes->many()) return kBlock;
  return std::lcm(kBlock, 2 * processes->mesh().size("tp") * processes->mesh().size("cp"));
}
// Tokens that sharing a context has to save, since it costs a further call of attention in each block. On a GPU the host needs some 60 us
// for it, in which the GPU does some 1.6e10 operations of products: 2 for each token and active parameter of a block.
int64_t least_saving(const Engine& engine) {
  if (engine.device().is_cpu()) return 16;
  const nn::ModelSize size = engine.size();
  return std::max<int64_t>(16, 8'000'000'000 * size.layers / std::max<int64_t>(1, size.active_parameters));
}
constexpr int64_t kPromptsAtOnce = 32;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

// One request, or several that share their context, as they stand in a row: the context without its last token once, then for each
// request the context's last token and its continuation without its last one.
struct EngineScorer::Item {
  size_t first = 0, count = 1;  // requests
  int64_t prefix = 0;           // tokens in front of the requests; 0 for one alone
  int64_t tokens = 0;
};

struct EngineScorer::Layout {
  int64_t width = 0, rows_each = 1;     // positions of a row; rows of a rank's pass
  std::vector<std::vector<Item>> rows;  // all of them
};

EngineScorer::EngineScorer(Engine& engine, const Tokenizer& tokenizer, ScorerOptions options, Processes* processes)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      processes_(processes),
      max_length_(options_.max_length > 0 ? std::min(options_.max_length, engine.options().positions) : engine.options().positions),
      batch_tokens_(options_.batch_tokens > 0  ? options_.batch_tokens
                    : engine.device().is_cpu() ? 4096
                                               : 32768),
      least_saving_(least_saving(engine)) {
  check(tokenizer.vocab_size() <= engine.size().vocab,
        "the tokenizer has {} entries, the model's vocabulary {}; pass the model's tokenizer", tokenizer.vocab_size(), engine.size().vocab);
  const bool whole_rows = engine.options().axes == nullptr || engine.options().axes->context() == nullptr;
  options_.share_prefixes = options_.share_prefixes && whole_rows && !batch_invariant();
}

EngineScorer::Layout EngineScorer::lay_out(const std::vector<TokenPair>& pairs) const {
  Layout layout;
  std::vector<Item> items;
  int64_t longest = 1, all = 0;
  for (size_t i = 0; i < pairs.size();) {
    const auto context = static_cast<int64_t>(pairs[i].context.size());
    const auto judged = [&](size_t j) { return static_cast<int64_t>(pairs[j].continuation.size()); };
    const auto follows = [&](size_t j) { return j < pairs.size() && pairs[j].context == pairs[i].context; };
    Item item{i};
    item.tokens = context - 1 + judged(i);
    int64_t tokens = item.tokens, count = 1;
    for (size_t j = i + 1; options_.share_prefixes && follows(j) && tokens + judged(j) <= max_length_; ++j) tokens += judged(j), ++count;
    if ((context - 1) * (count - 1) >= least_saving_) item.prefix = context - 1, item.count = count, item.tokens = tokens;
    i += static_cast<size_t>(item.count);
    longest = std::max(longest, item.tokens), all += item.tokens;
    items.push_back(item);
  }
  layout.width = std::min(round_up(std::max(longest, std::min(all, batch_tokens_)), block_of(processes_)), engine_.options().positions);
  layout.rows_each = std::max<int64_t>(1, batch_tokens_ / layout.width);
  if (engine_.pipeline() != nullptr) layout.rows_each = round_up(layout.rows_each, engine_.pipeline()->microbatch_rows());
  // Best fit of decreasing sizes.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.tokens > b.tokens; });
  std::multimap<int64_t, size_t> room;  // positions left, row
  for (const Item& item : items) {
    auto found = room.lower_bound(item.tokens);
    if (found == room.end()) found = room.emplace(layout.width, layout.rows.size()), layout.rows.emplace_back();
    const auto [left, row] = *found;
    room.erase(found);
    layout.rows[row].push_back(item);
    room.emplace(left - item.tokens, row);
  }
  return layout;
}

std::vector<MicroBatch> EngineScorer::rows_of(const Layout& layout, const std::vector<TokenPair>& pairs, int64_t first,
                                              int64_t count) const {
  const int64_t each = engine_.pipeline() != nullptr ? engine_.pipeline()->microbatch_rows() : count, width = layout.width;
  std::vector<MicroBatch> batches;
  for (int64_t begin = first; begin < first + count; begin += each) {
    const auto ints = at::TensorOptions().dtype(at::kInt);
    const auto longs = at::TensorOptions().dtype(at::kLong);
    const at::Tensor tokens = at::zeros({each, width}, longs), labels = at::full({each, width}, -100, longs);
    const at::Tensor sources = at::zeros({each, width}, longs), positions = at::zeros({each, width}, ints);
    const at::Tensor starts = at::zeros({each, width}, ints), padding = at::zeros({each, width}, at::TensorOptions().dtype(at::kBool));
    std::vector<SharedPrefixes::Group> groups;
    MicroBatch b;
    for (int64_t r = 0; r < each; ++r) {
      int64_t at = 0, start = 0, position = 0;
      auto* t = tokens[r].mutable_data_ptr<int64_t>();
      auto* l = labels[r].mutable_data_ptr<int64_t>();
      auto* s = sources[r].mutable_data_ptr<int64_t>();
      auto *p = positions[r].mutable_data_ptr<int32_t>(), *d = starts[r].mutable_data_ptr<int32_t>();
      const auto put = [&](int32_t token, int64_t label, size_t request) {
        t[at] = token, l[at] = label, s[at] = static_cast<int64_t>(request);
        p[at] = static_cast<int32_t>(position++), d[at] = static_cast<int32_t>(start);
        ++at;
      };
      const auto row = static_cast<size_t>(begin + r);
      const std::vector<Item> none;
      for (const Item& item : row < layout.rows.size() ? layout.rows[row] : none) {
        const std::vector<int32_t>& context = pairs[item.first].context;
        start = at, position = 0;
        SharedPrefixes::Group* group = nullptr;
        if (item.prefix > 0) {
          group = &groups.emplace_back();
          group->row = r, group->prefix = {at, at + item.prefix};
          for (int64_t i = 0; i < item.prefix; ++i) put(context[static_cast<size_t>(i)], -100, item.first);
        }
        for (size_t request = item.first; request < item.first + item.count; ++request) {
          const std::vector<int32_t>& judged = pairs[request].continuation;
          if (group != nullptr) start = at, position = item.prefix;
          for (size_t i = static_cast<size_t>(item.prefix); i + 1 < context.size(); ++i) put(context[i], -100, request);
          put(context.back(), judged[0], request);
          for (size_t i = 0; i + 1 < judged.size(); ++i) put(judged[i], judged[i + 1], request);
          if (group != nullptr) group->continuations.push_back({start, at});
        }
      }
      if (at < width && at > 0) padding[r].narrow(0, at, width - at).fill_(true), b.padding += width - at;
      for (start = at, position = 0; at < width;) p[at] = static_cast<int32_t>(position++), d[at++] = static_cast<int32_t>(start);
    }
    b.input.tokens = tokens, b.labels = labels, b.sources = sources, b.input.positions = positions;
    if (b.padding > 0) b.input.padding = padding;
    b.input.documents = documents_of(starts, engine_.device());
    b.first_row = begin * width;
    if (!groups.empty()) {
      const auto port = std::make_shared<SharedPrefixes>(b.input.documents, std::move(groups));
      b.input.documents = {}, b.input.documents.port = port;
    } else {
      b = engine_.own_part(b);
    }
    batches.push_back(std::move(b));
  }
  return batches;
}

std::vector<eval::LogLikelihood> EngineScorer::score(std::vector<TokenPair> pairs, bool greedy) {
  const Stopwatch watch;
  for (TokenPair& pair : pairs) pair = eval::cut(std::move(pair), max_length_);
  if (only_checks_) return std::vector<eval::LogLikelihood>(pairs.size());
  for (const TokenPair& pair : pairs) {
    work_.asked += static_cast<int64_t>(pair.context.size() + pair.continuation.size()) - 1;
  }
  std::vector<eval::LogLikelihood> answers(pairs.size(), {0, true});
  const Layout layout = lay_out(pairs);
  const int64_t ranks = processes_ != nullptr ? processes_->data_ranks() : 1, rank = processes_ != nullptr ? processes_->data_rank() : 0;
  const bool counts = engine_.options().axes == nullptr || engine_.options().axes->counts_loss();
  const int64_t together = layout.rows_each * ranks, rows = static_cast<int64_t>(layout.rows.size());
  for (int64_t row = 0; row < rows; row += together) {
    std::vector<MicroBatch> batches = rows_of(layout, pairs, row + rank * layout.rows_each, layout.rows_each);
    std::vector<std::pair<at::Tensor, at::Tensor>> own;  // labels and requests of its places, in host memory
    for (MicroBatch& b : batches) {
      own.emplace_back(b.labels.reshape(-1).contiguous(), b.sources.reshape(-1).contiguous());
      b.sources = at::Tensor();
      for (at::Tensor* t : {&b.input.tokens, &b.labels, &b.input.positions, &b.input.padding})
        if (t->defined()) *t = t->to(engine_.device());
      b.input.step.scores = std::make_shared<RowScores>();
      b.input.step.scores->greedy = greedy;
    }
    engine_.evaluate(batches);
    for (size_t i = 0; i < batches.size() && counts; ++i) {
      const RowScores& scores = *batches[i].input.step.scores;
      const at::Tensor loss = scores.loss.cpu(), best = greedy ? scores.best.cpu() : at::Tensor();
      const auto *labels = own[i].first.const_data_ptr<int64_t>(), *requests = own[i].second.const_data_ptr<int64_t>();
      for (int64_t t = 0; t < loss.numel(); ++t) {
        if (labels[t] < 0) continue;
        eval::LogLikelihood& a = answers[static_cast<size_t>(requests[t])];
        a.value -= static_cast<double>(loss.const_data_ptr<float>()[t]);
        a.greedy = a.greedy && (!greedy || best.const_data_ptr<int64_t>()[t] == labels[t]);
      }
    }
    if (options_.report) options_.report(static_cast<double>(std::min(rows, row + together)) / static_cast<double>(rows));
  }
  for (const std::vector<Item>& items : layout.rows)
    for (const Item& item : items) work_.computed += item.tokens;
  if (processes_ != nullptr && processes_->many()) {  // every rank has the parts of its rows and positions
    nlohmann::json mine = nlohmann::json::array();
    for (size_t i = 0; i < answers.size(); ++i)
      if (answers[i].value != 0 || !answers[i].greedy) mine.push_back({i, answers[i].value, answers[i].greedy});
    answers.assign(pairs.size(), {0, true});
    for (const std::string& text : processes_->texts(mine.dump())) {
      for (const nlohmann::json& one : nlohmann::json::parse(text)) {
        eval::LogLikelihood& a = answers.at(one[0].get<size_t>());
        a.value += one[1].is_number() ? one[1].get<double>() : std::nan(""), a.greedy = a.greedy && one[2].get<bool>();
      }
    }
  }
  work_.seconds += watch.seconds();
  return answers;
}

std::vector<eval::LogLikelihood> EngineScorer::continuations(std::span<const eval::Continuation> asked, bool greedy) {
  std::vector<TokenPair> pairs;
  for (const eval::Continuation& c : asked) pairs.push_back(eval::split_tokens(tokenizer_, c));
  return score(std::move(pairs), greedy);
}

std::vector<double> EngineScorer::texts(std::span<const std::string> asked) {
  std::vector<TokenPair> windows;
  std::vector<size_t> counts;
  const int32_t prefix = eval::prefix_token(tokenizer_);
  for (const std::string& text : asked) {
    std::vector<TokenPair> own = eval::rolling_windows(eval::encode_context(tokenizer_, text), prefix, max_length_);
    counts.push_back(own.size());
    std::move(own.begin(), own.end(), std::back_inserter(windows));
  }
  const std::vector<eval::LogLikelihood> scored = score(std::move(windows), false);
  std::vector<double> sums;
  size_t at = 0;
  for (const size_t count : counts) {
    double& sum = sums.emplace_back();
    for (size_t i = 0; i < count; ++i) sum += scored[at++].value;
  }
  return sums;
}

void EngineScorer::check_room(int64_t max_new_tokens) const {
  check(max_new_tokens < max_length_, "expected fewer than the {} tokens that are read to be generated, found {}; lower max_new_tokens",
        max_length_, max_new_tokens);
}

void EngineScorer::check_questions(const std::vector<eval::PreparedTask>& tasks) {
  eval::RunOptions options;
  options.bootstrap_iters = 0;
  only_checks_ = true;
  eval::run(tasks, *this, options, false);
  only_checks_ = false;
}

std::vector<std::string> EngineScorer::generations(std::span<const eval::Prompt> asked) {
  check(engine_.options().axes == nullptr, "tasks of kind generate need a process alone; run halftone eval on a checkpoint for them");
  std::vector<std::vector<int32_t>> prompts;
  for (const eval::Prompt& p : asked) {
    std::vector<int32_t>& ids = prompts.emplace_back(eval::encode_context(tokenizer_, p.context));
    if (ids.empty()) ids.push_back(eval::prefix_token(tokenizer_));
    check_room(p.max_new_tokens);
    const int64_t room = max_length_ - p.max_new_tokens;
    if (const int64_t more = static_cast<int64_t>(ids.size()) - room; more > 0) ids.erase(ids.begin(), ids.begin() + more);
  }
  if (only_checks_) return std::vector<std::string>(asked.size());
  // Prompts of about the same length together: see generate().
  std::vector<size_t> order(asked.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return prompts[a].size() > prompts[b].size(); });
  std::vector<std::string> answers(asked.size());
  for (size_t at = 0; at < order.size(); at += kPromptsAtOnce) {
    const size_t count = std::min<size_t>(kPromptsAtOnce, order.size() - at);
    generate(asked, prompts, std::span(order).subspan(at, count), answers);
    if (options_.report) options_.report(static_cast<double>(at + count) / static_cast<double>(order.size()));
  }
  return answers;
}

// All rows are at the same position: while a longer prompt is still read token by token, a shorter one's row generates.
void EngineScorer::generate(std::span<const eval::Prompt> asked, std::span<const std::vector<int32_t>> prompts,
                            std::span<const size_t> order, std::vector<std::string>& answers) {
  const Stopwatch watch;
  const auto batch = static_cast<int64_t>(order.size());
  int64_t shortest = INT64_MAX, capacity = 0;
  for (const size_t i : order) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    shortest = std::min(shortest, length), capacity = std::max(capacity, length + asked[i].max_new_tokens);
  }
  std::vector<KvCache> caches = engine_.model().make_caches(batch, capacity);
  std::vector<std::vector<int32_t>> made(order.size());
  std::vector<std::string> texts(order.size());
  std::vector<bool> done(order.size());
  at::Tensor feed = at::zeros({batch, shortest}, at::TensorOptions().dtype(at::kLong));
  for (int64_t r = 0; r < batch; ++r)
    std::copy_n(prompts[order[static_cast<size_t>(r)]].begin(), shortest, feed.mutable_data_ptr<int64_t>() + r * shortest);
  for (int64_t position = shortest; std::find(done.begin(), done.end(), false) != done.end(); ++position) {
    const at::Tensor logits = engine_.model().next_token_logits(feed.to(engine_.device()), caches).narrow(1, 0, tokenizer_.vocab_size());
    const at::Tensor best = logits.argmax(1).cpu();
    feed = at::zeros({batch, 1}, at::TensorOptions().dtype(at::kLong));
    for (size_t r = 0; r < order.size(); ++r) {
      const std::vector<int32_t>& prompt = prompts[order[r]];
      const eval::Prompt& wish = asked[order[r]];
      int64_t next = best.const_data_ptr<int64_t>()[r];
      if (position < static_cast<int64_t>(prompt.size())) {
        next = prompt[static_cast<size_t>(position)];
      } else if (!done[r]) {
        made[r].push_back(static_cast<int32_t>(next)), ++work_.computed;
        const bool ends = std::find(options_.ends.begin(), options_.ends.end(), next) != options_.ends.end();
        texts[r] = tokenizer_.decode(made[r], true);
        const bool stops = std::any_of(wish.until.begin(), wish.until.end(),
                                       [&](const std::string& s) { return !s.empty() && texts[r].find(s) != std::string::npos; });
        done[r] = ends || stops || static_cast<int64_t>(made[r].size()) >= wish.max_new_tokens;
      }
      feed.mutable_data_ptr<int64_t>()[r] = next;
    }
  }
  for (size_t r = 0; r < order.size(); ++r) {
    for (const std::string& stop : asked[order[r]].until)
      if (!stop.empty()) texts[r] = texts[r].substr(0, texts[r].find(stop));
    answers[order[r]] = std::move(texts[r]);
    work_.computed += static_cast<int64_t>(prompts[order[r]].size()), work_.asked += static_cast<int64_t>(prompts[order[r]].size());
  }
  work_.seconds += watch.seconds();
}

}  // namespace halftone
