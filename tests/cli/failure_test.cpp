#include "halftone/cli/failure.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <new>

#include "halftone/base/error.h"

namespace halftone {
namespace {

void expect_one_line(const Failure& f, int status, const std::string& begins) {
  EXPECT_EQ(f.status, status) << f.line;
  EXPECT_EQ(f.line.substr(0, begins.size()), begins);
  EXPECT_EQ(f.line.find('\n'), std::string::npos) << f.line;
}

TEST(Failure, ErrorsOfOurOwnKeepTheirText) {
  expect_one_line(failure_of(Error("quantize.scheme: no")), 2, "quantize.scheme: no");
  expect_one_line(failure_of(NonFiniteError("loss is nan")), 3, "loss is nan");
}

TEST(Failure, MemoryOfADeviceThatRunsOutSaysWhatToLower) {
  const c10::OutOfMemoryError e(
      {__func__, __FILE__, __LINE__},
      "CUDA out of memory. Tried to allocate 2.44 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.43 GiB is free. Including "
      "non-PyTorch memory, this process has 138.35 GiB memory in use.\n(stack)");
  const Failure f = failure_of(e);
  expect_one_line(
      f, 2,
      "out of memory: Tried to allocate 2.44 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.43 GiB is free; lower training.");
  EXPECT_NE(f.line.find("training.local_batch_size"), std::string::npos);
}

TEST(Failure, MemoryOfTheHostThatRunsOutSaysWhatToLower) {
  expect_one_line(failure_of(std::bad_alloc()), 2, "out of memory: ");
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer ends a process that asks for so much";
#endif
  try {
    at::empty({int64_t{1} << 60}, at::kByte);
    FAIL() << "an exbibyte was allocated";
  } catch (const std::exception& e) {
    expect_one_line(failure_of(e), 2, "out of memory: you tried to allocate 1152921504606846976 bytes");
  }
}

TEST(Failure, OutputThatCannotBeWrittenSaysWhy) {
  const auto problem_of = [](const char* path, auto&& write) {
    std::FILE* out = std::fopen(path, "w");
    write(out);
    const std::string problem = write_problem(out, "standard output");
    std::fclose(out);
    return problem;
  };
  const auto text = [](std::FILE* out) { std::fputs("text", out); };
  const auto flushed = [](std::FILE* out) { std::fputs("text", out), std::fflush(out); };
  const std::string full = "standard output cannot be written: No space left on device; free some space or send the output elsewhere";
  EXPECT_EQ(problem_of("/dev/full", text), full);
  EXPECT_EQ(problem_of("/dev/full", flushed), full);  // of a write whose reason stdio has forgotten
  EXPECT_EQ(problem_of("/dev/full", [](std::FILE*) {}), "");
  EXPECT_EQ(problem_of("/dev/null", flushed), "");
}

TEST(Failure, OtherErrorsOfTorchLeaveTheirStackOut) {
  try {
    TORCH_CHECK(false, "sizes differ");
  } catch (const std::exception& e) {
    expect_one_line(failure_of(e), 1, "internal error: sizes differ");
  }
}

}  // namespace
}  // namespace halftone
