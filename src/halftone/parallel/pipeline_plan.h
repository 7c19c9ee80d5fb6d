#pragma once
#include <compare>
#include <optional>
#include <vector>

#include "halftone/parallel/schedule.h"

namespace halftone::parallel {

// What a stage hands on: x + branch to the next one, or the gradient of what it read to the one before.
enum class Flow { stream, gradient };

struct Message {
  Flow flow;
  int64_t stage, microbatch;  // of who reads it
  auto operator<=>(const Message&) const = default;
};

// Whose message it is, by stage.
int64_t sender_of(const Message& message);

// One action of a rank, and its messages from and to other ranks.
struct PlannedAction {
  Action action;
  std::optional<Message> needs;   // without which it cannot begin
  std::optional<Message> gives;   // when it has ended
  std::vector<Message> receives;  // asked for before the action ahead of it is computed, in the order in which each sender sends them
  bool last = false;              // its stage's last one that adds to gradients
};

// What the rank does, in order. Of one flow between two ranks both sides issue the same messages in the same order: the receiver asks for
// what comes before the message that it needs, too, and keeps it.
std::vector<PlannedAction> rank_plan(const Schedule& schedule, int64_t rank);

}  // namespace halftone::parallel
