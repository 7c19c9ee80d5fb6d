"""Ops around a linear layer, differentiable."""
import torch

from halftone import layers

_ops = torch.ops.halftone


def rms_norm(x, weight, eps=1e-5):
    """x / rms(x) * weight over the last dimension, statistics in float32, in weight's dtype."""
    return _ops.rms_norm(x, weight, eps)


def swiglu(gu):
    """silu(g) * u for gu[..., 2F] = g | u; keeps gu alone for backward."""
    return _ops.swiglu(gu)


def linear_cross_entropy(x, weight, labels, recipe="none", options="", *, name="output.weight", seed=None, step=None, first_row=0):
    """Mean cross-entropy of x[T, K] . weight[V, K]^T against labels[T] (int64, -100 ignored) without the logits in memory."""
    return _ops.linear_cross_entropy(x, weight, labels, recipe, layers._options(options), name=name, first_row=first_row,
                                     **layers._draws(seed, step))
