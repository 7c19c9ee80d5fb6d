#!/usr/bin/env python3
"""Losses of 200 steps on real text on a GPU: its fused kernels beside the CPU's, which are other code for every op, within 0.1%; and bit for
bit the same whatever the backward pass computes again, where debug.deterministic asks for it."""
import json
import os
import subprocess
import sys
import tempfile

from _program import path_of, source

STEPS = 200
MODEL = {"dim": 256, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 768}
program = path_of("halftone")
failures = 0


def losses(device, *options):
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", "--config", "recipes/llama3_debug.toml", "--training.device", device, "--job.dump_folder", folder,
                   "--model.overrides", json.dumps(MODEL), "--training.steps", str(STEPS), "--training.local_batch_size", "4",
                   "--training.global_batch_size", "8", "--training.seq_len", "256", "--optimizer.lr", "1e-3", "--debug.seed", "3",
                   "--activation_checkpoint.mode", "none", *options]
        run = subprocess.run(command, cwd=source, capture_output=True, text=True)
        if run.returncode != 0:
            if "--device cuda: " in run.stdout + run.stderr:
                print("skipped: gpu_losses:", (run.stdout + run.stderr).strip().splitlines()[-1])
                sys.exit(77)
            sys.exit(f"FAILED {' '.join(command)}\n{run.stdout}{run.stderr}")
        lines = map(json.loads, open(os.path.join(folder, "metrics.jsonl")))
        return [line["loss_metrics/global_avg_loss"] for line in lines if line["kind"] == "train"]


def expect(true, text):
    global failures
    failures += not true
    print("" if true else "FAILED ", text, sep="")


fused = losses("cuda")
reference = losses("cpu")
# Losses of single steps drift apart by rounding; their averages do not.
for first, last in ((0, 20), (STEPS - 50, STEPS)):
    a, b = sum(fused[first:last]), sum(reference[first:last])
    expect(len(fused) == STEPS and abs(a - b) <= 1e-3 * b,
           f"mean loss of steps {first + 1} to {last}: {a / (last - first):.5f} on the GPU, {b / (last - first):.5f} on the CPU")
for scheme in ("none", "fp8_tensorwise"):
    options = ["--quantize.scheme", scheme, "--debug.deterministic"]
    kept = losses("cuda", *options)
    expect(losses("cuda", *options, "--training.disable_cuda_graphs") == kept, f"{scheme}: no CUDA graphs has the same losses, bit for bit")
    for mode in (["full"], ["selective", "--activation_checkpoint.selective_ac_option", "op"]):
        again = losses("cuda", *options, "--activation_checkpoint.mode", *mode)
        expect(again == kept and len(kept) == STEPS, f"{scheme}: {' '.join(mode[::2])} has the losses of none, bit for bit")
sys.exit(1 if failures else 0)
