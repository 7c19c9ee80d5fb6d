#include "halftone/chat/conversation.h"

#include "halftone/base/error.h"

namespace halftone {

LossOn parse_loss_on(const std::string& name) {
  if (name == "assistant") return LossOn::assistant;
  if (name == "last") return LossOn::last;
  if (name == "all") return LossOn::all;
  fail("dataloader.loss_on = \"{}\": expected assistant, last or all", name);
}

}  // namespace halftone
