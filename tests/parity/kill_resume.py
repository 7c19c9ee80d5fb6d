#!/usr/bin/env python3
"""Kills a training run at random moments with SIGKILL and restarts it; at the end weights, optimizer and state must equal those of the
undisturbed run bit for bit, and metrics.jsonl must hold every step once: over an indexed data set, and over a mixture of streamed and indexed
ones, whose state says which documents each lane has read. HALFTONE_KILLS sets how often (3 and 10)."""
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from _program import path_of, source

program = path_of("halftone")
STEPS = 40


def command(folder, *more):
    model = '{"dim":64,"n_layers":2,"n_heads":4,"n_kv_heads":2,"ffn_dim":128}'
    return [program, "train", "--config", "recipes/llama3_debug.toml", "--model.overrides", model, "--training.seq_len=64",
            "--training.local_batch_size=2", f"--training.steps={STEPS}", "--training.device=cpu", f"--job.dump_folder={folder}",
            "--checkpoint.enable", "--checkpoint.interval=5", "--checkpoint.keep_latest_k=2", "--debug.deterministic", "--debug.seed=7",
            "--quantize.scheme=int8", "--quantize.stochastic_rounding", *more]


def train(folder, *more):
    return subprocess.run(command(folder, *more), cwd=source, capture_output=True, text=True)


def digests(folder):
    step = os.path.join(folder, "checkpoint", f"step-{STEPS}")
    names = [n for n in sorted(os.listdir(step)) if n.endswith(".safetensors")]
    result = {n: hashlib.sha256(open(os.path.join(step, n), "rb").read()).hexdigest() for n in names}
    state = json.load(open(os.path.join(step, "state.json")))
    state.pop("config", None)  # it names the folder
    return result | {"state": state}


def train_steps(folder):
    lines = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"))]
    return [(line["step"], line["loss_metrics/global_avg_loss"]) for line in lines if line["kind"] == "train"]


def kill_at_random(folder, most, seconds, more):
    """Starts the run again and again, killing it each time, until `most` kills or until one start reaches the end."""
    for done in range(most):
        process = subprocess.Popen(command(folder, *more), cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = process.communicate(timeout=random.uniform(0.05, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        if process.returncode != 0:
            sys.exit(f"a restart after {done} kills failed:\n{output}")
        return done
    return most


def write_source(folder, files, documents):
    os.makedirs(folder)
    words = [chr(97 + i) * n for i in range(26) for n in (1, 3, 5)]
    for f in range(files):
        with open(os.path.join(folder, f"{f:03}.jsonl"), "w") as out:
            for _ in range(documents):
                out.write(json.dumps({"text": " ".join(random.choices(words, k=random.randint(1, 60)))}) + "\n")


def mixture(folder):
    """Options of a mixture of two streamed sets and an indexed one, whose weights change during the run."""
    for name, files in (("web", 20), ("code", 3), ("books", 2)):
        write_source(os.path.join(folder, name), files, 30)
    sources = {"web": {"path": os.path.join(folder, "web"), "weight": "0.6, 20: 0.2"},
               "code": {"path": os.path.join(folder, "code"), "weight": 0.3},
               "books": {"path": os.path.join(folder, "books"), "weight": 0.1, "read": "indexed"}}
    return ["--training.sources", json.dumps(sources), "--training.dataloader.read=streamed", "--training.dataloader.shuffle",
            "--training.dataloader.shuffle_buffer=100", "--training.dataloader.stream_lanes=8"]


def check_sources(folder):
    """The losses of a mixture's sources add up to the whole loss of each step."""
    for line in (json.loads(text) for text in open(os.path.join(folder, "metrics.jsonl"))):
        names = [key.split("/")[1] for key in line if key.startswith("data/") and key.endswith("/tokens") and line[key] > 0]
        if not names:
            continue
        tokens = [line[f"data/{name}/tokens"] for name in names]
        total = sum(n * line[f"data/{name}/loss"] for n, name in zip(tokens, names))
        assert sum(tokens) == 128 and abs(total / sum(tokens) - line["loss_metrics/global_avg_loss"]) < 1e-6, line


def check_kills(folder, kills, name, data):
    straight = os.path.join(folder, "straight")
    built = os.stat(program).st_mtime_ns
    start = time.time()
    result = train(straight, *data)
    seconds = time.time() - start
    if result.returncode != 0:
        sys.exit(f"the undisturbed run failed:\n{result.stdout}{result.stderr}")
    wanted = digests(straight)
    check_sources(straight)
    losses = train_steps(straight)
    assert [step for step, _ in losses] == list(range(1, STEPS + 1)), losses
    total, runs = 0, 0
    while total < kills:
        more = [*data, *(["--checkpoint.async_mode=async"] if runs % 2 else [])]
        path = os.path.join(folder, f"killed-{runs}")
        runs += 1
        total += kill_at_random(path, min(kills - total, 5), seconds, more)
        result = train(path, *more)
        if result.returncode != 0:
            sys.exit(f"the last restart failed (seed {seed}):\n{result.stdout}{result.stderr}")
        found = digests(path)
        if os.stat(program).st_mtime_ns != built:
            sys.exit("the program was rebuilt during this test: run it again")
        assert found == wanted, f"seed {seed}: {name}: differs in {[k for k in wanted if wanted[k] != found.get(k)]}"
        assert train_steps(path) == losses, f"seed {seed}: {name}: metrics.jsonl holds {train_steps(path)}"
        leftovers = [n for n in os.listdir(os.path.join(path, "checkpoint")) if not n.startswith("step-") or "." in n]
        assert not leftovers, leftovers
    print(f"{name}: {total} kills in {runs} runs of {seconds:.1f} s (seed {seed}): weights, optimizer, state and metrics equal the "
          f"undisturbed run's", flush=True)
    return wanted


seed = int(os.environ.get("HALFTONE_KILL_SEED", time.time_ns() % 1000000))
random.seed(seed)
with tempfile.TemporaryDirectory() as folder:
    check_kills(os.path.join(folder, "indexed"), int(os.environ.get("HALFTONE_KILLS", "3")), "one indexed set", [])
with tempfile.TemporaryDirectory() as folder:
    state = check_kills(folder, int(os.environ.get("HALFTONE_KILLS", "10")), "streamed mixture", mixture(folder))["state"]
    lanes = state["dataloader"]["positions"]["lanes"]
    assert len(lanes) == 8 and sum(lane["rows"] for lane in lanes.values()) == 2 * STEPS, lanes
