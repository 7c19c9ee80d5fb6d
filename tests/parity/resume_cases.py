#!/usr/bin/env python3
"""Runs on the CPU that do not go straight on: rollbacks, other steps than the newest, parts that are not loaded, folders that
hold something already. Each case says what must be lost, kept or refused."""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile

from _program import conclude, expect, path_of, source

program = path_of("halftone")
MODEL = {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 64}
ROW = 32  # tokens, one row per step
MODEL_ONLY, FULL = ["--checkpoint.last_save_model_only", "true"], ["--checkpoint.last_save_model_only", "false"]  # the last step


def tokens(path, bad=(), rows=200):
    """Rows that are easy to learn; those of `bad` are noise, counted from 1 as steps are."""
    random.seed(1)
    ids = []
    for row in range(1, rows + 1):
        ids += [random.randrange(300, 1900) for _ in range(ROW)] if row in bad else [300 + i % 4 for i in range(ROW)]
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(ids)}H", *ids))
    return path


class Run:
    def __init__(self, work, name, data, *options, model=MODEL, tokenizer=os.path.join(source, "tests/assets/tokenizer")):
        self.folder = os.path.join(work, name)
        self.command = [program, "train", "--config", "recipes/llama3_debug.toml", "--device", "cpu", "--model.hf_assets_path", tokenizer,
                        "--model.overrides", json.dumps(model), "--training.dataset", "bin", "--training.dataset_path", data,
                        "--training.local_batch_size", "1", f"--training.seq_len={ROW - 1}", "--lr_scheduler.warmup_steps", "2",
                        "--optimizer.lr", "1e-2", "--lr_scheduler.total_steps", "100", "--training.dataloader.shuffle", "false",
                        "--debug.seed", "42", "--debug.deterministic", "--metrics.log_freq", "1", "--checkpoint.enable",
                        "--job.dump_folder", self.folder, *options]

    def __call__(self, *more, status=0, says=""):
        run = subprocess.run(self.command + list(more), cwd=source, capture_output=True, text=True, timeout=60)
        text = run.stdout + run.stderr
        expect(run.returncode == status, f"{self.folder} {more}: status {run.returncode}, expected {status}: {text[-600:]}")
        expect(says in text, f"{self.folder} {more}: expected '{says}' in {text[-600:]}")
        if status == 2:
            expect(len(run.stderr.strip().splitlines()) == 1, f"{self.folder} {more}: more than one line: {run.stderr}")
        return text

    def steps(self):
        return sorted(int(n[5:]) for n in os.listdir(os.path.join(self.folder, "checkpoint")) if n[5:].isdigit())

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def lines(self, kind="train", file="metrics.jsonl"):
        return [line for line in map(json.loads, open(self.path(file))) if line["kind"] == kind]

    def losses(self):
        return [(line["step"], line["loss_metrics/global_avg_loss"]) for line in self.lines()]

    def tensors(self, step):
        folder = self.path("checkpoint", f"step-{step}")
        return {n: open(os.path.join(folder, n), "rb").read() for n in sorted(os.listdir(folder)) if n.endswith(".safetensors")}


def rollbacks(work):
    good, two = tokens(os.path.join(work, "good.bin")), tokens(os.path.join(work, "two.bin"), {24, 25})
    options = ["--training.nonfinite", "rollback", "--training.spike_factor", "2", "--training.steps", "32", "--checkpoint.interval", "4",
               *FULL]
    plain = Run(work, "plain", good, *options)
    plain()
    run = Run(work, "two", two, *options)
    text = run(says="step 24 (first on rank 0)")
    expect(text.count("rolling back to the checkpoint of step 20") == 2, "two rows: expected two rollbacks to step 20")
    expect([s for s, _ in run.losses()] == list(range(1, 33)), "two rows: a step is missing or doubled in metrics.jsonl")
    # Good rows are all alike: without the two bad ones the run equals the plain one.
    expect(run.losses() == plain.losses() and run.tensors(32) == plain.tensors(32), "two rows: the run differs from one that has none")
    after = Run(work, "two_async", two, *options, "--checkpoint.async_mode", "async")
    after()
    expect(after.tensors(32) == plain.tensors(32), "rollbacks while a step is being written")
    none = Run(work, "no_step", two, *options, "--checkpoint.interval", "100")
    none(status=3, says="there is no checkpoint to roll back to")
    seeded = Run(work, "seeded", two, *options, "--checkpoint.interval", "100")
    seeded("--checkpoint.create_seed_checkpoint")
    seeded(says="rolling back to the checkpoint of step 0")
    expect([s for s, _ in seeded.losses()] == list(range(1, 33)), "from step 0: a step is missing or doubled in metrics.jsonl")
    noise = Run(work, "noise", tokens(os.path.join(work, "noise.bin"), set(range(24, 100))), *options)
    noise(status=3, says="10 rollbacks in a row did not help")
    # The running median is part of the run's state: a restart rejects the same steps as the uninterrupted run.
    skip = ["--training.nonfinite", "skip"]
    straight, restarted = Run(work, "straight", two, *options, *skip), Run(work, "restarted", two, *options, *skip)
    straight(says="update skipped")
    restarted("--training.steps", "22"), restarted(says="update skipped")
    expect(restarted.tensors(32) == straight.tensors(32), "a restart two steps before bad rows takes what the straight run refuses")
    # De-oscillation that began after the step of a rollback starts anew.
    deosc = ["--quantize.scheme", "mxfp4", "--quantize.deosc_step", "22", "--quantize.deosc_period", "3"]
    a, b = Run(work, "deosc_good", good, *options, *deosc), Run(work, "deosc", two, *options, *deosc)
    a(), b()
    expect(a.tensors(32) == b.tensors(32), "de-oscillation after a rollback")


