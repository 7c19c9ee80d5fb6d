#!/usr/bin/env python3
"""Bad input through the command line: each case must end with exit status 2 (a run that diverges: 3) and one line that says what
is wrong."""
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from _program import path_of, source

program = path_of("halftone")

MODEL = '{"dim":64,"n_layers":1,"n_heads":4,"n_kv_heads":2,"ffn_dim":64}'
failures = 0


def train(folder, *more):
    return [program, "train", "--config", "recipes/llama3_debug.toml", "--model.overrides", MODEL, "--training.seq_len=64",
            "--training.local_batch_size=2", "--training.steps=2", "--training.device=cpu", f"--job.dump_folder={folder}", *more]


def expect(name, command, text, status=2, **options):
    global failures
    run = subprocess.run(command, cwd=source, capture_output=True, text=True, **options)
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    if run.returncode != status or len(lines) != 1 or text not in run.stderr:
        failures += 1
        print(f"FAILED {name}: status {run.returncode}, expected {status} and one line with '{text}'; stderr: {run.stderr!r}")
    else:
        print(f"{name}: {lines[0]}")


def bad_output(work):
    """Output that cannot be written, to /dev/full, which is always full."""
    tokenizer = ["--tokenizer", "tests/assets/tokenizer"]
    for words in (["--help"], ["--version"], ["config", "--toml"], ["formats"], ["bench", "--help"], ["bench", "mm", "--help"],
                  ["tokenizer", "encode", *tokenizer, "text"], ["tokenizer", "encode", *tokenizer, "--file", "README.md"],
                  ["tokenizer", "decode", *tokenizer, "5"]):
        command = ["sh", "-c", 'exec "$@" >/dev/full', "sh", program, *words]
        expect(f"full standard output of {words[0]}", command, "standard output cannot be written: No space left on device")
    tokenize = [program, "tokenize", "--dataset_path", "README.md", *tokenizer, "--output"]
    expect("tokens into a folder", [*tokenize, work], "found a folder")
    own = os.path.join(work, "own.txt")
    shutil.copy(os.path.join(source, "README.md"), own)
    expect("tokens over their text", [program, "tokenize", "--dataset_path", own, *tokenizer, "--output", own], "is one of the input files")
    assert open(own, "rb").read() == open(os.path.join(source, "README.md"), "rb").read(), "tokens over their text: it is gone"
    expect("tokens into a device", [*tokenize, "/dev/null"], "found a device")
    for threads in ("-1", "100000"):
        expect(f"{threads} threads", [*tokenize, os.path.join(work, "tokens"), "--threads", threads], f"Value {threads} not in range 0 to 4096")


