#pragma once
#include <compare>
#include <optional>
#include <vector>

#include "halftone/parallel/schedule.h"

namespace halftone::parallel {

// Message of a stage: x + branch to the next stage, or the gradient of its input to the previous one.
enum class Flow { stream, gradient };

struct Message {
  Flow flow;
  int64_t stage, microbatch;  // of the reader
  auto operator<=>(const Message&) const = default;
};

// The stage that sends a message.
int64_t sender_of(const Message& message);

// One action of a rank, with its messages from and to other ranks.
struct PipelineAction {
  Action action;
  std::optional<Message> needs;   // required before it can begin
  std::optional<Message> gives;   // sent when it has ended
  std::vector<Message> receives;  // posted before the preceding action is computed, in each sender's order
  bool last = false;              // the last action of its stage that accumulates gradients
};

// The rank's actions, in order. For each flow between two ranks both sides issue the same messages in the same order: the receiver also
// posts and buffers those that arrive before the message it needs.
std::vector<PipelineAction> rank_actions(const Schedule& schedule, int64_t rank);

}  // namespace halftone::parallel