def other_steps(work):
    good = tokens(os.path.join(work, "good.bin"))
    options = ["--checkpoint.interval", "5", *FULL]
    run = Run(work, "back", good, *options)
    run("--training.steps", "20")
    first = run.tensors(20)
    run("--training.steps", "8", "--checkpoint.load_step", "5", "--optimizer.lr", "1e-3", says="step-20.aside")
    expect(run.steps() == [5, 8], f"after load_step 5: steps {run.steps()}")
    run("--training.steps", "20", "--optimizer.lr", "1e-3", says="Loaded checkpoint step 8")
    expect(run.tensors(20) != first, "the former course was taken for the new one")
    expect(os.path.isdir(run.path("checkpoint", "step-20.aside")), "what was set aside is gone")
    run("--training.steps", "30", "--checkpoint.load_step", "7", status=2, says="steps there: 5, 8, 10, 15, 20")

    ends = Run(work, "ends", good, "--checkpoint.interval", "5", "--checkpoint.keep_latest_k", "2", *MODEL_ONLY)
    for last in (12, 16, 22):
        ends("--training.steps", str(last))
    expect(ends.steps() == [12, 15, 16, 20, 22], f"keep_latest_k counts full steps alone: {ends.steps()}")
    ends("--training.steps", "30", "--checkpoint.load_step", "22", status=2, says="holds the model only")

    short = Run(work, "short", good, "--training.steps", "6", *MODEL_ONLY)
    text = short()
    expect("another run from these weights" in text and "continue training" not in text, "what can be done next with a model alone")
    short("--training.steps", "9", status=2, says="checkpoint.initial_load_path")
    expect(len(short.losses()) == 6, "a refused start dropped lines of metrics.jsonl")
    more = Run(work, "more", good, "--checkpoint.initial_load_path", short.path("checkpoint", "step-6"), "--training.steps", "3")
    more("--checkpoint.initial_load_model_only", "false", status=2, says="holds the model only")
    more(says="Loaded initial weights")

    whole = Run(work, "whole", good, *options, "--checkpoint.initial_load_path", run.path("checkpoint", "step-15"),
                "--checkpoint.initial_load_model_only", "false", "--optimizer.lr", "1e-3", "--training.steps", "20")
    whole(says="Loaded initial state")
    expect(whole.tensors(20) == run.tensors(20), "a run from another's whole state differs from that run")


def retention(work):
    """What is left of the steps, whatever saved the last one."""
    good, few = tokens(os.path.join(work, "good.bin")), tokens(os.path.join(work, "few.bin"), rows=23)
    keep = ["--checkpoint.interval", "5", "--checkpoint.keep_latest_k", "2", "--training.steps", "30"]
    for name, data, options, left in [
            ("full", good, FULL, [25, 30]),
            ("full_async", good, [*FULL, "--checkpoint.async_mode", "async"], [25, 30]),
            ("model_only", good, MODEL_ONLY, [20, 25, 30]),
            ("hugging_face", good, [*MODEL_ONLY, "--checkpoint.last_save_in_hf"], [20, 25, 30]),
            ("first_step", good, [*FULL, "--checkpoint.enable_first_step_checkpoint", "--training.steps", "5"], [1, 5]),
            ("data_ended", few, [*FULL, "--training.dataloader.repeat", "false"], [20, 23]),
            ("data_ended_model_only", few, [*MODEL_ONLY, "--training.dataloader.repeat", "false"], [20, 23])]:
        run = Run(work, name, data, *keep, *options)
        run()
        expect(run.steps() == left, f"{name}: steps {run.steps()}, expected {left}")
    seeded = Run(work, "seeded", good, *keep, *FULL, "--training.steps", "8")
    seeded("--checkpoint.create_seed_checkpoint")
    expect(seeded.steps() == [0], f"seed checkpoint: {seeded.steps()}")
    seeded()
    expect(seeded.steps() == [5, 8], f"after a seed checkpoint: {seeded.steps()}")


