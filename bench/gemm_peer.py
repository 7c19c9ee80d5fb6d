"""The products of bench/gemm_bench.cpp in stock PyTorch: python bench/gemm_peer.py [m n k]... (OMP_NUM_THREADS threads).

int8 is torch._int_mm alone (int32 output), int8+ with the scaling to bf16 that a training step needs after it; bf16 and
fp32 are torch.mm. GOP/s count 2 m n k; the best call of 250 ms is shown.
"""
import sys
import time

import torch


def clock():
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds(f):
    f(), f()
    best, end, n = 1e9, clock() + 0.25, 0
    while n < 5 or clock() < end:
        t = clock()
        f()
        best = min(best, clock() - t)
        n += 1
    return best


def scaled(a, b, sa, sb):
    return ((torch._int_mm(a, b) * sa) * sb).to(torch.bfloat16)


def shape(m, n, k):
    for kind in ("int8", "int8+", "bf16", "fp32"):
        if kind.startswith("int8"):
            x, w, dy = (torch.randint(-127, 128, s, dtype=torch.int8) for s in ((m, k), (n, k), (m, n)))
            mm = torch._int_mm if kind == "int8" else scaled
        else:
            dtype = torch.bfloat16 if kind == "bf16" else torch.float32
            x, w, dy = (torch.randn(s, dtype=dtype) for s in ((m, k), (n, k), (m, n)))
            mm = torch.mm
        wt, dyt = (w.t().contiguous(), dy.t().contiguous()) if kind.startswith("int8") else (w.t(), dy.t())
        sm, sn, sk = torch.rand(m, 1), torch.rand(n, 1), torch.rand(1, k)
        extra = lambda a, b: (a, b) if kind == "int8+" else ()
        times = (
            seconds(lambda: mm(x, wt, *extra(sm, sn.t()))),
            seconds(lambda: mm(dy, w, *extra(sm, sk))),
            seconds(lambda: mm(dyt, x, *extra(sn, sk))),
        )
        ops = 2e-9 * m * n * k
        text = "  ".join(f"{what} {t * 1e6:7.0f} us {ops / t:6.0f}" for what, t in zip(("fwd", "dgrad", "wgrad"), times))
        print(f"{m:>5} {n:>5} {k:>5} {kind:>5}  {text} GOP/s")


shapes = [int(v) for v in sys.argv[1:]] or [4096, 512, 256, 4096, 256, 256, 4096, 1408, 256, 4096, 256, 704, 4096, 4096, 256, 2048, 1024, 4096]
print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
for i in range(0, len(shapes), 3):
    shape(*shapes[i : i + 3])