def bad_recipes(work, out):
    """Quantisation that cannot work: the line names the option, the layer, or the line of the recipe file."""
    layer = "layers.0.feed_forward.w1"
    expect("target that is no Linear", train(out, "--quantize.scheme=int8", "--quantize.targets=norm"), "'norm' (int8) matches no Linear")
    table = json.dumps({"int8": ["Linear"], "nvfp4": [layer]})
    expect("two schemes for one layer", train(out, f"--quantize.scheme={table}"), f"{layer} is matched by two schemes, int8 and nvfp4")
    odd = json.dumps(dict(json.loads(MODEL), ffn_dim=72))
    expect("sizes that a recipe cannot take", train(out, f"--model.overrides={odd}", "--quantize.scheme=mxfp4", f"--quantize.targets={layer}"),
           f"{layer} has 64 inputs and 72 outputs, mxfp4 needs multiples of 32")
    expect("option of another scheme", train(out, "--quantize.scheme=int8", "--quantize.use_hadamard"), "quantize.use_hadamard")
    expect("two sources", train(out, "--quantize.scheme=int8", "--model.converters=quantize.linear.mx"), "keep one source")
    expect("converter for experts", train(out, "--model.converters=quantize.grouped_mm.mx", "--quantize.grouped_mm.mx.fqns=experts"), "experts")
    expect("missing recipe file", train(out, f"--quantize.recipe={work}/none.yaml"), "none.yaml")

    yaml = os.path.join(work, "recipe.yaml")
    stage = "training_stage:\n  lpt_modifiers:\n    LowPrecisionTrainingModifier:\n      {%s}\n"
    for name, text, word in [
        ("unknown key in a recipe file", stage % "scheme: mxfp4, use_hadamrd: true", "recipe.yaml:4: unknown argument use_hadamrd"),
        ("unknown scheme in a recipe file", stage % "scheme: mxfp5", "did you mean mxfp4?"),
        ("illegal pair in a recipe file", stage % "scheme: mxfp4, use_hadamard: true, use_2dblock_x: true", "recipe.yaml:4: quantize.use_hadamard"),
        ("two schemes of a recipe file for one layer",
         "a_stage:\n  b_modifiers:\n    LowPrecisionTrainingModifier: {scheme: int8}\n  c_modifiers:\n"
         "    LowPrecisionTrainingModifier: {scheme: mxfp4, targets: [\"re:.*w1\"]}\n",
         f"{layer} is matched by two schemes, int8 and mxfp4"),
        ("target of a recipe file that matches nothing", stage % "scheme: int8, targets: [layers.7.attention.wq]", "layers.7.attention.wq"),
        ("pattern without an end", stage % "scheme: int8, targets: ['re:(']", "quantize.targets: 're:(': not a valid pattern"),
        ("pattern that takes forever", stage % "scheme: int8, targets: ['re:(.*)*(.*)*(.*)*(.*)*(.*)*ww']", "write a simpler pattern"),
        ("post-training modifier", "a_stage: {b_modifiers: {GPTQModifier: {}}}", "GPTQModifier works on a trained model"),
        ("stage without a name", "modifiers: {}", "_stage"),
        ("no YAML", "a_stage: {", "recipe.yaml:1: not YAML"),
        ("quote without an end", stage.replace("{%s}", 'scheme: int8\n      ignore: "output'), "recipe.yaml:5: not YAML: expected a closing"),
        ("alias", "a: &a [x, x]\nb: [*a, *a]\n", "anchor"),
        ("deep nesting", "[" * 5000 + "]" * 5000, "levels of nesting"),
        ("large recipe file", "#" * 100000, "at most 65536 bytes, found 100000"),
        ("duplicate key", "a_stage: {}\na_stage: {}\n", "recipe.yaml:2: the key"),
    ]:
        with open(yaml, "w") as out_file:
            out_file.write(text)
        expect(name, train(out, f"--quantize.recipe={yaml}"), word)
    with open(yaml, "w") as out_file:
        out_file.write(stage % f"scheme: int4, targets: [{layer}]")
    expect("sizes of a recipe file", train(out, f"--model.overrides={odd}", f"--quantize.recipe={yaml}"),
           f"recipe.yaml:3: quantize.targets: {layer} has 64 inputs and 72 outputs, int4 needs multiples of 32")
    for scheme in ["fp8_tensorwise", "fp8_blockwise", "mxfp4", "nvfp4", "int8"]:  # a NaN reaches the loss or the gradients
        expect(f"divergence in {scheme}", train(out, f"--quantize.scheme={scheme}", "--optimizer.lr=1e30", "--optimizer.weight_decay=0",
                                                  "--training.steps=4"),
               "is not finite at step", status=3)
    json_file = os.path.join(work, "recipe.json")
    with open(json_file, "w") as out_file:
        json.dump({"a_stage": {"b_modifiers": {"LowPrecisionTrainingModifier": {"scheme": "int8", "targets": 5}}}}, out_file, indent=1)
    expect("wrong type in a JSON recipe", train(out, f"--quantize.recipe={json_file}"), "recipe.json:6: targets: expected a list of strings")
    expect("unknown name of a format", [program, "formats", "--show", "mxfp5"], "did you mean mxfp4?")