def parts(work):
    good = tokens(os.path.join(work, "good.bin"))
    options = ["--checkpoint.interval", "5", *FULL]
    run = Run(work, "parts", good, *options)
    run("--training.steps", "10")
    shutil.copytree(run.folder, os.path.join(work, "parts_state"))
    run("--training.steps", "14", "--checkpoint.exclude_from_loading", "optimizer,lr_scheduler")
    rates = [line["lr"] for line in run.lines()]
    expect(rates[10] == rates[0] and rates[11] == rates[1], f"without lr_scheduler the rate warms up again: {rates[9:13]}")
    anew = Run(work, "parts_state", good, *options)
    anew("--training.steps", "10", "--checkpoint.exclude_from_loading", "train_state", says="step-10.aside")
    expect(anew.steps() == [5, 10] and len(anew.losses()) == 10, f"without train_state the steps are counted anew: {anew.steps()}")
    expect(len(anew.lines(file="metrics-1.jsonl")) == 10, "metrics of the former count are lost")

    other = Run(work, "parts", good, *options, model=MODEL | {"rope_theta": 1000.0, "n_heads": 4})
    text = other("--training.steps", "20", status=2, says="was trained as another model")
    expect("model.overrides.n_heads is 4, it was 2" in text and "rope_theta is 1000.0, it was 500000.0" in text, f"which differences: {text}")
    run("--training.steps", "15", "--debug.seed", "43", says="debug.seed = 43 is ignored")

    plain, codes = Run(work, "mxfp4", good, *options), Run(work, "codes", good, *options)
    plain("--training.steps", "2", "--quantize.scheme", "mxfp4")
    codes("--training.steps", "2", "--quantize.scheme", "int8_weight")
    plain("--training.steps", "3", "--quantize.scheme", "bitnet", status=2, says="that this run's recipe adds (layers.0.")
    plain("--training.steps", "3", "--quantize.scheme", "int8", says='quantize.scheme is "int8", it was "mxfp4"')
    plain("--training.steps", "4", "--model.converters", "quantize.linear.float8",
          says='model.converters is ["quantize.linear.float8"], it was []')
    for scheme in ("none", "int8", "int4_weight"):
        codes("--training.steps", "3", "--quantize.scheme", scheme, status=2, says="only as codes of int8_weight,")
    codes("--training.steps", "3", "--quantize.scheme", "int8_weight")

    fresh = Run(work, "fresh", good, "--training.steps", "4")
    fresh.command.remove("--checkpoint.enable")
    fresh(), fresh(says="renamed to metrics-1.jsonl")
    expect(len(fresh.losses()) == 4 and len(fresh.lines(file="metrics-1.jsonl")) == 4, "a fresh run took the metrics of another")


def arithmetic(work):
    """A run that goes on in other arithmetic says in which; what its recipe file said is in its folder and in its steps."""
    good = tokens(os.path.join(work, "good.bin"))
    recipe, copy = os.path.join(work, "recipe.yaml"), os.path.join(work, "copy.yaml")

    def write(file, hadamard):
        with open(file, "w") as f:
            f.write("a_stage:\n  b_modifiers:\n    LowPrecisionTrainingModifier:\n"
                    f"      scheme: mxfp4\n      targets: [\"re:.*wq\"]\n      use_hadamard: {hadamard}\n")

    write(recipe, "false"), write(copy, "false")
    run = Run(work, "recipe", good, *FULL)
    run("--training.steps", "2", "--quantize.recipe", recipe)
    expect(open(run.path("recipe.resolved.yaml")).read() == open(recipe).read(), "the run's folder has another recipe than the run")
    expect(run.lines("run")[0]["recipe"] == open(recipe).read(), "metrics.jsonl has another recipe than the run")
    text = run("--training.steps", "3", "--quantize.recipe", copy)
    expect("arithmetic differs" not in text, f"the same recipe elsewhere is called another: {text}")
    write(recipe, "true")
    run("--training.steps", "4", "--quantize.recipe", recipe,
        says=f"arithmetic differs from step-3: {recipe}:3: use_hadamard is true, it was false")
    text = run("--training.steps", "5", says=f'quantize.recipe is "", it was "{recipe}"')
    expect(not os.path.exists(run.path("recipe.resolved.yaml")), "the recipe of a former start stands in the folder of a run without one")
    run("--training.steps", "6", "--training.dtype", "bfloat16", says="its weights lose precision here")
    other = Run(work, "other", good, *FULL, "--checkpoint.initial_load_path", run.path("checkpoint/step-4"),
                "--checkpoint.initial_load_model_only", "false", "--training.steps", "5")
    other(says="arithmetic differs from step-4")


