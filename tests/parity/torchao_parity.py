#!/usr/bin/env python3
"""torchao 0.17 against torch.ops.halftone: scales and codes of its fp8, MX and int8 quantisers, outputs of its training recipes.

    HALFTONE_DEVICE=cuda python3 tests/parity/torchao_parity.py     on a GPU
"""
import dataclasses
import os

import _torch_ops

torch, halftone = _torch_ops.load()
try:
    import torchao
except ImportError as error:
    _torch_ops.skip(f"{error} (requirements-test.txt)")
if not torchao.__version__.startswith("0.17."):
    _torch_ops.skip(f"expected torchao 0.17, found {torchao.__version__}")
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import LinearMMConfig
from torchao.prototype.mx_formats.config import MXFP8Dim0CastKernelChoice, MXFP8Dim1CastKernelChoice, ScaleCalculationMode
from torchao.prototype.mx_formats.mx_linear import mx_mm
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.quantized_training import bitnet, int8, int8_mixed_precision
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

device = os.environ.get("HALFTONE_DEVICE", "cpu")
sqnr = _torch_ops.sqnr
failures = []
torch.manual_seed(0)


def bits(t):
    return t.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()])


def assert_equal(what, theirs, ours):
    theirs, ours = bits(theirs).flatten().long(), bits(ours).flatten().long()
    assert theirs.shape == ours.shape, f"{what}: {theirs.shape} and {ours.shape} elements"
    different = (theirs != ours).nonzero().flatten()
    assert len(different) == 0, (f"{what}: {len(different)} of {len(ours)} differ, first at {different[0]}: "
                                 f"torchao {theirs[different[0]]:#x}, halftone {ours[different[0]]:#x}")
    return len(ours)


def spread(rows, cols, dtype):
    """Numbers over many binades, with outliers, a row of zeros and a tiny row."""
    x = torch.randn(rows, cols) * torch.exp2(torch.randn(rows, cols) * 6)
    x[1], x[2] = 0, x[2] * 1e-30
    return x.to(device, dtype)


def check_fp8():
    count = 0
    for dtype in (torch.bfloat16, torch.float32):
        for element, float8 in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
            for pow2 in (False, True):
                for x in (spread(96, 160, dtype), torch.zeros(32, 64, dtype=dtype, device=device), torch.randn(17, 48).to(device, dtype) * 1e-14):
                    for granularity, dim in (("tensor", None), ("row", -1), ("row", 0)):
                        kind = ScalingGranularity.TENSORWISE if dim is None else ScalingGranularity.AXISWISE
                        t = hp_tensor_to_float8_dynamic(x, float8, LinearMMConfig(), scaling_granularity=kind, axiswise_dim=dim,
                                                        round_scales_to_power_of_2=pow2)
                        q = halftone.quantize(x, halftone.Format(element, granularity, "pow2" if pow2 else "fp32"), transposed=dim == 0)
                        what = f"fp8 {element} {granularity}, {dtype}, pow2 {pow2}"
                        count += assert_equal(f"{what}: codes", t._data.t() if dim == 0 else t._data, q.codes)
                        # torchao's `scale` is the multiplier; its reciprocal, used by the GEMM, is ours (numerics.md section 1).
                        assert_equal(f"{what}: scales", t._scale.reciprocal(), q.scales)
    print(f"fp8, tensor and row scales, both axes: {count} codes and their scales identical")


MX_ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2}
MX_MODES = {"floor": ScaleCalculationMode.FLOOR, "rceil": ScaleCalculationMode.RCEIL, "ceil": ScaleCalculationMode.CEIL,
            "even": ScaleCalculationMode.EVEN}


def every_amax():
    """A block of 32 for every positive finite bf16 number as its amax, the others anywhere below."""
    amax = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16)
    x = (amax.float()[:, None] * (torch.rand(len(amax), 32) * 2 - 1) * torch.exp2(-6 * torch.rand(len(amax), 32))).to(torch.bfloat16)
    x[torch.arange(len(amax)), torch.randint(0, 32, (len(amax),))] = amax * torch.where(torch.rand(len(amax)) < 0.5, -1, 1).bfloat16()
    assert torch.equal(x.abs().amax(1), amax)
    return x.to(device)


