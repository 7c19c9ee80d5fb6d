"""The experts of a layer as torchtitan runs them, on the shapes of `halftone bench experts`: tokens sorted by expert and padded to 16, torch's grouped
products (bf16), or torchao's fp8 row-wise ones, SwiGLU, and back with the gates; forward and backward, compiled around the products where that runs."""
import sys

import torch
import torch.nn.functional as F

SHAPES = {"qwen3-30b-a3b": (128, 8, 2048, 768), "deepseek-16b": (64, 6, 2048, 1408)}
TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
torch.manual_seed(1)


def bf16(x, w, offs):
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)


def fp8(x, w, offs):
    from torchao.prototype.moe_training import _to_fp8_rowwise_then_scaled_grouped_mm as product
    return product(x, w.transpose(-2, -1), offs=offs, pad_token_groups_for_grouped_mm=False)


def experts(x, w1, w2, w3, ids, gates, E, k, product):
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(E, dtype=torch.int64, device=x.device).scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + 15) // 16 * 16
    offs = padded.cumsum(0).to(torch.int32)
    first = offs - padded
    rank = torch.arange(flat.numel(), device=x.device) - (counts.cumsum(0) - counts)[flat[order]]
    slot = first[flat[order]] + rank
    rows = x.new_zeros(flat.numel() + 16 * E, x.shape[1]).index_copy(0, slot, x[order // k])
    h = F.silu(product(rows, w1, offs)) * product(rows, w3, offs)
    y = product(h, w2, offs)[slot]
    y = (y.float() * gates.reshape(-1)[order].unsqueeze(1)).to(x.dtype)
    return torch.zeros_like(x).index_add(0, order // k, y)


def measure(f, n=10):
    times = []
    for i in range(n + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[n // 2]


for name, (E, k, D, H) in SHAPES.items():
    make = lambda *s: (torch.randn(*s, device="cuda", dtype=torch.bfloat16) * 0.02).requires_grad_()
    w1, w2, w3 = make(E, H, D), make(E, D, H), make(E, H, D)
    x = torch.randn(TOKENS, D, device="cuda", dtype=torch.bfloat16).requires_grad_()
    dy = torch.randn_like(x)
    ids = torch.rand(TOKENS, E, device="cuda").topk(k, 1).indices
    gates = torch.rand(TOKENS, k, device="cuda").requires_grad_()
    for kind, product in (("bf16", bf16), ("fp8_rowwise", fp8)):
        for compiled in (False, True):
            f = torch.compile(experts) if compiled else experts

            def step():
                f(x, w1, w2, w3, ids, gates, E, k, product).backward(dy)
                for t in (x, w1, w2, w3, gates):
                    t.grad = None
            label = f"{name:<14} {kind:<12} {'compiled' if compiled else 'eager':<9}"
            try:
                ms = measure(step)
                print(f"{label} {ms:8.3f} ms {18 * TOKENS * k * D * H / ms * 1e-9:6.0f} TFLOP/s", flush=True)
            except Exception as problem:
                print(f"{label} {str(problem).splitlines()[0][:150]}", flush=True)
