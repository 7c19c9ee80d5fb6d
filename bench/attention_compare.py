"""Attention of PyTorch and ours in turns, so that both see the same machine: python attention_compare.py BENCH_PROGRAM [rounds]

BENCH_PROGRAM is the built bench_attention_bench; python is one whose torch works. Prints the least and median milliseconds
of forward and backward for the shape of bench/peers (B 8, S 512, H 8, Hkv 4, head_dim 32), and the ratios.
"""
import re
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F


def torch_times(dtype, seconds=1.0):
    b, s, h, kv, hd = 8, 512, 8, 4, 32
    q, k, v = (torch.randn(b, s, n, hd, dtype=dtype).transpose(1, 2).requires_grad_() for n in (h, kv, kv))
    d_out = torch.randn(b, h, s, hd, dtype=dtype)
    forward, backward = [], []
    start = time.perf_counter()
    while len(forward) < 6 or time.perf_counter() - start < seconds:
        t0 = time.perf_counter()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        t1 = time.perf_counter()
        out.backward(d_out)
        t2 = time.perf_counter()
        q.grad = k.grad = v.grad = None
        forward.append((t1 - t0) * 1e3)
        backward.append((t2 - t1) * 1e3)
    return forward[1:], backward[1:]


def our_times(program, name):
    line = subprocess.run([program, name], capture_output=True, text=True, check=True).stdout.splitlines()[1]
    return [float(x) for x in re.findall(r"(\d+\.\d+) ms \(median +(\d+\.\d+)\)", line) for x in x]


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for name, dtype in (("bench_bf16", torch.bfloat16), ("bench_f32", torch.float32)):
        theirs, ours = ([], []), []
        for _ in range(rounds):
            for all_times, times in zip(theirs, torch_times(dtype)):
                all_times.extend(times)
            ours.append(our_times(program, name))
        f, b = min(theirs[0]), min(theirs[1])
        of, ob = min(x[0] for x in ours), min(x[2] for x in ours)
        print(f"{name}: torch forward {f:.2f} ms (median {statistics.median(theirs[0]):.2f}) backward {b:.2f} ms (median {statistics.median(theirs[1]):.2f}); "
              f"ours forward {of:.2f} ms (median {statistics.median(x[1] for x in ours):.2f}) backward {ob:.2f} ms (median {statistics.median(x[3] for x in ours):.2f}); "
              f"ratio {f / of:.1f}x forward, {b / ob:.1f}x backward, {(f + b) / (of + ob):.1f}x together")


main()
