"""halftone in PyTorch: quantisers, scaled products and linear layers of 8 and 4 bits as torch.ops.halftone.

>>> import torch, halftone
>>> q = halftone.quantize(torch.randn(64, 128), "mxfp8_e4m3")
>>> y = halftone.linear(torch.randn(64, 128), torch.randn(32, 128), recipe="fp8_rowwise")
>>> model = halftone.convert(torch.nn.Sequential(torch.nn.Linear(128, 32)), "mxfp4")

The arithmetic is that of docs/spec/numerics.md, the same as in the halftone program; docs/python.md is the guide.
"""
from halftone._load import library
from halftone.formats import Format, Quantized, dequantize, fake_quantize, quantize, scaled_mm
from halftone.layers import OPERANDS, Linear, convert, linear, recipe_formats, set_draws
from halftone.fused import linear_cross_entropy, rms_norm, swiglu

__all__ = ["Format", "Linear", "OPERANDS", "Quantized", "convert", "dequantize", "fake_quantize", "library", "linear",
           "linear_cross_entropy", "quantize", "recipe_formats", "rms_norm", "scaled_mm", "set_draws", "swiglu"]
__version__ = "0.1.0"
