#!/usr/bin/env python3
"""The losses of 50 steps with every recipe, bit for bit those of tests/golden/losses.json, of which this script is also the maker:
`HALFTONE_BIN=build/release/bin HALFTONE_SOURCE_DIR=. .venv/bin/python tests/parity/golden_losses.py --write` takes what this build gives.

Our kernels are held to x86-64-v3, and ATen, oneDNN and MKL to what they have there. The number of threads (OMP_NUM_THREADS, here 1) changes
no bit."""
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

from _program import path_of, source

STEPS = 50
MODEL = {"dim": 128, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 192}
HELD = {"HALFTONE_ISA": "v3", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
program, golden = path_of("halftone"), os.path.join(source, "tests/golden/losses.json")


def cases():
    table = re.search(r"\nRecipes\n  recipe .*\n((?:  .*\n)*)", subprocess.run([program, "formats"], capture_output=True, text=True).stdout)
    result = {recipe: ["--quantize.scheme", recipe] for recipe in re.findall(r"(?m)^  (\w+)", table[1])}
    float32 = ["--training.mixed_precision_param", "float32"]
    recompute = ["--activation_checkpoint.mode", "full"]
    stochastic = ["--quantize.stochastic_rounding", "true"]
    tiles = ["--quantize.use_2dblock_w", "true"]
    result |= {"none, float32": float32, "int8, recomputed": [*result["int8"], *stochastic, *recompute],
               "nvint4, 2-D weights": [*result["nvint4"], *tiles], "mxfp4, 2-D weights": [*result["mxfp4"], *tiles], "mxfp4, 2-D weights, recomputed": [*result["mxfp4"], *tiles, *recompute]}
    for recipe in ("nvfp4", "amdfp4"):
        for name, choice in (("", "none"), (", four over six", "four_over_six")):
            result[f"{recipe}, 2-D weights{name}"] = [*result[recipe], *tiles, "--quantize.scale_choice", choice]
    return result


def losses(options):
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", "--config", "recipes/llama3_debug.toml", "--training.device", "cpu", "--job.dump_folder", folder,
                   "--model.overrides", json.dumps(MODEL), "--training.steps", str(STEPS), "--training.local_batch_size", "1",
                   "--training.global_batch_size", "2", "--training.seq_len", "72", "--training.max_norm", "1", "--optimizer.lr", "4e-3",
                   "--activation_checkpoint.mode", "none", "--debug.seed", "7", "--debug.deterministic", *options]
        run = subprocess.run(command, cwd=source, env=os.environ | HELD, capture_output=True, text=True)
        if run.returncode != 0:
            return run.stdout + run.stderr
        lines = map(json.loads, open(os.path.join(folder, "metrics.jsonl")))
        return [line["loss_metrics/global_avg_loss"] for line in lines if line["kind"] == "train"]


with concurrent.futures.ThreadPoolExecutor(2) as pool:
    found = dict(zip(cases(), pool.map(losses, cases().values())))
failed = [f"{name}: no {STEPS} losses: {text}" for name, text in found.items() if len(text) != STEPS]
if "--write" in sys.argv and not failed:
    with open(golden, "w") as file:
        file.write("{\n" + ",\n".join(f'  "{name}": {json.dumps(values)}' for name, values in found.items()) + "\n}\n")
expected = json.load(open(golden))
failed += [f"{name}: not in one of {golden} and `halftone formats`" for name in expected.keys() ^ found.keys()]
for name in expected.keys() & found.keys():
    differing = [step for step in range(min(STEPS, len(found[name]))) if found[name][step] != expected[name][step]]
    if differing and len(found[name]) == STEPS:
        step = differing[0]
        failed.append(f"{name}: step {step + 1}: loss {found[name][step]!r}, expected {expected[name][step]!r} ({len(differing)} steps differ)")
print("\n".join(f"FAILED {line}" for line in failed) or f"{len(found)} recipes, {STEPS} losses each")
sys.exit(1 if failed else 0)
