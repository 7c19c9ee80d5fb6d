#!/usr/bin/env python3
"""Steps of the same models on 1, 2, 4 and 8 GPUs beside what `halftone estimate` said of them before.

    bench/scaling.py [--gpus 4] [--only fsdp 'llama32'] [--seconds 570] [--together] [--peers SITE] [--json FILE] [-- FIELDS]

A case is a run of `halftone bench train`, or with --peers, a folder that has torchtitan and torchao, of bench/peers/torchtitan_llama.py.
FIELDS are passed to every case of halftone. Without GPUs, to try this program:

    bench/scaling.py --device cpu --gpus 2 --only llama8 -- --training.seq_len=64 --model.overrides.dim=64 --model.overrides.n_heads=4 \\
        --model.overrides.n_kv_heads=2 --model.overrides.ffn_dim=96 --model.overrides.vocab_size=512
"""
import argparse
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
LLAMA = "--config recipes/bench_gpu.toml --training.local_batch_size 1 --quantize.scheme none --model.overrides.n_layers"
QWEN = ("--config recipes/qwen3_30b_a3b.toml --model.overrides.n_layers 4 --quantize.scheme none --training.local_batch_size 2 "
        "--activation_checkpoint.mode none")
BUDGET = "--activation_checkpoint.mode memory_budget --activation_checkpoint.memory_budget 0.5"
RECIPES = {"bf16": "none", "fp8_tensorwise": "fp8_tensorwise", "fp8_rowwise": "fp8_rowwise", "mxfp4": "mxfp4",
           "bf16, budget": f"none {BUDGET}", "fp8_rowwise, budget": f"fp8_rowwise {BUDGET}"}
TITAN = {"bf16": "bf16", "fp8_tensorwise": "tensorwise --allgather8 1", "fp8_rowwise": "rowwise"}
EIGHT_ROWS = "--training.global_batch_size 8 --training.steps 20"  # rows per step, on every mesh

# Name: GPUs, options, time limit in seconds, and the case to compare with: tokens/s per GPU (and losses, if a step has the same rows).
# Cases with one and two GPUs come first: --together runs them side by side.
CASES = {
    "llama8": (1, f"{LLAMA} 8", 60, None),
    "llama8 fsdp 2": (2, f"{LLAMA} 8", 60, "llama8"),
    "qwen4": (1, QWEN, 60, None),
    "llama8, 8 rows": (1, f"{LLAMA} 8 {EIGHT_ROWS}", 90, None),
    "qwen4, 8 rows": (1, f"{QWEN} {EIGHT_ROWS}", 60, None),
    "qwen4 ep 2": (2, f"{QWEN} --parallelism.expert_parallel_degree 2", 60, "qwen4"),
    "llama8 fsdp 4": (4, f"{LLAMA} 8", 60, "llama8"),
    "llama8 fsdp 8": (8, f"{LLAMA} 8", 60, "llama8"),
}
for gpus in (4, 8):
    for name, recipe in RECIPES.items():
        peer = name.removesuffix(", budget")
        peer = f"torchtitan32 {peer} on {gpus}" if peer in TITAN else f"llama32 bf16 on {gpus}"
        CASES[f"llama32 {name} on {gpus}"] = gpus, f"{LLAMA} 32 --quantize.scheme {recipe}", 90, peer
    for name, recipe in TITAN.items():
        CASES[f"torchtitan32 {name} on {gpus}"] = gpus, f"--layers 32 --seq 8192 --lbs 1 --steps 8 --recipe {recipe}", 150, None
MESHES = {  # all meshes are 2 x 2; rows per micro-batch
    "hsdp 2x2": ("data_parallel_replicate_degree 2", 2),
    "fsdp 2, tp 2": ("tensor_parallel_degree 2", 4),
    "cp 2, fsdp 2": ("context_parallel_degree 2", 4),
    "pp 2, fsdp 2": ("pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule ZBVZeroBubble --parallelism."
                     "pipeline_parallel_first_stage_less_layers 0 --parallelism.pipeline_parallel_last_stage_less_layers 2", 4),
}
CASES["qwen4 ep 4"] = 4, f"{QWEN} {EIGHT_ROWS} --parallelism.expert_parallel_degree 4", 60, "qwen4, 8 rows"
for mesh, (degrees, rows) in MESHES.items():
    options = f"{LLAMA} 8 {EIGHT_ROWS} --training.local_batch_size {rows} --parallelism.{degrees}"
    CASES[f"llama8 {mesh}"] = 4, options, 60, "llama8, 8 rows"


def estimates(args, names):
    """All at once, before anything runs."""
    command = [args.program, "estimate", "--json", *args.fields, "--device", "cpu" if args.device == "cpu" else "auto", "--world"]
    asked = {name: subprocess.Popen([*command, str(CASES[name][0]), *CASES[name][1].split()], cwd=SOURCE, text=True, stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL)
             for name in names if not name.startswith("torchtitan")}
    said = {name: p.communicate()[0] for name, p in asked.items()}
    return {name: json.loads(out) for name, out in said.items() if out.startswith("{")}  # the run itself reports what the others lack


def start(args, name, devices):
    """One process for each of the devices, as a launcher starts them."""
    if name.startswith("torchtitan"):
        command = [sys.executable, "bench/peers/torchtitan_llama.py", *CASES[name][1].split()]
    else:
        command = [args.program, "bench", "train", "--training.steps", "8", *CASES[name][1].split(), *args.fields, "--device", args.device]
        command += ["--breakdown"] if args.device == "cuda" else []
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // args.gpus)
    processes = []
    for rank in range(len(devices)):
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), CUDA_VISIBLE_DEVICES=",".join(map(str, devices)))
        if len(devices) > 1 or name.startswith("torchtitan"):
            environment |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(len(devices)), MASTER_ADDR="127.0.0.1",
                                MASTER_PORT=str(port))
        if name.startswith("torchtitan"):
            environment["PYTHONPATH"] = args.peers
        log = open(args.logs / f"{re.sub('[^a-z0-9]+', '_', name)}.{rank}.txt", "w")
        processes.append(subprocess.Popen(command, cwd=SOURCE, env=environment, text=True, stdout=log, stderr=subprocess.STDOUT))
        processes[-1].log = log
    return processes


