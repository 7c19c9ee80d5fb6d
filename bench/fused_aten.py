"""Times PyTorch's operators on the shapes of fused_bench.cpp (bf16, eager; AdamW is its fused CPU kernel).

    python bench/fused_aten.py [threads]
"""
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
T, D, FF, V, N = 4096, 256, 704, 4096, 6_500_000


def measure(name, f):
    best, spent, runs = 1e9, 0.0, 0
    while runs < 5 or spent < 0.4:
        start = time.perf_counter()
        f()
        seconds = time.perf_counter() - start
        if runs > 0:
            best = min(best, seconds)
        spent, runs = spent + seconds, runs + 1
    print(f"{name:<42} {best * 1e3:>9.3f} ms")


def with_backward(name, f, inputs, grad):
    with torch.no_grad():
        measure(name, f)
    both = lambda: torch.autograd.grad(f(), inputs, grad)
    measure(name + " forward + backward", both)


b16 = torch.bfloat16
x = torch.randn(T, D, dtype=b16, requires_grad=True)
w = torch.randn(D, dtype=b16, requires_grad=True)
with_backward("rms_norm", lambda: F.rms_norm(x, (D,), w, 1e-5), [x, w], torch.randn(T, D, dtype=b16))

q = torch.randn(T // 512, 512, 12, 32, dtype=b16)
angle = torch.outer(torch.arange(512.0), 500000 ** (-torch.arange(0, 32, 2) / 32))
rotation = torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
rope = lambda: torch.view_as_real(torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2)) * rotation).flatten(3).to(b16)
measure("rope q and k (complex, as torchtitan)", rope)

g = torch.randn(T, FF, dtype=b16, requires_grad=True)
u = torch.randn(T, FF, dtype=b16, requires_grad=True)
with_backward("silu(g) * u", lambda: F.silu(g) * u, [g, u], torch.randn(T, FF, dtype=b16))

table = torch.randn(V, D, requires_grad=True)
ids = torch.randint(0, V, (T,))
with_backward("embedding", lambda: F.embedding(ids, table).to(b16), [table], torch.randn(T, D, dtype=b16))

for chunk in (256, 512):
    z = torch.randn(chunk, V, dtype=b16, requires_grad=True)
    labels = torch.randint(0, V, (chunk,))

    def chunks():
        for _ in range(T // chunk):
            torch.autograd.grad(F.cross_entropy(z.float(), labels, reduction="sum"), z)

    measure(f"cross_entropy fwd + bwd, chunks of {chunk}", chunks)

p = torch.nn.Parameter(torch.randn(N))
p.grad = torch.randn(N)
adamw = torch.optim.AdamW([p], lr=1e-3, weight_decay=0.1, fused=True)
measure("adamw (fused)", adamw.step)
measure("gradient norm", lambda: torch.linalg.vector_norm(p.grad))
measure("cast to bf16", lambda: p.grad.to(b16))
measure("trunc_normal_", lambda: torch.nn.init.trunc_normal_(p.data, 0, 0.02))
