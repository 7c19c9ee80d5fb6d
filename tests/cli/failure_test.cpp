#include "halftone/cli/failure.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

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

TEST(Failure, OtherErrorsOfTorchLeaveTheirStackOut) {
  try {
    TORCH_CHECK(false, "sizes differ");
  } catch (const std::exception& e) {
    expect_one_line(failure_of(e), 1, "internal error: sizes differ");
  }
}

}  // namespace
}  // namespace halftone
