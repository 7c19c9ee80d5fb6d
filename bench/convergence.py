#!/usr/bin/env python3
"""Trains one configuration in many recipes and compares final validation losses with bfloat16's of the same seed.

    bench/convergence.py OUT --config recipes/llama3_120m.toml [--device cuda] [--slots 3] [--runs 'bf16;int8'] [-- FIELDS]
    bench/convergence.py OUT --config recipes/llama3_12m.toml --attribute --tokens-per-parameter 8 --text FOLDER ... \\
        --gpus 2 --slots 6 --seconds 560 [--order switch,layer] [--only '^mxfp4'] [-- FIELDS]

--attribute asks where the loss of mxfp4 and nvfp4 goes: each run leaves one product, operand, kind of layer or block in bfloat16, or changes
one switch, the learning rate or the warm-up.

OUT receives convergence.json (a curve and the validation loss of every run), convergence.md (the table) and, of runs that
failed, their log. Runs that convergence.json holds already are not repeated, so that calls add up; a run that the time limit stopped
resumes from its checkpoint in OUT/run. FIELDS are passed to every run.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

BEGIN = time.time()
SOURCE = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass
class Run:
    name: str
    recipe: str          # options of [quantize]; schemes without other options are what a recipe's gap is measured on
    train: str = ""      # other options. A run is compared with bfloat16's with the same
    group: str = "recipe"
    bar: float = None    # how far the loss may exceed bfloat16's, per cent; none: must converge, the loss is only reported
    parent: str = ""     # the run that this one differs from after FINISH of the steps only: it continues that run's checkpoint

    @property
    def scheme(self):
        return self.recipe.split()[0].partition("=")[2]


def scheme(name, *options):
    return " ".join((f"--quantize.scheme={name}", *(f"--quantize.{o}" for o in options)))


FINISH = 0.9


def finish(name, *options):
    return Run(f"{name}, bf16 forward from {FINISH:.0%}", scheme(name, *options, f'phases=[{{"from":"{FINISH:.0%}","output":false}}]'), parent=name)


RECIPES = [
    Run("bf16", scheme("none")),
    Run("fp8_tensorwise", scheme("fp8_tensorwise"), bar=0.5),
    Run("fp8_rowwise", scheme("fp8_rowwise"), bar=0.5),
    Run("fp8_rowwise_with_gw_hp", scheme("fp8_rowwise_with_gw_hp"), bar=0.5),
    Run("fp8_blockwise", scheme("fp8_blockwise"), bar=0.5),
    Run("mxfp8_e4m3", scheme("mxfp8_e4m3"), bar=0.5),
    Run("mxfp8_e5m2", scheme("mxfp8_e5m2"), bar=0.5),
    Run("int8", scheme("int8"), bar=1.0),
    Run("mxfp4", scheme("mxfp4"), bar=2.0),
    Run("nvfp4", scheme("nvfp4"), bar=2.0),
    Run("nvfp4, style torchao", scheme("nvfp4", "style=torchao"), bar=2.0),
    Run("bf16, again", scheme("none")),
    Run("bf16, seed 1", scheme("none"), "--debug.seed=1"),
    Run("bf16, seed 2", scheme("none"), "--debug.seed=2"),
    Run("int4", scheme("int4")),
    Run("bitnet", scheme("bitnet")),
    Run("int8_weight", scheme("int8_weight")),
    Run("int4_weight", scheme("int4_weight")),
    Run("amdfp4", scheme("amdfp4")),
    Run("mxfp8_e4m3, 1-D weights", scheme("mxfp8_e4m3", "use_2dblock_w=false"), bar=0.5),
    Run("mxint8", scheme("mxint8")),
    Run("nvint4", scheme("nvint4")),
    Run("quartet2", scheme("quartet2")),
    Run("nvfp4, square blocks", scheme("nvfp4", "use_2dblock_w=true", "scale_choice=none")),
    Run("mxfp4, square blocks", scheme("mxfp4", "use_2dblock_w=true")),
    finish("quartet2"),
    finish("nvfp4", "deosc_step=0"),
    finish("mxfp4", "deosc_step=0"),
]

# Changes that --attribute makes in a recipe: group, name, options of [quantize], and the one recipe that has them.
CHANGES = [
    ("product", "forward in bf16", "output=false"),
    ("product", "dgrad in bf16", "grad_input=false"),
    ("product", "wgrad in bf16", "grad_weight=false"),
    ("product", "forward alone", "grad_input=false grad_weight=false"),
    ("product", "dgrad alone", "output=false grad_weight=false"),
    ("product", "wgrad alone", "output=false grad_input=false"),
    ("operand", "X in bf16", "x_hp=true"),
    ("operand", "W in bf16", "w_hp=true"),
    ("operand", "dY in bf16", "dy_hp=true"),
    ("operand", "X alone", "w_hp=true dy_hp=true"),
    ("operand", "W alone", "x_hp=true dy_hp=true"),
    ("operand", "dY alone", "x_hp=true w_hp=true"),
    ("switch", "square blocks of weights", "use_2dblock_w=true"),
    ("switch", "2-D X and dY", "use_2dblock_x=true"),
    ("switch", "no stochastic rounding", "use_sr_grad=false"),
    ("switch", "no rotation", "use_hadamard=false"),
    ("switch", "gradient estimator", "use_dge=true"),
    ("switch", "no de-oscillation", "deosc_step=0"),
    ("switch", "preset alto", "preset=alto"),
    ("switch", "macro blocks", "two_level_scaling=blockwise", "mxfp4"),
    ("switch", "scales rounded to even", "scale_mode=even", "mxfp4"),
    ("switch", "scales rounded up", "scale_mode=ceil", "mxfp4"),
    ("switch", "scales rounded down", "scale_mode=floor", "mxfp4"),
    ("switch", "uos", "use_uos=true", "mxfp4"),
    ("switch", "static clipping", "clip_mode=static", "mxfp4"),
    ("switch", "dynamic clipping", "clip_mode=dynamic", "mxfp4"),
    ("switch", "style torchao", "style=torchao", "nvfp4"),
    ("switch", "no four over six", "scale_choice=none", "nvfp4"),
    ("switch", "square blocks of weights, no four over six", "scale_choice=none use_2dblock_w=true", "nvfp4"),
    ("switch", "rotation of 128", "hadamard_width=128"),
    ("switch", "bf16 forward from 90%", 'deosc_step=0 phases=[{"from":"90%","output":false}]'),
    ("layer", "attention in bf16", "ignore=output,re:.*attention.*"),
    ("layer", "gate and up in bf16", "ignore=output,re:.*feed_forward.w[13]"),
    ("layer", "down in bf16", "ignore=output,re:.*feed_forward.w2"),
    ("layer", "first block in bf16", "skip_first_layers=1"),
    ("layer", "last block in bf16", "skip_last_layers=1"),
    ("layer", "last quarter in bf16", "skip_last_layers=0.25"),
]
GROUPS = ["recipe", "product", "operand", "seed", "switch", "layer", "rate"]
BASES = ("mxfp4", "nvfp4")
OTHERS = ("quartet2", "nvint4", "mxint8")  # run once, for their gap


def attribution(config, share):
    """The runs of --attribute. Steps that the recipes name move with the run's length, which is `share` of the configuration's."""
    lr, warmup = config["optimizer"]["lr"], max(1, round(share * config["lr_scheduler"]["warmup_steps"]))
    deosc = (f"deosc_step={max(1, round(share * 2000))}", f"deosc_period={max(1, round(share * 200))}")
    warm = lambda f: f"--lr_scheduler.warmup_steps={max(1, round(f * warmup))}"
    usual = warm(1)
    trains = [("recipe", "", usual), *(("seed", f", seed {s}", f"{usual} --debug.seed={s}") for s in (1, 2)),
              *(("rate", f", {f:g} of the learning rate", f"{usual} --optimizer.lr={f * lr:g}") for f in (0.25, 0.5, 2, 4)),
              *(("rate", f", {f:g} of the warm-up", warm(f)) for f in (0.25, 4))]
    runs = [Run(f"{s}{name}", scheme("none") if s == "bf16" else scheme(s, *deosc), train, group)
            for group, name, train in trains for s in ("bf16", *BASES)]
    runs[len(BASES) + 1:len(BASES) + 1] = [Run(s, scheme(s), usual) for s in OTHERS]
    for group, name, options, *of in CHANGES:
        for s in of or BASES:
            # Without codes of W in the forward GEMM deosc_step is refused; presets and styles bring their own.
            own_deosc = re.search("output=|w_hp|deosc_step|preset|style", options)
            runs.append(Run(f"{s}: {name}", scheme(s, *(() if own_deosc else deosc), *options.split()), usual, group))
    return runs


def ask(args, *words):
    """JSON of a command of our program about the configuration."""
    command = [args.program, *words, "--config", args.config, *args.fields, "--json"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode not in (0, 3):  # 3: does not fit into memory
        sys.exit(f"convergence.py: {' '.join(command)}: {found.stderr.strip()}")
    return json.loads(found.stdout)


def size(args, config):
    """Steps of a run of --tokens-per-parameter."""
    t = config["training"]
    rows = t["global_batch_size"] if t["global_batch_size"] > 0 else t["local_batch_size"]
    parameters = int(re.search(r"([\d,]+) parameters", ask(args, "estimate")["what"])[1].replace(",", ""))
    return max(1, round(args.tokens_per_parameter * parameters / (rows * t["seq_len"])))


def folder_of(args, kind, name):
    return args.out / kind / re.sub(r"\W+", "_", name)


def command(args, run, folder):
    interval = args.finish if any(r.parent == run.name for r in args.table) else 1000000
    fields = [args.program, "train", "--config", args.config, f"--job.dump_folder={folder}", f"--training.device={args.device}",
              "--training.minutes=0", f"--model.hf_assets_path={args.out}/tokenizer", "--checkpoint.enable=true",
              f"--checkpoint.interval={interval}"]
    if args.steps:
        fields += [f"--training.steps={args.steps}", f"--validation.freq={args.steps}", f"--metrics.log_freq={max(1, args.steps // 32)}"]
    if args.text:
        fields += ["--training.dataset=jsonl", f"--training.dataset_path={args.out}/text.jsonl"]
    return fields + run.recipe.split() + run.train.split() + args.fields


def read(folder):
    curve, loss, bits = [], None, None
    for line in open(folder / "metrics.jsonl"):
        record = json.loads(line)
        if record["kind"] == "train":
            curve.append([record["step"], round(record["loss_metrics/global_avg_loss"], 4)])
        elif record["kind"] == "validate":
            loss, bits = record["validation_metrics/loss"], record.get("validation_metrics/bits_per_byte")
    return {"curve": curve, "loss": loss, "bits_per_byte": bits}


def loss_of(results, run):
    return results.get(run.name, {}).get("loss") if run else None


def table(results, runs):
    base = loss_of(results, runs[0])
    lines = ["| run | validation loss | against bf16, same seed | bar | seconds |", "|---|--:|--:|--:|--:|"]
    for run in runs:
        r = results.get(run.name)
        if r is None:
            continue
        if r["loss"] is None:
            lines.append(f"| {run.name} | failed | | | |")
            continue
        above = f"{100 * (r['loss'] / base - 1):+.2f}%" if base and run.scheme != "none" else ""
        lines.append(f"| {run.name} | {r['loss']:.4f} | {above} | {f'{run.bar}%' if run.bar else ''} | {r['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def attribution_table(results, runs):
    """Each run beside bfloat16's with the same seed, learning rate and warm-up, and the share of its recipe's gap that it recovers."""
    plain = {(r.scheme, r.train): r for r in runs if r.group in ("recipe", "seed", "rate")}
    gaps, lines = {}, []
    for group in GROUPS:
        rows = []
        for run in runs:
            loss, reference, base = (loss_of(results, r) for r in (run, plain[("none", run.train)], plain[(run.scheme, run.train)]))
            if run.group != group or run.name not in results:
                continue
            if loss is None:
                rows.append(f"| {run.name} | failed | | | | |")
                continue
            compared = reference and run.scheme != "none"
            if compared and group in ("recipe", "seed"):
                gaps.setdefault(run.scheme, []).append(100 * (loss / reference - 1))
            above = f"{loss - reference:+.4f} | {100 * (loss / reference - 1):+.2f}%" if compared else "|"
            recovers = f"{100 * (base - loss) / (base - reference):.0f}%" if compared and base and base != loss and base != reference else ""
            rows.append(f"| {run.name} | {loss:.4f} | {above} | {recovers} | {results[run.name]['seconds']:.0f} |")
        if rows:
            lines += ["", f"| {group} | validation loss | above bf16, nats | | of the recipe's gap it recovers | seconds |",
                      "|---|--:|--:|--:|--:|--:|", *rows]
    seeds = [loss for r in runs if r.scheme == "none" and r.group in ("recipe", "seed") if (loss := loss_of(results, r))]
    if len(seeds) > 1:
        lines += ["", f"{len(seeds)} seeds of bf16 differ by up to {100 * (max(seeds) / min(seeds) - 1):.2f}%."]
    best = {s: min((loss, r.name) for r in runs if r.scheme == s and r.group in ("recipe", "rate") if (loss := loss_of(results, r)))
            for s in gaps.keys() | {"none"} if any(r.scheme == s and r.group == "rate" and loss_of(results, r) for r in runs)}
    for name, (loss, run) in sorted(best.items()):
        above = f": {loss - best['none'][0]:+.4f} nats above bf16's best" if name != "none" and "none" in best else ""
        lines += ["", f"Best learning rate and warm-up: {run}, {loss:.4f}{above}."]
    lines += [""] if best else []
    for name, found in gaps.items():
        spread = f", standard deviation {statistics.stdev(found):.2f}%" if len(found) > 1 else ""
        lines.append(f"{name} lies {statistics.mean(found):+.2f}% above bf16 of the same seed ({len(found)} seeds{spread}).")
    return "\n".join(lines[1:]) + "\n"


def write_text(args):
    path = args.out / "text.jsonl"
    if args.text and not path.exists():
        partial = path.with_suffix(".partial")
        subprocess.run([sys.executable, SOURCE / "tools/make_code_text.py", partial, *args.text], check=True)
        partial.rename(path)


class Worker:
    """A run under way."""

    def __init__(self, args, run, slot):
        self.name, self.slot, self.start = run.name, slot, time.time()
        self.folder = folder_of(args, "run", run.name)
        branch = folder_of(args, "branch", run.parent)
        if run.parent and branch.exists() and not self.folder.exists():
            shutil.copytree(branch, self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        env = dict(os.environ, **({"OMP_NUM_THREADS": str(args.threads)} if args.threads else {}))
        env.setdefault("HALFTONE_CACHE", str(args.out / "cache"))  # the runs share tokens and timings of GEMMs
        if args.gpus:
            env["CUDA_VISIBLE_DEVICES"] = str(slot % args.gpus)
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(command(args, run, self.folder), stdout=log, stderr=subprocess.STDOUT, env=env)

    def seconds(self):
        """With those of earlier calls."""
        spent = self.folder / "seconds"
        return time.time() - self.start + (float(spent.read_text()) if spent.exists() else 0)

    def stop(self, patience):
        """Waits until the run has saved a checkpoint, from which it resumes in another call."""
        try:
            self.process.wait(max(0, patience))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def result(self, args):
        r = {"seconds": round(self.seconds(), 1), "curve": [], "loss": None, "bits_per_byte": None, "steps": args.steps}
        if self.process.returncode == 0:
            r.update(read(self.folder))
            step = f"checkpoint/step-{args.finish}"
            if (self.folder / step).exists() and any(q.parent == self.name for q in args.table):
                branch = folder_of(args, "branch", self.name)
                shutil.copytree(self.folder / step, branch / step)
                (branch / "seconds").write_text(str(FINISH * r["seconds"]))
        else:
            shutil.copy(self.folder / "log", args.out / f"{self.folder.name}.log")
        shutil.rmtree(self.folder)
        return r


def train(args, queue, results, keep):
    """Runs what is queued until it is done or the time is over. A run starts if the longest one of its scheme so far fits into the time."""
    running = []
    left = lambda: args.seconds - (time.time() - BEGIN)

    def fits(run):
        scheme_of = {r.name: r.scheme for r in args.table}
        known = [(scheme_of.get(n) == run.scheme, r["seconds"]) for n, r in results.items() if r["loss"] is not None]
        share = 1 - FINISH if folder_of(args, "branch", run.parent).exists() and run.parent else 1
        return left() > share * max((s for same, s in known if same), default=max((s for _, s in known), default=0))

    def waits(run):
        return run.parent and run.parent in [r.name for r in queue] + [w.name for w in running]

    while queue or running:
        # The first run starts alone: it builds the tokenizer that the others read.
        ready = (args.out / "tokenizer" / "tokenizer.json").exists() or not running
        following = next((r for r in queue if not waits(r) and fits(r)), None) if ready and len(running) < args.slots else None
        if left() > 0 and following:
            queue.remove(following)
            running.append(Worker(args, following, min(set(range(args.slots)) - {w.slot for w in running})))
            continue
        if not running:
            break
        time.sleep(0.3)
        if left() <= 0:
            for w in running:
                if w.process.poll() is None:
                    w.process.send_signal(signal.SIGTERM)
        over = time.time() + 25
        for w in list(running):
            if left() <= 0 and w.process.poll() is None:
                w.stop(over - time.time())
            if w.process.poll() is None:
                continue
            running.remove(w)
            if w.process.returncode in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM) and left() <= 0:
                spent = w.seconds()
                (w.folder / "seconds").write_text(str(spent))
                print(f"{w.name}: stopped after {spent:.0f} s, the time is over", flush=True)
                continue
            results[w.name] = w.result(args)
            print(f"{w.name}: {results[w.name]['loss']} after {results[w.name]['seconds']:.0f} s", flush=True)
            keep()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--config", required=True)
    parser.add_argument("--program", default="build/release/bin/halftone")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--slots", type=int, default=1, help="runs side by side, over all GPUs")
    parser.add_argument("--gpus", type=int, help="GPUs to spread the slots over")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of a run")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="start no run that would outlast this time; runs that do save a checkpoint, within 30 s more")
    parser.add_argument("--runs", help="names with semicolons between them")
    parser.add_argument("--only", default="", help="regular expression that names match")
    parser.add_argument("--attribute", action="store_true", help="where the loss of the 4-bit recipes goes")
    parser.add_argument("--order", default="", help=f"groups of --attribute that start first, of {', '.join(GROUPS)}")
    parser.add_argument("--tokens-per-parameter", type=float, help="length of the runs; the schedule, and the steps that recipes name, with it")
    parser.add_argument("--text", nargs="+", help="folders of Python sources to train on (tools/make_code_text.py)")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:cut])
    args.fields = sys.argv[cut + 1:]
    config = ask(args, "config")
    args.steps = size(args, config) if args.tokens_per_parameter else None
    args.finish = round(FINISH * (args.steps or config["training"]["steps"]))
    args.table = attribution(config, (args.steps or config["training"]["steps"]) / config["training"]["steps"]) if args.attribute else RECIPES
    runs = {r.name: r for r in args.table}
    wanted = args.runs.split(";") if args.runs else list(runs)
    for name in wanted:
        if name not in runs:
            sys.exit(f"convergence.py: unknown run '{name}'; choose from {', '.join(runs)}")
    order = args.order.split(",") if args.order else []
    for group in order:
        if group not in GROUPS:
            sys.exit(f"convergence.py: --order: unknown group '{group}'; choose from {', '.join(GROUPS)}")
    order += [g for g in GROUPS if g not in order]
    args.out.mkdir(parents=True, exist_ok=True)
    store = args.out / "convergence.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    other = next((n for n, r in results.items() if r.get("steps") != args.steps), None)
    if other:
        sys.exit(f"convergence.py: {store}: expected runs of {args.steps or 'the configured'} steps, found '{other}' of "
                 f"{results[other].get('steps') or 'the configured'}; choose another folder")
    queue = [runs[n] for n in wanted if re.search(args.only, n) and loss_of(results, runs[n]) is None]
    if args.attribute:
        queue.sort(key=lambda r: order.index(r.group))

    def keep():
        store.write_text(json.dumps(results))
        text = attribution_table(results, args.table) if args.attribute else table(results, args.table)
        (args.out / "convergence.md").write_text(text)
        return text

    write_text(args)
    train(args, queue, results, keep)
    print(keep())
    if queue:
        print(f"{len(queue)} runs are left: the same command goes on")
    sys.exit(any(r["loss"] is None for r in results.values()))


if __name__ == "__main__":
    main()
