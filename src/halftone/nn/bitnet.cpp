#include "halftone/nn/bitnet.h"

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/nn/model.h"

namespace halftone::nn {

void add_bitnet_norms(Module& model, const std::vector<Linear*>& linears) {
  constexpr double kEps = 1e-5;
  const std::set<Linear*> chosen(linears.begin(), linears.end());
  auto* whole = dynamic_cast<Model*>(&model);
  const std::vector<NormUse> uses = whole != nullptr ? whole->norm_uses() : std::vector<NormUse>{};
  std::set<Linear*> done;
  for (const NormUse& use : uses) {
    const auto n = std::count_if(use.readers.begin(), use.readers.end(), [&](Linear* l) { return chosen.count(l) > 0; });
    if (n == 0) continue;
    for (Linear* l : use.readers) {
      check(chosen.count(l) > 0,
            "quantize.targets: bitnet gives each layer a norm of its own in place of {}, which {} reads too; target it as well",
            use.norm->fqn(), l->fqn());
      if (use.readers.size() > 1) l->add_norm(use.norm->eps(), use.norm->weight.fqn);
      done.insert(l);
    }
    if (use.readers.size() > 1) use.norm->retire();
  }
  const double eps = uses.empty() ? kEps : uses.front().norm->eps();
  for (Linear* l : linears) {
    if (done.count(l) == 0) l->add_norm(eps, "");
  }
}

}  // namespace halftone::nn
