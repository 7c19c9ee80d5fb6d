#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/config/layer_recipe.h"
#include "halftone/nn/module.h"

namespace halftone::nn {

// A module whose GEMMs a recipe may quantise (nn/recipe.h): Linear, GroupedExperts.
class QuantizableLayer : public Module {
 public:
  virtual std::string_view kind() const = 0;  // the class name that recipes use for it
  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;
  virtual const LinearRecipe& recipe() const = 0;
  // Frees what it prepared for another recipe. After parameters are materialised, only to one that their storage suits (RecipeSchedule).
  // Error naming the option that this kind of layer does not support.
  virtual void set_recipe(const LayerRecipe& recipe) = 0;
  // The parameters that recipe() quantises, each [out, in] or a stack of such.
  virtual std::vector<Parameter*> weights() = 0;
  const Deoscillation& deoscillation() const { return deosc_; }
  // The reason why it has no recipe, for listings of layers; empty if none was requested.
  void leave_unquantised(std::string why) { why_unquantised_ = std::move(why); }
  const std::string& why_unquantised() const { return why_unquantised_; }

 protected:
  Deoscillation deosc_;

 private:
  std::string why_unquantised_;
};

}  // namespace halftone::nn