def check_mx():
    count = 0
    for x in (every_amax(), spread(64, 256, torch.bfloat16), torch.zeros(2, 64, dtype=torch.bfloat16, device=device)):
        for element, dtype in MX_ELEMENTS.items():
            for mode, theirs in MX_MODES.items():
                scales, codes = to_mx(x, dtype, 32, theirs)
                packed = element == "e2m1"
                q = halftone.quantize(x, halftone.Format(element, "1x32", "e8m0", mode, packed=packed))
                scales, width = scales.view(torch.uint8), q.codes.shape[1] // q.scales.shape[1]
                assert_equal(f"MX {element} {mode}: bytes of the scales", scales, q.scales)
                # Byte 0 is 2^-127: torchao encodes with 2^-126 there, to support a compiler without subnormals.
                normal = (q.scales > 0).repeat_interleave(width, 1)
                count += assert_equal(f"MX {element} {mode}: codes", codes.view(torch.uint8)[normal], q.codes[normal])
    print(f"MX e4m3, e5m2, e2m1 in FLOOR, RCEIL, CEIL and EVEN, every finite bf16 number as amax: {count} bytes of codes identical")


def check_int8():
    # torchao on the CPU: on a GPU PyTorch divides by 127 through its rounded reciprocal, one bit off in some rows.
    x = spread(64, 192, torch.float32)
    x[1], x[2] = 1, torch.randn(192, device=device) * 1e-9  # scales above the floor of 1e-12, see check_differences
    count = 0
    for matrix, transposed in ((x, False), (x.t(), True)):
        codes, scale = (t.to(device) for t in int8.quantize_int8_rowwise(matrix.cpu()))
        q = halftone.quantize(x, "int8", transposed=transposed)
        count += assert_equal("int8: codes", codes, q.codes)
        assert_equal("int8: scales", scale, q.scales)
    w = torch.randn(128, 96, device=device)
    stored = int8.Int8QuantizedTrainingLinearWeight.from_float(w.cpu())
    q = halftone.quantize(w, "int8")
    assert_equal("int8 weight: codes", stored.int_data.to(device), q.codes)
    assert_equal("int8 weight: scales", stored.scale.to(device), q.scales)
    print(f"int8 rows of fp32 input: {count} codes and their scales identical")


def check_differences():
    """Where we differ on purpose (docs/spec/numerics.md 2.2, 3.7 and 7); a difference that disappears is reported as well."""
    x = torch.ones(2, 64, dtype=torch.bfloat16, device=device)
    x[0, 3] = float("nan")
    q = halftone.quantize(x, "int8")
    assert halftone.dequantize(q)[0].isnan().all() and not halftone.dequantize(q)[1].isnan().any()
    codes, scale = int8.quantize_int8_rowwise(x)
    print(f"on purpose: a NaN poisons its whole int8 row here; torchao's codes of that row are {sorted(set(codes[0].tolist()))}, its scale {scale[0].item()}")
    zero = torch.zeros(2, 64, device=device)
    assert (halftone.quantize(zero, "int8").scales == 1e-12).all() and (int8.quantize_int8_rowwise(zero)[1] == 0).all()
    print("on purpose: an int8 row of zeros has the scale that encoded it (1e-12) here, 0 in torchao (14.21)")
    x = torch.randn(64, 256).to(device, torch.bfloat16)
    codes, scale = int8.quantize_int8_rowwise(x)
    ours = sqnr(x, halftone.dequantize(halftone.quantize(x, "int8")))
    theirs = sqnr(x, codes.float() * scale.float()[:, None])
    assert scale.dtype == torch.bfloat16 and not torch.equal(scale.float(), halftone.quantize(x, "int8").scales) and abs(ours - theirs) < 0.1
    print(f"on purpose: int8 scales of bf16 input are fp32 here ({ours:.2f} dB), bf16 in torchao ({theirs:.2f} dB)")
    tiny = torch.full((1, 32), 2.0**-126, dtype=torch.bfloat16, device=device)
    _, codes = to_mx(tiny, torch.float8_e4m3fn, 32, ScaleCalculationMode.FLOOR)
    q = halftone.quantize(tiny, "mxfp8_e4m3:floor")
    assert q.scales.item() == 0 and (halftone.dequantize(q) == 2.0**-126).all()
    decoded = codes.float() * 2.0**-127
    assert not (decoded == 2.0**-126).all()
    print(f"on purpose: scale byte 0 means 2^-127 on both sides of ours; torchao encodes 2^-126 as {decoded[0, 0].item() * 2.0**126:.1f} of it")


def gradients(f, x, w, dy):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = f(x, w)
    y.backward(dy)
    return [t.detach() for t in (y, x.grad, w.grad)]


