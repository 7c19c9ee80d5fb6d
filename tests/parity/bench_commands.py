#!/usr/bin/env python3
"""Runs each benchmark of `halftone bench` at a tiny size on the CPU: the CSV has every row that was asked for, and sane figures."""
import csv
import json
import os
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from _program import path_of, source

program = path_of("halftone")
failures = 0


def problem(text):
    global failures
    failures += 1
    print(f"FAILED {text}")


def measure(work, name, *options):
    """Rows of the CSV; the terminal shows the same description."""
    path = os.path.join(work, f"{name}.csv")
    run = subprocess.run([program, "bench", name, "--device", "cpu", "--rounds", "1", "--csv", path, *options], capture_output=True, text=True)
    if run.returncode != 0:
        problem(f"{name}: status {run.returncode}: {run.stderr}")
        return []
    lines = open(path).read().splitlines()
    if not lines[0].startswith(f"# halftone bench {name}: ") or lines[0] not in run.stdout or "LibTorch" not in lines[0]:
        problem(f"{name}: no description of machine and versions: {lines[0]}")
    return list(csv.DictReader(lines[1:]))


def expect(name, rows, key, wanted, positive):
    found = [key(r) for r in rows]
    if sorted(found) != sorted(wanted):
        problem(f"{name}: expected rows {sorted(wanted)}, found {sorted(found)}")
    for row in rows:
        for column in positive:
            if not (row[column] and 0 < float(row[column]) < float("inf")):
                problem(f"{name}: {column} = '{row[column]}' in {row}")
        if None in row or None in row.values():
            problem(f"{name}: a row of another length: {row}")
    print(f"{name}: {len(rows)} rows")


def refuse(text, *options):
    run = subprocess.run([program, "bench", *options], capture_output=True, text=True)
    lines = run.stderr.splitlines()
    if run.returncode != 2 or len(lines) != 1 or text not in lines[0]:
        problem(f"{options}: status {run.returncode}, expected 2 and one line with '{text}', found {run.stderr!r}")
    else:
        print(lines[0])