def other_course(work):
    """A run that goes on with other settings says each, with the value before and after."""
    good = tokens(os.path.join(work, "good.bin"))
    run = Run(work, "cosine", good, "--lr_scheduler.decay_type", "cosine", "--lr_scheduler.total_steps", "None", "--checkpoint.interval",
              "5", *FULL)
    expect("this run differs" not in run("--training.steps", "15", says="Training completed"), "a fresh run goes on from nothing")
    shutil.rmtree(run.folder)
    run("--training.steps", "20")
    shutil.copytree(run.folder, run.folder + "_lr")
    text = run("--training.steps", "40", says="this run differs from step-20: training.steps is 40, it was 20")
    rates = [line["lr"] for line in run.lines()]
    expect(f"the learning rate at step 21 is {rates[20]:.4g}, by the former schedule {rates[19]:.4g}" in text,
           f"rates of the two schedules {rates[19:21]}: {text}")
    expect(text.count("this run differs") == 2, f"one line for each difference: {text}")
    expect("this run differs" not in run("--training.steps", "41", "--lr_scheduler.total_steps", "40", "--metrics.log_freq", "2"),
           "a run that goes on as before warns")
    more = Run(work, "cosine_lr", good, "--lr_scheduler.decay_type", "cosine", "--lr_scheduler.total_steps", "None", *FULL)
    text = more("--training.steps", "21", "--lr_scheduler.total_steps", "20", "--optimizer.lr", "8e-2", "--training.max_norm", "inf",
                "--debug.seed", "43", "--training.global_batch_size", "2")
    for line in ("optimizer.lr is 0.08, it was 0.01", 'training.max_norm is "inf", it was 1.0',
                 "the global batch is 2 rows, it was 1 (", "debug.seed = 43 is ignored: the run keeps its own seed, 42"):
        expect(line in text, f"expected '{line}' in {text}")
    # Differently made rows cannot be continued: rejected, unless the data start anew, with a message naming the differences.
    rows = ["--training.steps", "42", "--lr_scheduler.total_steps", "40", "--training.seq_len", "15"]
    run(*rows, status=2, says="the rows are not built as in the checkpoint")
    run(*rows, "--checkpoint.exclude_from_loading", "dataloader", says="differs from step-41: training.seq_len is 15, it was 31")
    sgd = Run(work, "sgd", good, *FULL)
    sgd("--training.steps", "2", "--optimizer.name", "SGD")
    sgd("--training.steps", "3", status=2, says="another optimizer wrote it")
    sgd("--training.steps", "3", "--checkpoint.exclude_from_loading", "optimizer,lr_scheduler",
        says='differs from step-2: optimizer.name is "AdamW", it was "SGD"')


