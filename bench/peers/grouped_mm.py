"""torch's grouped products on the shapes of bench/grouped_bench.cpp: torch._grouped_mm (bf16) and torch._scaled_grouped_mm (fp8, row-wise scales, fast accumulation).
Groups are padded to 16 rows, which fp8 asks for; TFLOP/s count the routed rows. wgrad to bf16: torch has no fp32 output, and does not accumulate."""
import torch

torch.manual_seed(1)
E, D, F, T = 128, 2048, 768, 32768 * 8
share = torch.exp(0.2 * torch.randn(E))
counts = torch.bincount(torch.multinomial(share, T, replacement=True), minlength=E)
offs = ((counts + 15) // 16 * 16).cumsum(0).to(torch.int32).cuda()
R = int(offs[-1])
fp8 = torch.float8_e4m3fn


def timed(f, n=10):
    for _ in range(3):
        f()
    best = 1e9
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        torch.cuda.synchronize()
        best = min(best, a.elapsed_time(b))
    return best


def show(kind, name, k, n, f):
    try:
        ms = timed(f)
        print(f"{kind:<20} {name:<26} {ms:>8.3f} ms {2 * T * k * n / ms * 1e-9:>7.0f} TFLOP/s")
    except Exception as problem:
        print(f"{kind:<20} {name:<26} {str(problem).splitlines()[0]}")


for name, k, n in (("forward w1|w3", D, 2 * F), ("dgrad   w1|w3", 2 * F, D), ("forward w2", F, D)):
    x, w = torch.randn(R, k, device="cuda", dtype=torch.bfloat16), torch.randn(E, n, k, device="cuda", dtype=torch.bfloat16)
    stored = w if not name.startswith("dgrad") else w.transpose(1, 2).contiguous().transpose(1, 2)
    show("bf16", name, k, n, lambda: torch._grouped_mm(x, stored.transpose(1, 2), offs=offs))
    x8, w8 = x.to(fp8), w.to(fp8)
    sx, sw = torch.ones(R, device="cuda"), torch.ones(E, n, device="cuda")
    for fast in (True, False):
        show("fp8 row-wise" + ", fast" * fast, name, k, n,
             lambda: torch._scaled_grouped_mm(x8, w8.transpose(1, 2), sx, sw, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast))
    del x, w, x8, w8, stored
n, k = 2 * F, D
dy, x = torch.randn(R, n, device="cuda", dtype=torch.bfloat16), torch.randn(R, k, device="cuda", dtype=torch.bfloat16)
show("bf16", "wgrad   w1|w3", k, n, lambda: torch._grouped_mm(dy.t(), x, offs=offs))
dy8, x8 = dy.t().contiguous().to(fp8), x.t().contiguous().to(fp8)
sy, sx = torch.ones(E * n, device="cuda"), torch.ones(E * k, device="cuda")
for fast in (True, False):
    show("fp8 row-wise" + ", fast" * fast, "wgrad   w1|w3", k, n,
         lambda: torch._scaled_grouped_mm(dy8, x8.t(), sy, sx, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=fast))
