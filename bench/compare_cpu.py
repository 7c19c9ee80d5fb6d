#!/usr/bin/env python3
"""Our training step beside stock PyTorch's in one call: tokens/s, peak memory, seconds to the first step, and the ratios.

  python bench/compare_cpu.py --python PYTHON_WITH_TORCH [--halftone build/release/bin/halftone] [--peer-recipes bf16] [--avx2]

PYTHON_WITH_TORCH must be able to import torch 2.11 and compile with it (bench/peers/torch_llama.py says what the peer does).
--avx2 holds both to AVX2, what most laptops have. Both use the same shape (recipes/bench_cpu.toml), random tokens, clipping and AdamW on fp32 masters.
"""
import argparse
import json
import os
import re
import subprocess

AVX2 = {"HALFTONE_ISA": "v3", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
SHAPE = "--device cpu --dim 256 --layers 6 --heads 8 --kv 4 --ffn 704 --vocab 4096 --seq 512 --batch 8".split()


def peer(python, recipe):
    out = subprocess.run([python, "bench/peers/torch_llama.py", *SHAPE, "--recipe", recipe], capture_output=True, text=True, check=True).stdout
    line = next(text for text in out.splitlines() if text.startswith("PEER"))
    speed, memory, first = (float(re.search(p, line).group(1)) for p in (r"(\d+) tok/s", r"peak ([\d.]+) GiB", r"first step after ([\d.]+) s"))
    print(f"peer {recipe:5} {speed:8.0f} tokens/s  {memory:.2f} GiB  first step {first:.1f} s", flush=True)
    return speed, memory


def ours(program, name, options):
    out = subprocess.run([program, "bench", "train", "--config", "recipes/bench_cpu.toml", *options], capture_output=True, text=True, check=True).stdout
    return name, json.loads(out.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--halftone", default="build/release/bin/halftone")
    parser.add_argument("--peer-recipes", default="bf16", help="comma list of bf16, fp32; ratios are to the first")
    parser.add_argument("--avx2", action="store_true", help="limit both programs to AVX2")
    args = parser.parse_args()
    if args.avx2:
        os.environ.update(AVX2)
    speed, memory = [peer(args.python, r) for r in args.peer_recipes.split(",")][0]
    runs = [("bf16", []), ("int8", ["--quantize.scheme", "int8"]), ("fp32", ["--training.mixed_precision_param", "float32"])]
    for name, r in (ours(args.halftone, *run) for run in runs):
        print(f"ours {name:5} {r['tokens_per_second']:8.0f} tokens/s  {r['peak_memory_gib']:.2f} GiB  first step {r['first_step_seconds']:.1f} s"
              f"  = {r['tokens_per_second'] / speed:.2f}x speed, {r['peak_memory_gib'] / memory:.2f}x memory", flush=True)


if __name__ == "__main__":
    main()
