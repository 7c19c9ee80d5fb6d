#include "halftone/base/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "halftone/base/error.h"

namespace halftone {
namespace {

Environment read(const std::map<std::string, std::string>& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Environment, NoLauncherIsOneProcess) {
  const Environment e = read({});
  EXPECT_EQ(e.launcher, "none");
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.world_size, 1);
  EXPECT_EQ(e.store_address, "127.0.0.1");
  EXPECT_EQ(e.log_ranks, std::vector<int64_t>{0});
}

TEST(Environment, ProcessesOfADryRun) {
  EXPECT_EQ(read({}).simulated_world_size, 1);
  EXPECT_EQ(read({{"WORLD_SIZE", "8"}}).simulated_world_size, 8);
  EXPECT_EQ(read({{"WORLD_SIZE", "8"}, {"NGPU", "256"}}).simulated_world_size, 256);
  EXPECT_EQ(read({{"WORLD_SIZE", "8"}}).world_size, 1);  // no rank: no launcher
}

TEST(Environment, Torchrun) {
  const Environment e = read({{"RANK", "5"},
                              {"LOCAL_RANK", "1"},
                              {"WORLD_SIZE", "8"},
                              {"MASTER_ADDR", "node0"},
                              {"MASTER_PORT", "1234"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                              {"TORCHELASTIC_RESTART_COUNT", "2"},
                              {"TORCHELASTIC_RUN_ID", "night"},
                              {"SLURM_PROCID", "0"},
                              {"SLURM_STEP_NUM_TASKS", "1"},
                              {"LOG_RANK", "0,3"}});
  EXPECT_EQ(e.launcher, "torchrun");
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.world_size, 8);
  EXPECT_EQ(e.store_address, "node0");
  EXPECT_EQ(e.store_port, 1234);
  EXPECT_TRUE(e.launcher_hosts_store);
  EXPECT_EQ(e.restart_count, 2);
  EXPECT_EQ(e.job, "night");
  EXPECT_EQ(e.log_ranks, (std::vector<int64_t>{0, 3}));
}

TEST(Environment, SlurmNeedsAStep) {
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).world_size, 1);  // a batch shell
  const Environment e = read({{"SLURM_PROCID", "3"},
                              {"SLURM_LOCALID", "3"},
                              {"SLURM_STEP_NUM_TASKS", "4"},
                              {"SLURM_STEP_NODELIST", "gpu[07-09,12]"},
                              {"SLURM_JOB_ID", "45678"}});
  EXPECT_EQ(e.rank, 3);
  EXPECT_EQ(e.world_size, 4);
  EXPECT_EQ(e.store_address, "gpu07");
  EXPECT_EQ(e.job, "45678");
  EXPECT_EQ(e.store_port, 25678);
}

TEST(Environment, SchemesAreNotMixed) {
  const Environment e = read({{"RANK", "7"},
                              {"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "h"}});
  EXPECT_EQ(e.launcher, "openmpi");
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.world_size, 2);
}

TEST(Environment, BadValuesAreNamed) {
  EXPECT_THROW(read({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), Error);
  EXPECT_THROW(read({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), Error);
  EXPECT_THROW(read({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), Error);
  EXPECT_THROW(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}), Error);
  EXPECT_THROW(read({{"MASTER_PORT", "70000"}}), Error);
  for (const char* list : {"a", "1,", ",1", "-1", "1 2"}) EXPECT_THROW(read({{"LOG_RANK", list}}), Error) << list;
}

TEST(Environment, OneOfSeveralProcessesIsRefused) {
  EXPECT_NO_THROW(require_one_process(read({})));
  EXPECT_NO_THROW(require_one_process(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}})));
  try {
    require_one_process(read({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "h"}}));
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "this command runs as one process, found process 3 of 8 started by torchrun; start one, for example without torchrun or with a "
        "single task");
  }
}

TEST(Environment, SlurmNodeLists) {
  EXPECT_EQ(first_slurm_node("a1"), "a1");
  EXPECT_EQ(first_slurm_node("a1,b2"), "a1");
  EXPECT_EQ(first_slurm_node("a[1-3,7]"), "a1");
  EXPECT_EQ(first_slurm_node("a[7]"), "a7");
  EXPECT_EQ(first_slurm_node("a[7].cluster,b[1-2]"), "a7.cluster");
  EXPECT_EQ(first_slurm_node("x,a[1-2]"), "x");
  EXPECT_THROW(first_slurm_node("a["), Error);
  EXPECT_THROW(first_slurm_node("a[]"), Error);
}

}  // namespace
}  // namespace halftone