def main():
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out")
        expect("unknown field", train(out, "--training.local_batchsize=3"), "training.local_batch_size")
        expect("wrong type", train(out, "--training.steps=many"), "training.steps")
        expect("missing file", [program, "train", "--config", os.path.join(work, "none.toml")], "none.toml")
        expect("missing data", train(out, "--training.dataset=text", f"--training.dataset_path={work}/*.txt"), work)
        empty = os.path.join(work, "empty.jsonl")
        open(empty, "w").close()
        expect("empty corpus", train(out, "--training.dataset=jsonl", f"--training.dataset_path={empty}"), "holds no document with text")
        odd = os.path.join(work, "odd.bin")
        open(odd, "wb").write(b"\1\0\2")
        expect("truncated .bin", train(out, "--training.dataset=bin", f"--training.dataset_path={odd}"), "odd.bin")
        tokens = os.path.join(work, "tokens.bin")
        open(tokens, "wb").write(b"\xff\xff" * 4096)
        expect("ids beyond the vocabulary", train(out, "--training.dataset=bin", f"--training.dataset_path={tokens}"), "tokens.bin")
        wide = os.path.join(work, "wide.bin")
        open(wide, "wb").write(b"".join(struct.pack("<I", 7 * i % 1900) for i in range(100)))
        expect("uint32 ids as uint16", train(out, "--training.dataset=bin", f"--training.dataset_path={wide}"),
               'wide.bin: every second uint16 is 0 (100 of 100 looked at): these are uint32 ids, set dataloader.token_dtype = "uint32"')
        expect("gradients times 0", train(out, "--training.max_norm=0"), "training.max_norm = 0")
        lines = os.path.join(work, "lines.jsonl")
        open(lines, "w").write('{"text": "good"}\n{"text": "\\ud800"}\n')
        place = "lines.jsonl:2: lone surrogate \\ud800 at column 11"
        expect("lone surrogate", train(out, "--training.dataset=jsonl", f"--training.dataset_path={lines}"), place)
        written = os.path.join(work, "written.bin")
        tokenize = [program, "tokenize", "--dataset", "jsonl", "--dataset_path", lines, "--tokenizer", "tests/assets/tokenizer", "--output",
                    written]
        expect("lone surrogate for a file of tokens", tokenize, place)
        for command in ([*tokenize, "--on_bad_line", "skip"],
                        train(out, "--training.dataset=jsonl", f"--training.dataset_path={lines}", "--training.dataloader.on_bad_line=skip")):
            run = subprocess.run(command, cwd=source, capture_output=True, text=True)
            if run.returncode != 0 or "skipped 1 bad lines" not in run.stdout or place not in run.stdout:
                global failures
                failures += 1
                print(f"FAILED skipped lines: status {run.returncode}: {run.stdout[-600:]}{run.stderr}")
        tokenizer = os.path.join(work, "tokenizer")
        os.mkdir(tokenizer)
        whole = open(os.path.join(source, "tests/assets/tokenizer/tokenizer.json")).read()
        open(os.path.join(tokenizer, "tokenizer.json"), "w").write(whole[: len(whole) // 2])
        expect("truncated tokenizer.json", train(out, f"--model.hf_assets_path={tokenizer}"), "tokenizer.json")
        small = json.dumps(dict(json.loads(MODEL), vocab_size=100))
        expect("mismatched vocabulary", train(out, f"--model.overrides={small}"), "vocab_size")
        expect("batch not divisible", train(out, "--training.global_batch_size=3"), "global_batch_size")
        expect("unknown scheme", train(out, "--quantize.scheme=int9"), "int9")
        expect("target that matches nothing", train(out, "--quantize.scheme=int8", "--quantize.targets=re:nothing"), "nothing")
        several = dict(os.environ, RANK="1", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="29477")
        expect("one of several processes", train(out, "--comm.init_timeout_seconds=1"), "found no store at localhost:29477", env=several)
        expect("estimate in several processes", [program, "estimate", "--config", "recipes/llama3_debug.toml"], "process 1 of 2", env=several)
        huge = json.dumps({"dim": 16384, "n_layers": 126, "n_heads": 128, "n_kv_heads": 8, "ffn_dim": 53248})
        expect("model beyond the memory", train(out, f"--model.overrides={huge}"), "of memory are available")
        packed = os.path.join(work, "packed.txt")
        open(packed, "wb").write(b"\x1f\x8b\x08 zip")
        expect("damaged gzip text", train(out, "--training.dataset=text", f"--training.dataset_path={packed}"), "damaged gzip data at byte 4")
        bad_output(work)
        bad_recipes(work, out)
        file = os.path.join(work, "file")
        open(file, "w").close()
        expect("unwritable output folder", train(os.path.join(file, "out")), "dump_folder")
        if not os.path.exists("/dev/nvidiactl"):
            expect("no CUDA device", train(out, "--device", "cuda"), "cuda")
        expect("no checkpoint", [program, "generate", "--checkpoint", work, "--prompt", "x"], work)

        saving = ("--checkpoint.enable", "--checkpoint.interval=1", "--checkpoint.no_last_save_model_only")
        good = os.path.join(work, "good")
        subprocess.run(train(good, *saving), cwd=source, check=True, capture_output=True)
        expect("other model of a complete run", train(good, *saving, f"--model.overrides={json.dumps(dict(json.loads(MODEL), dim=32))}"),
               "was trained as another model")
        with open(os.path.join(good, ".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            expect("folder of a run that goes on", train(good, *saving), "is in use: ")
        step = os.path.join(good, "checkpoint", "step-2")
        weights = os.path.join(step, "model-0.safetensors")
        os.truncate(weights, os.path.getsize(weights) // 2)
        expect("truncated checkpoint", [program, "generate", "--checkpoint", step, "--prompt", "x"], "model-0.safetensors")
        # A file size limit simulates a full disk: the save fails, the previous step stays.
        full = os.path.join(work, "full")
        subprocess.run(train(full, *saving), cwd=source, check=True, capture_output=True)
        limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *train(full, *saving, "--training.steps=4")]
        expect("disk full while saving", limited, "checkpoint")
        again = subprocess.run(train(full, *saving, "--training.steps=3"), cwd=source, capture_output=True, text=True)
        if again.returncode != 0 or "Loaded checkpoint step 2" not in again.stdout:
            print("FAILED after a full disk: the step before should load")
            sys.exit(1)
    sys.exit(1 if failures else 0)


main()
