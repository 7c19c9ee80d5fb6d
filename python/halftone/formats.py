"""Quantised matrices: their formats, and the ops that make and read them."""
import dataclasses
import typing

import torch

_ops = torch.ops.halftone


# Strings are constants to torch.compile: its ops cannot return them.
@torch.compiler.assume_constant_result
def _canonical(format):
    return _ops.canonical_format(format)


@dataclasses.dataclass(frozen=True)
class Format:
    """One operand's format, as fields; str() gives the string that the ops take (docs/python.md lists the words).

    element      e4m3, e5m2, e3m2, e2m3, e2m1, int8, int4, uint4, ternary, or a scheme: mxfp8_e4m3, mxfp4, nvfp4, ...
    granularity  which elements share a scale: tensor, row, 1x32 (32 along the contraction), 32x32, ...; None: the element's own
    scale        fp32, pow2 (fp32 rounded so that its inverse is a power of two), e8m0, e4m3_scale, ue5m3, bf16
    mode         floor, ceil, rceil, even, adaptive, uos: how an e8m0 scale follows from the block's largest magnitude
    two_level    none, tensorwise (one fp32 factor above the block scales), blockwise (macro blocks of 128)
    chain        alto, torchao: order of evaluation of NVFP4's scales
    clip         none, static, dynamic (mxfp4)
    hadamard     0, 16, 32: rotation along tokens of a transposed copy
    stochastic   stochastic rounding
    floor        smallest scale of int8 rows, if not 1e-12
    packed       4-bit codes two a byte
    """
    element: str
    granularity: str | None = None
    scale: str | None = None
    mode: str | None = None
    two_level: str | None = None
    chain: str | None = None
    clip: str | None = None
    hadamard: int = 0
    stochastic: bool = False
    floor: float | None = None
    packed: bool = False

    def __str__(self):
        words = [self.element] + [word for word in (self.granularity, self.scale, self.mode) if word]
        words += [f"{key}={getattr(self, key)}" for key in ("two_level", "chain", "clip", "floor") if getattr(self, key) is not None]
        words += [f"hadamard={self.hadamard}"] if self.hadamard else []
        return ":".join(words + ["sr"] * self.stochastic + ["packed"] * self.packed)

    @property
    def canonical(self):
        """The format with everything said that the words leave open; an error names what cannot be."""
        return _canonical(str(self))


class Quantized(typing.NamedTuple):
    """A matrix [R, C] in codes. Tensors that the format has not are empty. Layouts: docs/spec/numerics.md sections 2.3 and 2.4.

    codes   [R, C] one a byte: uint8 bits of floats and uint4, int8 for integers; packed [R, C / 2]
    scales  fp32, or uint8 for e8m0, e4m3 and ue5m3: [1], [R], [R, ceil(C / B)] or [ceil(R / B), ceil(C / B)]
    outer   fp32 [1]: the factor above the block scales (nvfp4, amdfp4)
    macro   uint8: mantissa bytes of the factors of 128-blocks
    zeros   fp32: zero points of uint4 blocks
    """
    codes: torch.Tensor
    scales: torch.Tensor
    outer: torch.Tensor
    macro: torch.Tensor
    zeros: torch.Tensor
    format: str

    @property
    def tensors(self):
        return list(self[:5]) if self.format != "hp" else [self.codes]

    def typed(self):
        """Codes and scales as PyTorch's own 8-bit dtypes (views), where there is one."""
        element, scale = self.format.split(":")[0], self.format.split(":")[2]
        code_types = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
        scale_types = {"e8m0": torch.float8_e8m0fnu, "e4m3_scale": torch.float8_e4m3fn}
        return self.codes.view(code_types.get(element, self.codes.dtype)), self.scales.view(scale_types.get(scale, self.scales.dtype))

    @staticmethod
    def plain(x):
        """An unquantised matrix as an operand of scaled_mm."""
        empty = x.new_empty(0)
        return Quantized(x, empty, empty, empty, empty, "hp")


def quantize(x, format, *, transposed=False, stream="x", seed=0, step=0, first_row=0):
    """Quantises x[rows, cols] (bfloat16 or float32) along its rows, or its transpose [cols, rows] with `transposed`.

    Stochastic rounding draws element (r, c) from Philox keyed by seed and `stream` (name#role), at counter (first_row + r) * cols + c
    and `step`; the signs of a rotation belong to the name (docs/spec/numerics.md sections 4 and 5).
    """
    made = _ops.quantize(x, str(format), transposed=transposed, stream=stream, seed=seed, step=step, first_row=first_row)
    return Quantized(*made, _canonical(str(format)))


def dequantize(q, dtype=torch.float32):
    """The numbers that the codes stand for, every factor applied in float32; a rotation is not undone."""
    return _ops.dequantize(q.tensors, q.format, dtype=dtype)


def fake_quantize(x, format, *, transposed=False, stream="x", seed=0, step=0, first_row=0):
    """x[..., C] rounded to the format and back, in x's shape and dtype; the gradient passes straight through."""
    return _ops.fake_quantize(x, str(format), transposed=transposed, stream=stream, seed=seed, step=step, first_row=first_row)


def scaled_mm(a, b, *, bias=None, out_dtype=torch.bfloat16, fast_accum=False, emulate=False):
    """a[M, K] . b[N, K]^T (+ bias[N]) of two Quantized operands, block scales applied exactly, one rounding to out_dtype."""
    return _ops.scaled_mm(a.tensors, a.format, b.tensors, b.format, bias=bias, out_dtype=out_dtype, fast_accum=fast_accum, emulate=emulate)
