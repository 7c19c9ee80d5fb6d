#pragma once
#include "halftone/config/field.h"

namespace halftone {

// A limit on a figure of a training step, and the consequence of exceeding it.
struct AlarmConfig {
  double threshold = 0;
  std::string action = "warn";

  static void fields(auto& self, auto&& field) {
    field("threshold", self.threshold, "> 0: largest value without an alarm; inf = measure only, 0 = do not measure",
          {.mark = Mark::E, .min = 0});
    field("action", self.action, "on the alarm: warn, rollback to the last checkpoint without this step's rows, or stop",
          {.mark = Mark::E, .choices = {"warn", "rollback", "stop"}});
  }
};

// [alarms]: each figure is defined in docs/metrics.md.
struct AlarmsConfig {
  int64_t freq = 10;
  AlarmConfig expert_load, residual_norm, attention_logit, clipped, underflowed;

  static void fields(auto& self, auto&& field) {
    field("freq", self.freq, "steps between measurements; steps that save a checkpoint are measured too", {.mark = Mark::E, .min = 1});
    field("expert_load", self.expert_load, "largest load of an expert of the first MoE layer; 1 = balanced");
    field("residual_norm", self.residual_norm, "RMS of the residual stream after a block");
    field("attention_logit", self.attention_logit,
          "bound of a layer's attention logits: scale times the largest norms of a head's q and k");
    field("clipped", self.clipped, "share of a quantised operand's elements that clip");
    field("underflowed", self.underflowed, "share of a quantised operand's non-zero elements that become zero");
  }
};

}  // namespace halftone
