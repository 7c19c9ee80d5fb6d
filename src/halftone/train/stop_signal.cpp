#include "halftone/train/stop_signal.h"

#include <unistd.h>

#include <csignal>

namespace halftone {
namespace {

volatile std::sig_atomic_t received = 0;

void note(int number) {
  if (received != 0) _exit(128 + number);
  received = number;
}

}  // namespace

StopSignal::StopSignal() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

StopSignal::~StopSignal() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

int StopSignal::signal() const { return received; }

}  // namespace halftone