def beginnings_and_ends(work):
    good = tokens(os.path.join(work, "good.bin"))
    full = Run(work, "full", good, *FULL, "--training.steps", "6")
    full()
    before = full.tensors(6)
    full("--checkpoint.create_seed_checkpoint", status=2, says="expected a run without steps")
    expect(full.tensors(6) == before, "a seed checkpoint changed a step")

    rows = tokens(os.path.join(work, "few.bin"), rows=70)
    few = Run(work, "few", rows, "--training.dataloader.repeat", "false", "--training.steps", "150")
    few(says="Ran out of data")
    few(says="Ran out of data")

    tokenizer = os.path.join(work, "own/tokenizer.json")
    shutil.copytree(os.path.join(source, "tests/assets/tokenizer"), os.path.dirname(tokenizer))
    file = Run(work, "file", good, "--training.steps", "2", tokenizer=tokenizer)
    expect("A sample" not in file(says="Try next:"), "a run that asks for no sample writes one")
    shutil.rmtree(file.folder)
    file("--sample.prompt", "Once", "--sample.tokens", "3", says="A sample of what the model writes after `Once`:\n\nOnce")
    nothing = Run(work, "nothing", good, "--training.steps", "3", "--training.nonfinite", "skip", "--training.z_loss", "1e38")
    text = nothing(status=3, says="halftone: no step updated a weight: all 3 updates were skipped")
    expect("Training completed" not in text and nothing.steps() == [3], "a run that learned nothing")
    hugging = Run(work, "hugging", good, "--training.steps", "2", "--checkpoint.last_save_in_hf", *MODEL_ONLY, tokenizer=tokenizer)
    hugging()
    config = json.load(open(hugging.path("checkpoint/step-2/config.json")))
    names = json.load(open(os.path.join(os.path.dirname(tokenizer), "tokenizer_config.json")))
    ids = {t["content"]: t["id"] for t in json.load(open(tokenizer))["added_tokens"]}
    for key in ("bos", "eos"):
        found = config.get(f"{key}_token_id")
        expect(found == ids[names[f"{key}_token"]], f"{key}_token_id of config.json: {found}")

    batches = Run(work, "batches", good, "--training.steps", "3", "--training.global_batch_size", "3")
    batches()
    means = [(x["loss_metrics/global_avg_loss"], x["loss_metrics/global_max_loss"]) for x in batches.lines()]
    expect(all(mean == largest for mean, largest in means), "the largest mean loss of one process is its own")


def sized(work):
    """training.minutes: a run that measures is the run of so many steps, and keeps its length when it goes on."""
    good, file = tokens(os.path.join(work, "good.bin")), os.path.join(work, "sized.toml")
    text = open(os.path.join(source, "recipes/llama3_debug.toml")).read()
    text = re.sub(r"(?m)^steps = \d+.*", "steps = 400\nminutes = 1e-4", text.replace("warmup_steps = 2", "warmup_steps = 40"), count=1)
    with open(file, "w") as out:
        out.write(text)

    def run(name, *options):
        made = Run(work, name, good, "--config", file, "--checkpoint.interval", "50", "--quantize.scheme", "int8", *FULL, *options)
        for option in ("--lr_scheduler.warmup_steps", "--lr_scheduler.total_steps"):
            at = made.command.index(option)
            del made.command[at:at + 2]
        return made

    a, plain = run("sized"), run("plain", "--training.minutes", "0", "--training.steps", "200", "--lr_scheduler.warmup_steps", "20")
    text = a(says="Training takes 200 of 400 steps")
    expect(re.search(r"int8 [\d,]+ ms a step here, bfloat16 [\d,]+, float32 [\d,]+", text), f"what steps take: {text[:3000]}")
    expect("train --config" in text and "--training.steps 400 --job.dump_folder" in text, "the command of the whole run")
    plain()
    expect(a.tensors(200) == plain.tensors(200) and a.losses() == plain.losses(), "a run that measured itself is another than that of its steps")
    resolved = open(a.path("config.resolved.toml")).read()
    saved = json.load(open(a.path("checkpoint/step-200/state.json")))["config"]
    for line in ("steps = 200", "warmup_steps = 20", "minutes = 0.0"):
        expect(re.search(f"(?m)^{line}", resolved), f"config.resolved.toml without '{line}'")
    expect((saved["training"]["steps"], saved["training"]["minutes"], saved["lr_scheduler"]["warmup_steps"]) == (200, 0, 20), "sizes saved")
    text = a(says="run complete at step 200")
    expect("Measuring" not in text, "a complete run measures")
    shutil.rmtree(a.path("checkpoint/step-200"))
    text = a(says="Loaded checkpoint step 150")
    expect("Measuring" not in text and "WARNING" not in text, f"a run that goes on: {text[:3000]}")
    expect(a.tensors(200) == plain.tensors(200) and a.losses() == plain.losses(), "a sized run that goes on ends elsewhere")
    text = a("--training.steps", "230", says="Loaded checkpoint step 200")
    expect("Measuring" not in text and "(20 of warmup)" in text and a.steps()[-1] == 230, f"more steps: {text[:3000]}")
    few = run("few", "--training.steps", "12")
    expect("Measuring" not in few() and few.steps() == [12], "steps of the command line are measured")
    limit = run("limit", "--training.minutes", "1e-4", "--training.steps", "7")
    expect("All 7 steps" in limit() and limit.steps() == [7], "steps and minutes of the command line")


for case in (rollbacks, other_steps, retention, parts, arithmetic, other_course, beginnings_and_ends, sized):
    with tempfile.TemporaryDirectory() as folder:
        case(folder)
    print(case.__name__)
conclude()