def read(processes):
    """Figures of a case, or why it failed."""
    said = [pathlib.Path(p.log.name).read_text() for p in processes]
    result = {"status": max((p.returncode for p in processes), key=abs)}
    for line in said[0].splitlines():
        if line.startswith("{") and "tokens_per_second" in line:
            result |= {k: v for k, v in json.loads(line).items() if k != "model"}
        elif line.startswith("TITAN"):
            found = re.search(r"([\d.]+) tok/s/gpu  step ([\d.]+) ms  peak ([\d.]+) GiB  loss ([\d.]+)->([\d.]+)", line)
            keys = ("tokens_per_second", "ms_per_step", "peak_memory_gib", "loss_first", "loss_last")
            result |= dict(zip(keys, map(float, found.groups())))
        elif found := re.match(r"\s+(exposed communication|of it on [a-z_ ]+?)\s+([\d.]+)\s", line):
            result.setdefault("exposed_ms", {})[found[1].removeprefix("of it on ")] = float(found[2])
    if "tokens_per_second" not in result or result["status"] != 0:
        lines = [line for text in said for line in text.splitlines() if line.startswith("halftone:") or "Error" in line]
        result["error"] = f"status {result['status']}: {(lines or ['took too long'])[-1]}"
    return result


def run(args, names, results, report):
    """One after another, or as many at once as there are GPUs for."""
    waiting, running, free, end = list(names), [], set(range(args.gpus)), time.time() + args.seconds
    while waiting or running:
        while waiting and CASES[waiting[0]][0] <= len(free) and (args.together or not running):
            name, now = waiting.pop(0), time.time()
            if end - now < 20:
                results[name]["error"] = "no time left"
                continue
            devices = sorted(free)[:CASES[name][0]]
            free -= set(devices)
            running.append([name, devices, now, min(end, now + CASES[name][2]), start(args, name, devices)])
        time.sleep(0.1)
        for case in list(running):
            name, devices, since, until, processes = case
            if any(p.poll() for p in processes):  # halftone's other ranks exit by themselves
                case[3] = min(until, time.time() + 10)
            for p in processes:
                if time.time() > until:
                    p.kill()
            if all(p.poll() is not None for p in processes):
                running.remove(case)
                free |= set(devices)
                results[name] |= read(processes) | {"seconds": time.time() - since}
                report(name)


def row(name, results):
    """A line of the table."""
    gpus, _, _, other = CASES[name]
    r, to = results[name], results.get(other, {})
    said, rate, peak = (r.get(k, {}) for k in ("estimate", "tokens_per_second", "peak_memory_gib"))
    number = lambda x, form: format(x, form) if x else ""
    beside = lambda a, b, form: number(a, form) + (f" ({100 * (a / b - 1):+.0f}%)" if a and b else "")
    rows = lambda of: round(of["tokens_per_second"] * of["ms_per_step"] * of["processes"] / of["seq_len"] / 1e3)
    losses = f"{r['loss_first']:.4f}, {r['loss_last']:.4f}" if rate else ""
    if "losses" in r and "losses" in to and rows(r) == rows(to):
        losses += f" ({max(abs(a / b - 1) for a, b in zip(r['losses'], to['losses'])):.0e})"
    exposed = r.get("exposed_ms", {}).get("exposed communication") if rate else None
    cells = [name, str(gpus), number(rate, ",.0f"), beside(said.get("tokens_per_second", 0) / gpus, rate, ",.0f"),
             number(rate and rate / to.get("tokens_per_second", float("inf")), ".3f"), number(peak, ".1f"),
             beside(said.get("peak_memory_gib"), peak, ".1f"), f"{exposed:.1f}, {exposed / r['ms_per_step']:.1%}" if exposed else "",
             r.get("error", losses), number(r.get("seconds"), ".0f")]
    return f"| {' | '.join(cells)} |"


HEAD = ("| case | GPUs | tokens/s per GPU | predicted | relative to one GPU or the peer | GiB | predicted | exposed communication, ms | "
        "loss, first and last (largest deviation) | seconds |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/halftone")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpus", type=int, default=4, help="skip cases that need more")
    parser.add_argument("--only", nargs="+", default=[""], help="only cases whose names begin with this")
    parser.add_argument("--seconds", type=float, default=570, help="of all cases")
    parser.add_argument("--together", action="store_true", help="run cases that leave GPUs idle side by side")
    parser.add_argument("--peers", help="folder with torchtitan and torchao, else their cases are skipped")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("/tmp/scaling"))
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    args = parser.parse_args(own)
    args.fields = sys.argv[len(own) + 2:]
    args.logs.mkdir(parents=True, exist_ok=True)
    names = [n for n, case in CASES.items() if case[0] <= args.gpus and n.startswith(tuple(args.only)) and (args.peers or "torch" not in n)]
    said = estimates(args, names)
    results = {name: {"estimate": said.get(name, {})} for name in names}

    def report(*done):
        print(*(row(name, results) for name in done), sep="\n", flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))

    run(args, names, results, report)
    print(f"\n{HEAD}")
    report(*names)
    sys.exit(any("error" in results[name] for name in names))


if __name__ == "__main__":
    main()
