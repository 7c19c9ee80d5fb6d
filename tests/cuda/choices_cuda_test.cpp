#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>

#include "cuda/module.h"
#include "cuda/product_case.h"
#include "halftone/gemm/product_cuda.h"

namespace halftone::gemm {
namespace {

// A copy of halftone_cuda.so without this process's measurements: simulates another process.
class OtherProcess {
 public:
  OtherProcess() {
    const auto module = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "halftone_cuda.so";
    std::string copy = (std::filesystem::temp_directory_path() / "halftone-module-XXXXXX").string();
    const int fd = ::mkstemp(copy.data());
    if (fd >= 0) ::close(fd);
    std::filesystem::copy_file(module, copy, std::filesystem::copy_options::overwrite_existing);
    handle_ = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) std::fprintf(stderr, "%s\n", dlerror());
    std::filesystem::remove(copy);
  }
  template <class F>
  F* function(const char* name) const {
    return handle_ ? reinterpret_cast<F*>(dlsym(handle_, name)) : nullptr;
  }
  std::vector<ProductChoice> made() const {
    auto* get = function<int64_t(ProductChoice*, int64_t)>("halftone_cuda_made_choices");
    std::vector<ProductChoice> out(static_cast<size_t>(get(nullptr, 0)));
    EXPECT_EQ(get(out.data(), static_cast<int64_t>(out.size())), static_cast<int64_t>(out.size()));
    return out;
  }
  void recall(const std::vector<ProductChoice>& choices) const {
    function<void(const ProductChoice*, int64_t)>("halftone_cuda_recall_choices")(choices.data(), static_cast<int64_t>(choices.size()));
  }
  std::vector<float> product(Product p) const {
    p.workspace_bytes = function<int64_t(const Product*)>("halftone_cuda_product_workspace")(&p);
    const Device workspace(std::vector<uint8_t>(static_cast<size_t>(p.workspace_bytes))),
        out(std::vector<float>(static_cast<size_t>(p.m * p.n)));
    p.workspace = workspace.get(), p.d = out.get(), p.d_type = DType::f32, p.measure = true;
    const char* problem = function<const char*(const Product*, void*)>("halftone_cuda_product")(&p, nullptr);
    EXPECT_EQ(problem, nullptr) << problem;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return out.fetch<float>();
  }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  void* handle_ = nullptr;  // stays loaded: the runtime keeps addresses of its kernels
};

// cuBLASLt's GEMMs and ours: one process reuses another's measurements, and measures again if a choice does not exist.
TEST(ChoicesCuda, ServeOtherProcesses) {
  if (const CudaModule module; !module.reason().empty()) GTEST_SKIP() << module.reason();
  const OtherProcess first, second, third;
  ASSERT_TRUE(first && second && third);
  constexpr int64_t kM = 1152, kN = 4096, kK = 1024;  // enough tiles that ours tries several orders
  for (const Numbers numbers : {Numbers::bf16, Numbers::s8}) {
    const OperandKind kind{numbers, numbers == Numbers::s8 ? Scales::row : Scales::none};
    const TestOperand a = make_operand(kind, kM, kK, 1), b = make_operand(kind, kN, kK, 2);
    Product p;
    p.m = kM, p.n = kN, p.k = kK, p.a = a.operand, p.b = b.operand;
    const auto before = static_cast<std::ptrdiff_t>(first.made().size()), again = static_cast<std::ptrdiff_t>(third.made().size());
    const std::vector<float> expected = first.product(p);
    std::vector<ProductChoice> choices = first.made();
    choices.erase(choices.begin(), choices.begin() + before);
    ASSERT_EQ(choices.size(), 1u);
    EXPECT_EQ(choices[0].owner, numbers == Numbers::s8 ? ProductChoice::ours : ProductChoice::library);
    second.recall(choices);
    EXPECT_TRUE(second.product(p) == expected);
    EXPECT_TRUE(second.made().empty());
    if (numbers == Numbers::bf16) continue;  // cuBLASLt's behaviour for invalid algorithm bytes is undefined
    choices[0].value.fill(0x7F);
    third.recall(choices);
    EXPECT_TRUE(third.product(p) == expected);  // int8: every algorithm gives the same bits
    EXPECT_EQ(static_cast<std::ptrdiff_t>(third.made().size()), again + 1);
  }
}

}  // namespace
}  // namespace halftone::gemm
