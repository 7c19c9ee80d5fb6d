#include "comm/ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace halftone::comm {
namespace {

using Body = void (*)(const Rank&);

std::map<std::string, Body>& bodies() {
  static std::map<std::string, Body> all;
  return all;
}

pid_t start(const std::string& name, int64_t rank, int64_t world, const std::filesystem::path& folder) {
  const std::string said = folder / ("said." + std::to_string(rank)), r = std::to_string(rank), w = std::to_string(world);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int out = open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(out, 1), dup2(out, 2);
  setenv("OMP_NUM_THREADS", "1", 1);
  execl("/proc/self/exe", "comm_test", "--rank", name.c_str(), r.c_str(), w.c_str(), folder.c_str(), nullptr);
  _exit(126);
}

}  // namespace

Ranks::Ranks(const char* name, Body body) { bodies()[name] = body; }

std::vector<int64_t> Rank::all() const {
  std::vector<int64_t> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Watch Rank::watch(int64_t recorded, const std::string& address) const {
  // One file for all watches: FileStore removes its file as soon as `world` stores have gone, also when others have opened it since.
  static const auto file = c10::make_intrusive<c10d::FileStore>(folder / "store", static_cast<int>(world));
  static int64_t calls = 0;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(calls++), file);
  const Recorder recorder{recorded, folder / "traces" / ("rank_" + std::to_string(rank) + ".jsonl")};
  return {store, rank, world, std::chrono::seconds(60), std::chrono::milliseconds(200), recorder, address};
}

std::vector<Outcome> run_ranks(const std::string& name, int64_t world) {
  std::string pattern = std::filesystem::temp_directory_path() / "comm_test.XXXXXX";
  const std::filesystem::path folder = mkdtemp(pattern.data());
  std::vector<pid_t> pids;
  for (int64_t r = 0; r < world; ++r) pids.push_back(start(name, r, world, folder));
  std::vector<Outcome> outcomes(pids.size(), {-1, "", ""});
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  std::vector<bool> stopped(pids.size());
  while (true) {
    bool all_ended = true, all_idle = true;
    for (size_t i = 0; i < pids.size(); ++i) {
      int status = 0;
      if (outcomes[i].status < 0 && waitpid(pids[i], &status, WNOHANG | WUNTRACED | WCONTINUED) == pids[i]) {
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) stopped[i] = WIFSTOPPED(status);
        if (WIFEXITED(status)) outcomes[i].status = WEXITSTATUS(status);
        if (WIFSIGNALED(status)) outcomes[i].status = 128 + WTERMSIG(status);
      }
      all_ended = all_ended && outcomes[i].status >= 0;
      all_idle = all_idle && (outcomes[i].status >= 0 || stopped[i]);
    }
    if (all_ended) break;
    if (all_idle || std::chrono::steady_clock::now() > end) {
      for (size_t i = 0; i < pids.size(); ++i) {
        if (outcomes[i].status < 0) kill(pids[i], SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (size_t i = 0; i < pids.size(); ++i) {
    const auto read = [&](const std::string& name) {
      const std::ifstream file(folder / name);
      return (std::ostringstream() << file.rdbuf()).str();
    };
    outcomes[i].said = read("said." + std::to_string(i));
    outcomes[i].flight = read("traces/rank_" + std::to_string(i) + ".jsonl");
  }
  std::filesystem::remove_all(folder);
  return outcomes;
}

}  // namespace halftone::comm

int main(int count, char** arguments) {
  if (count == 6 && std::string(arguments[1]) == "--rank") {
    try {
      halftone::comm::bodies().at(arguments[2])({std::stol(arguments[3]), std::stol(arguments[4]), arguments[5]});
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "halftone: %s\n", error.what());
      return 2;
    }
  }
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
