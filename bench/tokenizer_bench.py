#!/usr/bin/env python3
"""Encodes the same documents with `halftone tokenizer bench` and the `tokenizers` package, each on one thread, and prints
both speeds and their ratio; fails when the numbers of ids differ.

  .venv/bin/python bench/tokenizer_bench.py [--program build/release/bin/halftone] [--tokenizer DIR] [--files GLOB] [--max-mb 4]
"""
import argparse
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402 (reads the variables above)

ROOT = pathlib.Path(__file__).resolve().parent.parent


def documents(pattern, limit):
    taken, size = [], 0
    for name in sorted(glob.glob(pattern, recursive=True)):
        text = pathlib.Path(name).read_bytes().decode("utf-8")
        if not text:
            continue
        taken.append(text)
        size += len(text.encode())
        if size >= limit:
            break
    if not taken:
        sys.exit(f"no files match {pattern}")
    return taken, size


def theirs(tokenizer, texts, repeats):
    best, count = float("inf"), 0
    for _ in range(repeats):
        start = time.perf_counter()
        count = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
        best = min(best, time.perf_counter() - start)
    return best, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/release/bin/halftone")
    parser.add_argument("--tokenizer", default=ROOT / "tests/assets/tokenizer")
    parser.add_argument("--files", default=str(ROOT / ".venv/lib/python3*/site-packages/torch/**/*.py"))
    parser.add_argument("--max-mb", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    texts, size = documents(args.files, args.max_mb * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        for i, text in enumerate(texts):
            (pathlib.Path(folder) / f"{i:06}.txt").write_bytes(text.encode())
        command = [args.program, "tokenizer", "bench", "--tokenizer", args.tokenizer, "--files", folder + "/*.txt", "--repeats", str(args.repeats)]
        tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(args.tokenizer) / "tokenizer.json"))
        ours = json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        seconds, count = theirs(tokenizer, texts, args.repeats)
    if count != ours["tokens"]:
        sys.exit(f"the numbers of ids differ: {ours['tokens']} and {count}")
    print(f"{len(texts)} documents, {size / 1e6:.1f} MB, {count} ids from both, best of {args.repeats}, one thread")
    print(f"halftone                {size / ours['seconds'] / 1e6:8.2f} MB/s")
    print(f"tokenizers {tokenizers.__version__:<12} {size / seconds / 1e6:8.2f} MB/s")
    print(f"ratio                   {seconds / ours['seconds']:8.1f}")


if __name__ == "__main__":
    main()