def bench_train(world, model, *options):
    """The JSON of the first process, and what it printed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    arguments = [program, "bench", "train", "--config", os.path.join(source, "recipes/llama3_debug.toml"), "--device", "cpu", "--training.steps=4",
                 "--training.seq_len=64", "--training.local_batch_size=8", "--training.mixed_precision_param=float32", "--quantize.scheme=none",
                 f"--model.name={model}", "--model.overrides", json.dumps(MODELS[model]), *options]
    running = []
    for rank in range(world):
        several = dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        environment = dict(os.environ, OMP_NUM_THREADS="1", **(several if world > 1 else {}))
        running.append(subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    said = [p.communicate(timeout=120) for p in running]
    if any(p.returncode for p in running):
        problem(f"train {options}: {[p.returncode for p in running]}: {[err for _, err in said]}")
        return {}, ""
    return json.loads(next(line for line in said[0][0].splitlines() if line.startswith("{"))), said[0][0]


DENSE = {"dim": 64, "n_layers": 4, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 96}
MODELS = {"llama3": DENSE, "qwen3_moe": dict(DENSE, n_layers=2, num_experts=4, experts_per_token=4, expert_ffn_dim=32)}
for axis, model, rows, options in [
        ("tensor", "llama3", 8, []), ("context", "llama3", 8, ["--parallelism.context_parallel_rotate_method=alltoall"]),
        ("expert", "qwen3_moe", 16, []),
        ("pipeline", "llama3", 8, ["--parallelism.pipeline_parallel_schedule=ZBVZeroBubble", "--parallelism.pipeline_parallel_microbatch_size=1"])]:
    result, text = bench_train(2, model, f"--parallelism.{axis}_parallel_degree=2", *options)
    if not result:
        continue
    found = result["tokens_per_second"] * result["ms_per_step"] / 1e3 * 2 / 64  # rows per step
    one = bench_train(1, model, f"--training.global_batch_size={rows}")[0]  # the same rows
    off = max((abs(a / b - 1) for a, b in zip(result["losses"], one.get("losses", []))), default=1)
    if round(found) != rows or off > 1e-5:
        problem(f"train on {axis}: {found} rows of a step, losses {off} off those of one process: {result}")
    if axis == "pipeline":
        shares = result["bubbles"]
        if not all(0 < shares[k] < 1 for k in ("schedule", "passes", "measured")) or "as the schedule expects" not in text:
            problem(f"train on a pipeline: bubbles {shares}")
        print(f"train on a pipeline: bubbles {shares}")
    print(f"train on {axis}: {result['tokens_per_second']:.0f} tokens/s of a process, losses within {off:.1e} of one's")

with tempfile.TemporaryDirectory() as work:
    formats = ["fp8_row_fast", "int8", "mxfp4", "nvfp4", "fp8_1x128_128x128", "aten_bf16"]
    rows = measure(work, "mm", "--sizes", "64", "32x96x64", "--formats", *formats, "--layouts", "TN", "NT", "TN")
    wanted = [(m, layout, f) for m in ("64", "32") for layout in ("TN", "NT") for f in ["bf16", *formats]]
    expect("mm", rows, lambda r: (r["m"], r["layout"], r["format"]), wanted, ["us", "tflops", "vs_bf16"])
    if any(r["format"] == "bf16" and float(r["vs_bf16"]) != 1 for r in rows):
        problem("mm: bf16 is not 1 of itself")
    rows = measure(work, "mm", "--sizes", "32", "--layouts", "NN")
    if not any(r["note"] for r in rows if not r["us"]) or len(rows) < 20:
        problem("mm: expected all formats, and a reason beside those that the CPU lacks")

    schemes = ["int8", "mxfp4_folded", "mxfp4_folded_rotated", "fp8_128x128", "nvfp4_values_sr"]
    rows = measure(work, "quantize", "--sizes", "64x128", "--type", "fp32", "--schemes", *schemes)
    wanted = [(s, d) for s in schemes for d in ("row", "transposed", "both") if d != "row" or "rotated" not in s]
    expect("quantize", rows, lambda r: (r["scheme"], r["direction"]), wanted, ["bytes", "us", "gbs", "copy_gbs", "share"])

    recipes = ["int8", "fp8_tensorwise", "mxfp4", "bitnet", "aten_bf16"]
    rows = measure(work, "linear", "--shapes", "64x32x96", "--profile-parts", "--recipes", *recipes)
    ratios = ["forward_ms", "backward_ms", "both_ms", "forward_ratio", "backward_ratio", "both_ratio", "tflops"]
    expect("linear", rows, lambda r: r["recipe"], ["none", *recipes], ratios)

    rows = measure(work, "roofline", "--m", "32", "64", "--k", "64", "--n", "32", "64", "--peak-size", "64", "--recipes", "int8", "mxfp8_e4m3")
    wanted = [(m, "64", n, r) for m in ("32", "64") for n in ("32", "64") for r in ("int8", "mxfp8_e4m3")]
    expect("roofline", rows, lambda r: (r["m"], r["k"], r["n"], r["recipe"]), wanted, ["bf16_ms", "recipe_ms", "measured", "predicted"])
    picture = os.path.join(work, "roofline.svg")
    plot = os.path.join(source, "tools/plot_roofline.py")
    subprocess.run([sys.executable, plot, picture, os.path.join(work, "roofline.csv")], check=True)
    cells = sum(e.tag.endswith("rect") for e in xml.etree.ElementTree.parse(picture).iter())
    if cells != 1 + 2 * len(wanted):
        problem(f"roofline.svg: {cells} rectangles, expected the background and {2 * len(wanted)} cells")

    tables = os.path.join(source, "tools/bench_tables.py")
    paths = [os.path.join(work, f"{name}.csv") for name in ("mm", "quantize", "linear", "roofline")]
    printed = subprocess.run([sys.executable, tables, *paths], check=True, capture_output=True, text=True).stdout
    for word in ("| bf16 |", "| mxfp4_folded_rotated |", "| fp8_tensorwise |", "| mxfp8_e4m3 |"):
        if word not in printed:
            problem(f"tools/bench_tables.py: no row {word}")

    folder = os.path.join(source, "docs/benchmarks")
    for name in ("mm", "linear", "roofline"):
        page, figures = open(os.path.join(folder, f"{name}.md")).read(), os.path.join(folder, "h200", f"{name}.csv")
        printed = subprocess.run([sys.executable, tables, figures], check=True, capture_output=True, text=True).stdout
        stale = [line for line in printed.splitlines() if line.startswith("| ") and line not in page]
        if stale or open(figures).readline().split(": ")[1].strip() not in page:
            problem(f"docs/benchmarks/{name}.md is not of {figures}: {stale[:2]}")

    for tool, words in (("plot_roofline.py", [picture]), ("plot_roofline.py", [picture, work]), ("plot_roofline.py", [picture, paths[0]]),
                        ("plot_roofline.py", [os.path.join(work, "none/x.svg"), paths[3]]), ("bench_tables.py", []),
                        ("bench_tables.py", [picture]), ("plot_losses.py", []), ("plot_losses.py", [picture, "a"]),
                        ("plot_demo.py", [picture]), ("plot_demo.py", [picture, work, paths[0]]),
                        ("plot_losses.py", [picture, f"a={paths[0]}"]), ("plot_convergence.py", [picture]),
                        ("plot_convergence.py", [picture, paths[0]]), ("plot_convergence.py", [picture, os.path.join(work, "none")])):
        run = subprocess.run([sys.executable, os.path.join(source, "tools", tool), *words], capture_output=True, text=True)
        if run.returncode != 2 or len(run.stderr.splitlines()) != 1:
            problem(f"tools/{tool} {words}: status {run.returncode}, expected 2 and one line, found {run.stderr}")

    given = ["--m", "32", "--k", "32", "--n", "32", "--peak-size", "32", "--recipes", "int8"]
    rows = measure(work, "roofline", *given, "--algorithms", "first", "--peak", "int8=1e9", "none=1e9", "--bandwidth", "1e12")
    expect("roofline with given rates", rows, lambda r: r["recipe"], ["int8"], ["predicted"])

for name in ("", "train", "mm", "quantize", "linear", "roofline"):
    run = subprocess.run([program, "bench", *name.split(), "--help"], capture_output=True, text=True)
    if run.returncode != 0 or f"  halftone bench {name or 'train'} " not in run.stdout:
        problem(f"bench {name} --help: status {run.returncode}, expected an example")

refuse("found 'speed'", "speed")
refuse("expected train, linear, experts", *[])
refuse("there is no 'fp9'", "mm", "--formats", "fp9")
refuse("there is no 'fp9'", "mm", "--formats", "bf16,fp9")
refuse("did you mean int8?", "quantize", "--schemes", "int9")
refuse("there is no 'int8_weight'", "linear", "--recipes", "int8_weight")
refuse("multiples of 32", "mm", "--sizes", "100")
refuse("expected ROWSxCOLS", "quantize", "--sizes", "100")
refuse("--m: expected a count of tokens", "roofline", "--m", "32x64x32")
refuse("expected RECIPE=TFLOPS", "roofline", "--peak", "int8")
refuse("none of the recipes", "roofline", "--peak", "bf16=800")
refuse("cannot be written", "mm", "--csv", "/nonexistent/file.csv", "--device", "cpu")
refuse("halftone: bench linear: ", "linear", "--bogus")
refuse("No space left on device", "mm", "--csv", "/dev/full", "--device", "cpu")
refuse("expected --config FILE", "train")
refuse("--breakdown needs a GPU", "train", "--config", os.path.join(source, "recipes/demo.toml"), "--training.device", "cpu", "--breakdown")
if not os.path.exists("/dev/nvidiactl"):
    refuse("cuda", "mm", "--device", "cuda", "--sizes", "64")
sys.exit(1 if failures else 0)