def compare(what, theirs, ours, x, w, dy, at_least=False):
    """SQNR of Y, dX and dW against fp64 within 0.1 dB; at_least: ours may be better, where the difference is on purpose."""
    xd, wd, dyd = x.double(), w.double(), dy.double()
    exact = [xd @ wd.t(), dyd @ wd, dyd.t() @ xd]
    a, b = gradients(theirs, x, w, dy), gradients(ours, x, w, dy)
    line = []
    for name, reference, t, o in zip(("Y", "dX", "dW"), exact, a, b):
        # Above 100 dB only the summation order of an fp32 GEMM is left.
        st, so = (min(sqnr(reference, value), 100.0) for value in (t, o))
        line.append(f"{name} {st:.2f} / {so:.2f}")
        if so < st - 0.1 or (not at_least and so > st + 0.1):
            failures.append(f"{what}: {name}: torchao {st:.2f} dB, halftone {so:.2f} dB")
    print(f"{what}: torchao / halftone dB: {', '.join(line)}")


def float8_linear(recipe, w):
    config = Float8LinearConfig.from_recipe_name(recipe)
    if device == "cpu":
        config = dataclasses.replace(config, emulate=True)
    layer = torch.nn.Sequential(torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device=device, dtype=w.dtype))
    convert_to_float8_training(layer, config=config)

    def f(x, w):
        layer[0].weight = torch.nn.Parameter(w.detach())
        y = layer(x)
        # Passes the gradient of the inner parameter to the outer leaf.
        layer[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(w, "grad", p.grad))
        return y

    return f


def check_recipes():
    m, k, n = 256, 512, 384
    for dtype in (torch.bfloat16,):
        x, w, dy = (torch.randn(*shape).to(device, dtype) for shape in ((m, k), (n, k), (m, n)))
        for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
            # Its row-wise backward multiplies unscaled codes and scales the rounded product (14.16): ours may be better.
            compare(f"fp8_{recipe}", float8_linear(recipe, w), lambda x, w: halftone.linear(x, w, recipe=f"fp8_{recipe}"), x, w, dy,
                    at_least=recipe == "rowwise")
        for mode in ("floor", "rceil"):
            f8 = torch.float8_e4m3fn

            def theirs(x, w):
                return mx_mm.apply(x, w, f8, f8, f8, 32, KernelPreference.EMULATED, MXFP8Dim0CastKernelChoice.TORCH,
                                   MXFP8Dim1CastKernelChoice.TORCH, MX_MODES[mode], False)

            compare(f"mxfp8_e4m3 {mode}", theirs,
                    lambda x, w: halftone.linear(x, w, recipe="mxfp8_e4m3", options={"use_2dblock_w": False, "scale_mode": mode}), x, w, dy)
    x, w, dy = (torch.randn(*shape, device=device) for shape in ((m, k), (n, k), (m, n)))
    for options in ({}, {"output": False}, {"grad_input": False}, {"grad_weight": False}):
        config = int8_mixed_precision.Int8MixedPrecisionTrainingConfig(**options)
        compare(f"int8, fp32 input {options or ''}", lambda x, w: int8_mixed_precision._Int8MixedPrecisionTrainingLinearFunction.apply(x, w, None, config),
                lambda x, w: halftone.linear(x, w, recipe="int8", options=options), x, w, dy)
    half = [t.bfloat16() for t in (x, w, dy)]
    config = int8_mixed_precision.Int8MixedPrecisionTrainingConfig()
    compare("int8, bf16 input (its scales and products are rounded to bf16)",
            lambda x, w: int8_mixed_precision._Int8MixedPrecisionTrainingLinearFunction.apply(x, w, None, config),
            lambda x, w: halftone.linear(x, w, recipe="int8"), *half, at_least=True)

    def weight_only(x, w):
        stored = int8.Int8QuantizedTrainingLinearWeight.from_float(w.detach()).requires_grad_()
        y = torch.nn.functional.linear(x, stored, None)
        stored.register_post_accumulate_grad_hook(lambda p: setattr(w, "grad", p.grad))
        return y

    compare("int8_weight", weight_only, lambda x, w: halftone.linear(x, w, recipe="int8_weight"), x, w, dy)

    def bitnet_linear(x, w):
        weight = bitnet.BitNetTrainingLinearWeight(w.detach()).requires_grad_()
        y = torch.nn.functional.linear(x, weight, None)
        weight.register_post_accumulate_grad_hook(lambda p: setattr(w, "grad", p.grad))
        return y

    compare("bitnet", bitnet_linear, lambda x, w: halftone.linear(x, w, recipe="bitnet"), x, w, dy)
    assert not failures, "\n".join(failures)


_torch_ops.run([check_fp8, check_mx, check_int8, check_differences, check_recipes])
