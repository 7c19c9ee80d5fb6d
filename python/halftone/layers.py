"""Linear layers whose three products run in a recipe."""
import re

import torch

_ops = torch.ops.halftone

# The six operands of a linear layer, in the order of recipe_formats.
OPERANDS = ("x_forward", "w_forward", "dy_dgrad", "w_dgrad", "dy_wgrad", "x_wgrad")


def _options(options):
    """{"use_hadamard": False, "fast_accum": ["forward"]} as the op's string."""
    if isinstance(options, str):
        return options
    words = {True: "true", False: "false"}
    text = {key: "+".join(value) if isinstance(value, (list, tuple)) else words.get(value, value) for key, value in (options or {}).items()}
    return ",".join(f"{key}={value}" for key, value in text.items())


def recipe_formats(recipe, options=""):
    """The format of each of the six operands under a recipe, for halftone.quantize ("hp": not quantised)."""
    return dict(zip(OPERANDS, _ops.recipe_formats(recipe, _options(options))))


# Seed and step of all random draws. The step is a tensor, which torch.compile reads in every call; it is replaced rather than modified,
# so that a pending backward pass keeps its own. _host_step: the number it was made from, None if the tensor was given.
_seed = 0
_step, _host_step = torch.tensor(0, device="cpu"), 0


def set_draws(*, seed=None, step=None):
    """Sets the seed and the optimizer step of the draws that follow (stochastic rounding, rotations); call it with each new step.

    An int64 tensor of no dimensions is kept as it is: on the device, replays of a CUDA graph read the step from it.
    """
    global _seed, _step, _host_step
    _seed = _seed if seed is None else seed
    if step is not None:
        _step, _host_step = _number(step), None if isinstance(step, torch.Tensor) else step


def _number(step):
    return step if isinstance(step, torch.Tensor) else torch.tensor(step, device="cpu")  # independent of the default device


def _draws(seed, step):
    if step is None:
        # A FakeTensorMode rejects tensors created before it. Checks is_compiling first: torch.compile would bake _host_step into its
        # graph as a constant.
        step = _step if torch.compiler.is_compiling() or _host_step is None else _host_step
    return {"seed": _seed if seed is None else seed, "step": _number(step)}


def linear(x, weight, bias=None, recipe="none", options="", *, name="weight", seed=None, step=None, first_row=0):
    """x[..., K] . weight[N, K]^T (+ bias[N]), forward and backward in the recipe (docs/recipes.md); differentiable in all three.

    Stochastic rounding and rotations are keyed by `name`, `seed` and `step` (an int, or a tensor that torch.compile does not bake
    into its graph); None: those of set_draws.
    """
    return _ops.linear(x, weight, bias, recipe, _options(options), name=name, first_row=first_row, **_draws(seed, step))


class Linear(torch.nn.Linear):
    """torch.nn.Linear in a recipe; same parameters and state dict. `name` keys its random draws: give each layer its own."""

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None, *, recipe, options="", name="weight"):
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.recipe, self.options, self.name = recipe, _options(options), name
        # Fails now rather than in the first step.
        _ops.linear(torch.empty(1, in_features, device="meta"), torch.empty(out_features, in_features, device="meta"), None, recipe,
                    self.options, name=name)

    def forward(self, x):
        return linear(x, self.weight, self.bias, self.recipe, self.options, name=self.name)

    def extra_repr(self):
        return f"{super().extra_repr()}, recipe={self.recipe}" + (f", options={self.options}" if self.options else "")


def _leave_fast_paths(model):
    """PyTorch's encoder layers compute evaluation by one op that reads the weights of their linear layers, past any recipe; the
    attributes by which they choose it are set to what leaves it to the layers."""
    def is_converted(module):
        return isinstance(module, torch.nn.TransformerEncoderLayer) and any(isinstance(child, Linear) for child in module.children())

    for module in model.modules():
        if is_converted(module):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, torch.nn.TransformerEncoder) and any(map(is_converted, module.layers)):
            module.use_nested_tensor = False


def _reason_to_keep(name, module, recipe, ignore, multiple):
    """Why convert leaves a torch.nn.Linear that a target matches as it is; None where it does not."""
    if type(module) is not torch.nn.Linear:  # it may have another forward, or use the weight directly
        return f"a subclass of torch.nn.Linear, {type(module).__name__}"
    if name.split(".")[-1] in ignore:
        return "in ignore"
    if module.in_features % multiple or module.out_features % multiple:
        return f"{module.in_features} x {module.out_features}: {recipe} needs multiples of {multiple}"
    return None


def convert(model, recipe, options="", *, targets=(".*",), ignore=("output", "lm_head")):
    """Replaces the torch.nn.Linear modules whose name a regular expression of `targets` ("re:" before it or not) matches from its start,
    parameters kept. Left as they are: those whose name's last component is in `ignore`, those of sizes that the recipe cannot take,
    subclasses of torch.nn.Linear, and what an earlier call converted. Returns the model, with model.halftone_converted, name ->
    recipe, and model.halftone_kept, name -> reason, of all calls so far."""
    if isinstance(targets, str) or isinstance(ignore, str):
        raise ValueError(f"halftone.convert: expected lists of names for targets and ignore, found {targets!r} and {ignore!r}")
    recipe_formats(recipe, _options(options))  # before any module changes
    patterns = [re.compile(target.removeprefix("re:")) for target in targets]
    multiple = 1 if recipe == "none" else 32 if recipe.startswith("mx") or recipe.startswith("int4") else 16
    converted, kept = {}, {}
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or type(module) is Linear or not any(p.match(name) for p in patterns):
            continue
        if reason := _reason_to_keep(name, module, recipe, ignore, multiple):
            kept[name] = reason
            continue
        module.__class__ = Linear  # keeps parameters, hooks and references
        module.recipe, module.options, module.name = recipe, _options(options), f"{name}.weight" if name else "weight"
        converted[name] = recipe
    _leave_fast_paths(model)
    if not converted:
        raise ValueError(f"halftone.convert: expected a torch.nn.Linear that {list(targets)} matches and {recipe} supports, found none; "
                         f"kept: {kept}")
    model.halftone_converted = getattr(model, "halftone_converted", {}) | converted
    earlier = getattr(model, "halftone_kept", {}) | kept
    model.halftone_kept = {name: reason for name, reason in earlier.items() if name not in model.halftone_converted}
    return model
