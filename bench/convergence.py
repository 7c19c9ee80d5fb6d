#!/usr/bin/env python3
"""Trains one configuration in many recipes and compares final validation losses with bfloat16's of the same seed.

    bench/convergence.py OUT --config recipes/llama3_120m.toml [--device cuda] [--slots 3] [--runs 'bf16;int8'] [-- FIELDS]

OUT receives convergence.json (a curve and the validation loss of every run), convergence.md (the table) and, of runs that
failed, their log. Runs that convergence.json holds already are not repeated, so that calls add up. FIELDS are passed to every run.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

# Name: command line, and the limit: how far the loss may exceed bfloat16's, in percent (none: must converge, the loss is only reported).
RUNS = {
    "bf16": ("--quantize.scheme none", None),
    "fp8_tensorwise": ("--quantize.scheme fp8_tensorwise", 0.5),
    "fp8_rowwise": ("--quantize.scheme fp8_rowwise", 0.5),
    "fp8_rowwise_with_gw_hp": ("--quantize.scheme fp8_rowwise_with_gw_hp", 0.5),
    "fp8_blockwise": ("--quantize.scheme fp8_blockwise", 0.5),
    "mxfp8_e4m3": ("--quantize.scheme mxfp8_e4m3", 0.5),
    "mxfp8_e5m2": ("--quantize.scheme mxfp8_e5m2", 0.5),
    "int8": ("--quantize.scheme int8", 1.0),
    "mxfp4": ("--quantize.scheme mxfp4", 2.0),
    "nvfp4": ("--quantize.scheme nvfp4", 2.0),
    "nvfp4, style torchao": ("--quantize.scheme nvfp4 --quantize.style torchao", 2.0),
    "bf16, again": ("--quantize.scheme none", None),
    "bf16, seed 1": ("--quantize.scheme none --debug.seed 1", None),
    "bf16, seed 2": ("--quantize.scheme none --debug.seed 2", None),
    "int4": ("--quantize.scheme int4", None),
    "bitnet": ("--quantize.scheme bitnet", None),
    "int8_weight": ("--quantize.scheme int8_weight", None),
    "int4_weight": ("--quantize.scheme int4_weight", None),
    "amdfp4": ("--quantize.scheme amdfp4", None),
    "mxfp8_e4m3, 1-D weights": ("--quantize.scheme mxfp8_e4m3 --quantize.use_2dblock_w=false", 0.5),
}


def command(args, name, folder):
    fields = [args.program, "train", "--config", args.config, f"--job.dump_folder={folder}", f"--training.device={args.device}",
              "--training.minutes=0", f"--model.hf_assets_path={args.out}/tokenizer"]
    return fields + RUNS[name][0].split() + args.fields


def read(folder):
    curve, loss, bits = [], None, None
    for line in open(folder / "metrics.jsonl"):
        record = json.loads(line)
        if record["kind"] == "train":
            curve.append([record["step"], round(record["loss_metrics/global_avg_loss"], 4)])
        elif record["kind"] == "validate":
            loss, bits = record["validation_metrics/loss"], record.get("validation_metrics/bits_per_byte")
    return {"curve": curve, "loss": loss, "bits_per_byte": bits}


def table(results):
    base = results.get("bf16", {}).get("loss")
    lines = ["| run | validation loss | against bf16, same seed | bar | seconds |", "|---|--:|--:|--:|--:|"]
    for name, (_, bar) in RUNS.items():
        r = results.get(name)
        if r is None:
            continue
        if r["loss"] is None:
            lines.append(f"| {name} | failed | | | |")
            continue
        above = f"{100 * (r['loss'] / base - 1):+.2f}%" if base and not name.startswith("bf16") else ""
        lines.append(f"| {name} | {r['loss']:.4f} | {above} | {f'{bar}%' if bar else ''} | {r['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--config", required=True)
    parser.add_argument("--program", default="build/release/bin/halftone")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--slots", type=int, default=1, help="runs side by side")
    parser.add_argument("--gpus", type=int, help="GPUs to spread the slots over")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of a run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time, and start no run that would outlast it")
    parser.add_argument("--runs", default=";".join(RUNS), help="names with semicolons between them")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:cut])
    args.fields = sys.argv[cut + 1:]
    wanted = args.runs.split(";")
    for name in wanted:
        if name not in RUNS:
            sys.exit(f"convergence.py: unknown run '{name}'; choose from {', '.join(RUNS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    store = args.out / "convergence.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    queue = [n for n in wanted if results.get(n, {}).get("loss") is None]
    env = dict(os.environ, **({"OMP_NUM_THREADS": str(args.threads)} if args.threads else {}))
    begin, running = time.time(), {}
    while queue or running:
        late = time.time() - begin > args.seconds
        longest = max((r["seconds"] for r in results.values()), default=0)
        if time.time() - begin + longest > args.seconds:
            queue.clear()
        # Runs the first case alone until it trains: it builds the tokenizer that the others read.
        ready = (args.out / "tokenizer" / "tokenizer.json").exists() or not running
        if queue and not late and len(running) < args.slots and ready:
            name = queue.pop(0)
            folder = args.out / "run" / name.replace(",", "").replace(" ", "_")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            slot = min(set(range(args.slots)) - {r[3] for r in running.values()})
            if args.gpus:
                env["CUDA_VISIBLE_DEVICES"] = str(slot % args.gpus)
            with open(folder / "log", "w") as log:
                process = subprocess.Popen(command(args, name, folder), stdout=log, stderr=subprocess.STDOUT, env=env)
            running[name] = (process, folder, time.time(), slot)
            continue
        time.sleep(0.3)
        for name, (process, folder, start, _) in list(running.items()):
            if process.poll() is None and not late:
                continue
            process.kill()
            process.wait()
            del running[name]
            if late:
                print(f"{name}: stopped, the time is over", flush=True)
                continue
            results[name] = {"seconds": time.time() - start, "curve": [], "loss": None, "bits_per_byte": None}
            if process.returncode == 0:
                results[name].update(read(folder))
            else:
                shutil.copy(folder / "log", args.out / f"{folder.name}.log")
            print(f"{name}: {results[name]['loss']} after {results[name]['seconds']:.0f} s", flush=True)
            store.write_text(json.dumps(results))
        if late:
            break
    text = table(results)
    (args.out / "convergence.md").write_text(text)
    print(text)
    sys.exit(any(r["loss"] is None for r in results.values()))


if __name__ == "__main__":
    main()
