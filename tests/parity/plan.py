"""halftone plan on a small model on a CPU: the recipe that it writes trains, and its choice keeps to the budget."""
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

from _program import path_of, source

halftone = path_of("halftone")


def run(*args, status=0):
    done = subprocess.run([halftone, *args], capture_output=True, text=True, cwd=work)
    if done.returncode != status:
        sys.exit(f"{args[0]}: expected status {status}, found {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def number(pattern, text):
    found = re.search(pattern, text)
    if not found:
        sys.exit(f"expected {pattern} in:\n{text}")
    return float(found.group(1))


with tempfile.TemporaryDirectory() as work:
    draw = random.Random(1)
    rows = [300 + draw.randrange(200) for _ in range(64 * 1024)]
    with open(os.path.join(work, "rows.bin"), "wb") as file:
        file.write(struct.pack(f"<{len(rows)}H", *rows))
    options = ["--config", f"{source}/recipes/llama3_debug.toml", "--model.hf_assets_path", f"{source}/tests/assets/tokenizer",
               '--model.overrides={"dim":128,"n_layers":2,"n_heads":4,"n_kv_heads":2,"ffn_dim":384}', "--training.dataset=bin",
               "--training.dataset_path=rows.bin", "--training.local_batch_size=2", "--training.seq_len=127", "--training.device=cpu",
               "--debug.seed=1", "--validation.enable=false"]

    # Without a budget nothing may lose; every layer stays in bf16.
    text = run("plan", *options, "--steps=4", "--loss-budget=0", "--candidates=mxfp4,int8", "--out=none.yaml")
    assert number(r"The plan, predicted: .* loss \+(\S+)%", text) == 0, text
    assert "scheme: bf16" in open(os.path.join(work, "none.yaml")).read()
    assert "Energy: not predicted, on a CPU it is not measured" in text, text

    # The candidates of this machine by the capability table, and a budget that every format keeps.
    text = run("plan", *options, "--steps=4", "--loss-budget=100", "--out=all.yaml")
    lines = {line.split()[0]: line.split() for line in text.splitlines() if len(line.split()) > 9}
    for scheme, layers in (("int8", 14), ("fp8_rowwise", 14), ("mxfp4", 14), ("nvfp4", 14)):
        assert lines[scheme][2] == str(layers), lines[scheme]
    loss = {scheme: float(line[5].rstrip("%")) for scheme, line in lines.items() if line[5].endswith("%")}
    assert 0 < loss["int8"] < loss["fp8_rowwise"] < loss["nvfp4"] < loss["mxfp4"], loss
    assert 30 < float(lines["int8"][6]) < 60 and float(lines["mxfp4"][10].rstrip("%")) > 1, lines  # dB; underflowed

    # A budget between int8's loss and that of the four-bit formats.
    budget = 10 * loss["int8"]
    text = run("plan", *options, "--steps=4", f"--loss-budget={budget}", "--candidates=int8,mxfp4", "--out=some.yaml")
    assert number(r"The plan, predicted: .* loss \+(\S+)%", text) <= budget + 0.005, text
    predicted = number(r"The plan, predicted: .* speed-up (\S+),", text)
    assert predicted >= 1, text
    number(r"Measured with it: step \S+ ms, speed-up (\S+)", text)
    print("candidates:", ", ".join(f"{scheme} {loss[scheme]}%" for scheme in loss))

    # The recipe trains, and each layer that it names has its scheme.
    yaml = open(os.path.join(work, "all.yaml")).read()
    named = dict.fromkeys(re.findall(r"- (layers\S+)", yaml))
    text = run("train", *options, "--training.steps=3", "--quantize.scheme=none", "--quantize.recipe=all.yaml",
               "--model.print_after_conversion", "--job.dump_folder=run")
    assert "step:  3" in text, text
    for layer in named:
        scheme = re.search(rf"scheme: (\w+)(?:(?!scheme:)[\s\S])*- {re.escape(layer)}\n", yaml).group(1)
        assert re.search(rf"{re.escape(layer)}\b.*{scheme}", text), (layer, scheme, text)
    print(f"{len(named)} layers of the plan train in its formats")

    # Refusals, one line each.
    for more, words in ((["--speedup=50", "--candidates=int8"], "--speedup 50: at most"), (["--speedup=x"], "--speedup: expected a number"),
                        (["--candidates=int9"], "did you mean int8"), (["--loss-budget"], "expected a value after it"),
                        (["--out=nowhere/plan.yaml"], "cannot be written")):
        text = run("plan", *options, "--steps=4", *more, status=2)
        assert words in text, (more, text)
    print("refusals say what to do")
