#include "halftone/parallel/pipeline_actions.h"

#include <map>
#include <set>

namespace halftone::parallel {
namespace {

// The message that an action needs; none where the model begins or, in backward, ends.
std::optional<Message> needed(const Action& a, int64_t stages) {
  if (a.kind == Kind::forward && a.stage > 0) return Message{Flow::stream, a.stage, a.microbatch};
  const bool back = a.kind == Kind::input || a.kind == Kind::full;
  if (back && a.stage + 1 < stages) return Message{Flow::gradient, a.stage, a.microbatch};
  return std::nullopt;
}

std::optional<Message> given(const Action& a, int64_t stages) {
  if (a.kind == Kind::weight) return std::nullopt;
  const Flow flow = a.kind == Kind::forward ? Flow::stream : Flow::gradient;
  const int64_t reader = flow == Flow::stream ? a.stage + 1 : a.stage - 1;
  if (reader < 0 || reader == stages) return std::nullopt;
  return Message{flow, reader, a.microbatch};
}

}  // namespace

int64_t sender_of(const Message& m) { return m.flow == Flow::stream ? m.stage - 1 : m.stage + 1; }

std::vector<PipelineAction> rank_actions(const Schedule& s, int64_t rank) {
  const auto rank_of = [&](int64_t stage) { return s.rank_of[static_cast<size_t>(stage)]; };
  // Messages to this rank by flow and sender, in send order.
  std::map<std::pair<Flow, int64_t>, std::vector<Message>> channels;
  for (int64_t r = 0; r < static_cast<int64_t>(s.ranks.size()); ++r) {
    for (const Action& a : s.ranks[static_cast<size_t>(r)]) {
      const auto m = r == rank ? std::nullopt : given(a, s.stages);
      if (m && rank_of(m->stage) == rank) channels[{m->flow, r}].push_back(*m);
    }
  }
  std::map<std::pair<Flow, int64_t>, size_t> received;  // by channel
  std::set<Message> asked;
  std::vector<PipelineAction> plan;
  for (const Action& a : s.ranks[static_cast<size_t>(rank)]) {
    PipelineAction& p = plan.emplace_back();
    p.action = a, p.needs = needed(a, s.stages), p.gives = given(a, s.stages);
    const int64_t from = p.needs ? rank_of(sender_of(*p.needs)) : rank;
    if (from == rank) continue;  // produced on this rank
    size_t& next = received[{p.needs->flow, from}];
    while (!asked.contains(*p.needs)) {
      p.receives.push_back(channels.at({p.needs->flow, from}).at(next++));
      asked.insert(p.receives.back());
    }
  }
  // Last actions of backward passes; and of the last stage's forward passes, which compute the head's gradients.
  std::map<std::pair<int64_t, bool>, size_t> last;
  for (size_t i = 0; i < plan.size(); ++i) last[{plan[i].action.stage, plan[i].action.kind == Kind::forward}] = i;
  for (const auto& [of, i] : last) plan[i].last = true;
  return plan;
}

}  // namespace halftone::parallel
