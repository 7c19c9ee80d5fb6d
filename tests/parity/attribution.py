#!/usr/bin/env python3
"""bench/convergence.py --attribute: the program takes the options of every row; runs that a time limit stops go on and end where an
undisturbed run ends; runs that are there are not repeated; the table compares with bfloat16's run of the same seed and schedule."""
import json
import os
import subprocess
import sys
import tempfile

from _program import conclude, expect, path_of, source

sys.path.insert(0, os.path.join(source, "bench"))
import convergence

program = path_of("halftone")
CONFIG = """
[model]
name = "llama3"
flavor = "debugmodel"
train_tokenizer = 300
overrides = {dim = 64, n_layers = 4, n_heads = 2, n_kv_heads = 2, ffn_dim = 128, vocab_size = 320, max_seq_len = 64, tied = false}
[optimizer]
lr = 2e-3
[lr_scheduler]
warmup_steps = 30
[training]
local_batch_size = 8
seq_len = 64
steps = 300
[training.dataloader]
shuffle = true
packing = "concat"
[validation]
enable = true
holdout = 0.1
local_batch_size = 8
seq_len = 64
freq = 300
steps = -1
[debug]
seed = 42
"""


def attribute(out, config, only, *options):
    run = subprocess.run([sys.executable, os.path.join(source, "bench/convergence.py"), out, "--config", config, "--program", program,
                          "--device", "cpu", "--threads", "1", "--attribute", "--tokens-per-parameter", "0.2", "--only", only,
                          "--text", os.path.join(source, "bench"), *options], capture_output=True, text=True)
    if run.returncode != 0:
        print(run.stdout, run.stderr, sep="\n")
        expect(False, f"status {run.returncode} of {out}")
    path = os.path.join(out, "convergence.json")
    return run.stdout, json.load(open(path)) if os.path.exists(path) else {}


with tempfile.TemporaryDirectory() as work:
    config = os.path.join(work, "tiny.toml")
    with open(config, "w") as file:
        file.write(CONFIG)

    read = subprocess.run([program, "config", "--config", config, "--json"], capture_output=True, text=True, check=True)
    rows = convergence.attribution(json.loads(read.stdout), 0.5)
    for words in {row.recipe: [*row.recipe.split(), *row.train.split()] for row in rows}.values():
        run = subprocess.run([program, "config", "--config", config, *words], capture_output=True, text=True)
        expect(run.returncode == 0, f"{words}: {run.stderr}")
    names = [row.name for row in rows]
    expect(len(set(names)) == len(names) and {row.group for row in rows} == set(convergence.GROUPS), f"groups and names of {names}")
    shortened = [row.recipe for row in rows if row.group in ("layer", "seed") and row.scheme != "none"]
    expect(shortened and all("deosc_step=1000 " in recipe for recipe in shortened), f"rows that differ in de-oscillation: {shortened}")
    print(f"{len(rows)} rows of --attribute are legal")

    only = "^(bf16|mxfp4|mxfp4: W in bf16)$"
    whole, undisturbed = attribute(os.path.join(work, "a"), config, only, "--slots", "2")
    expect(sorted(undisturbed) == ["bf16", "mxfp4", "mxfp4: W in bf16"], f"runs {list(undisturbed)}")
    steps = {r["steps"] for r in undisturbed.values()}
    last = {r["curve"][-1][0] for r in undisturbed.values()}
    expect(steps == last and len(steps) == 1 and 10 < min(steps) < 300, f"steps {steps}, the last at {last}")
    losses = {n: r["loss"] for n, r in undisturbed.items()}
    gap, rest = losses["mxfp4"] - losses["bf16"], losses["mxfp4: W in bf16"] - losses["bf16"]
    expect(len(set(losses.values())) == 3, f"losses {losses}")
    for line in (f"| mxfp4 | {losses['mxfp4']:.4f} | {gap:+.4f} | {100 * gap / losses['bf16']:+.2f}% |",
                 f"| mxfp4: W in bf16 | {losses['mxfp4: W in bf16']:.4f} | {rest:+.4f} | {100 * rest / losses['bf16']:+.2f}% "
                 f"| {100 * (gap - rest) / gap:.0f}% |"):
        expect(line in whole, f"no row {line} in\n{whole}")

    again, same = attribute(os.path.join(work, "a"), config, only)
    expect(same == undisturbed and "after" not in again, f"runs were repeated:\n{again}")

    # A time limit stops a run; further calls end it where the undisturbed one ended. A machine may be faster than before: then a shorter limit.
    stops, limit = 0, undisturbed["mxfp4"]["seconds"]
    while stops == 0 and limit > 0.3:
        limit /= 1.5
        out, found = tempfile.mkdtemp(dir=work), {}
        for i in range(20):
            said, found = attribute(out, config, "^mxfp4$", "--seconds", f"{limit * 1.3**i:.1f}")
            stops += "the time is over" in said
            if found:
                break
    expect(stops > 0, f"no limit down to {limit:.1f} s stopped the run")
    expect(found.get("mxfp4", {}).get("loss") == losses["mxfp4"], f"after {stops} stops {found.get('mxfp4')}, expected {losses['mxfp4']}")
    expect(found.get("mxfp4", {}).get("curve") == undisturbed["mxfp4"]["curve"], "the curve of the stopped run")
    print(f"stopped {stops} times, then ended with the same loss")

    refused = subprocess.run([sys.executable, os.path.join(source, "bench/convergence.py"), out, "--config", config, "--program", program,
                              "--attribute", "--order", "layers"], capture_output=True, text=True)
    expect(refused.returncode == 1 and "unknown group 'layers'; choose from recipe" in refused.stderr, refused.stderr)

conclude()
