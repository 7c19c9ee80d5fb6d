#!/usr/bin/env python3
"""Bad input through the command line: each case must end with exit status 2 and one line that says what is wrong."""
import json
import os
import subprocess
import sys
import tempfile

program = os.path.join(os.environ["HALFTONE_BIN"], "halftone")
source = os.environ["HALFTONE_SOURCE_DIR"]
if not os.path.exists(program):
    print(f"skipped: {program} is not built")
    sys.exit(77)

MODEL = '{"dim":64,"n_layers":1,"n_heads":4,"n_kv_heads":2,"ffn_dim":64}'
failures = 0


def train(folder, *more):
    return [program, "train", "--config", "recipes/llama3_debug.toml", "--model.overrides", MODEL, "--training.seq_len=64",
            "--training.local_batch_size=2", "--training.steps=2", "--training.device=cpu", f"--job.dump_folder={folder}", *more]


def expect(name, command, text, **options):
    global failures
    run = subprocess.run(command, cwd=source, capture_output=True, text=True, **options)
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    if run.returncode != 2 or len(lines) != 1 or text not in run.stderr:
        failures += 1
        print(f"FAILED {name}: status {run.returncode}, expected 2 and one line with '{text}'; stderr: {run.stderr!r}")
    else:
        print(f"{name}: {lines[0]}")


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
        file = os.path.join(work, "file")
        open(file, "w").close()
        expect("unwritable output folder", train(os.path.join(file, "out")), "dump_folder")
        if not os.path.exists("/dev/nvidiactl"):
            expect("no CUDA device", train(out, "--device", "cuda"), "cuda")
        expect("no checkpoint", [program, "generate", "--checkpoint", work, "--prompt", "x"], work)

        saving = ("--checkpoint.enable", "--checkpoint.interval=1", "--checkpoint.no_last_save_model_only")
        good = os.path.join(work, "good")
        subprocess.run(train(good, *saving), cwd=source, check=True, capture_output=True)
        step = os.path.join(good, "checkpoint", "step-2")
        weights = os.path.join(step, "model-0.safetensors")
        os.truncate(weights, os.path.getsize(weights) // 2)
        expect("truncated checkpoint", [program, "generate", "--checkpoint", step, "--prompt", "x"], "model-0.safetensors")
        # A limit on the size of files stands for a full disk: the save fails, the step before stays.
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
