#!/usr/bin/env python3
"""Writes the Python sources under some folders as JSON lines, one {"text": ...} per file: the data set of recipes/llama3_12m.toml.

    python3 tools/make_code_text.py outputs/llama3_12m/text.jsonl .venv/lib/python3*/site-packages /usr/lib/python3*

Files are sorted by name. Skipped: repeated files, files that are not UTF-8, and texts of fewer than 200 or more than 400,000 characters.
"""
import glob
import hashlib
import json
import pathlib

from _input import Parser, fail


def texts(folders):
    seen = set()
    for name in sorted(name for folder in folders for name in glob.glob(f"{folder}/**/*.py", recursive=True)):
        try:
            text = pathlib.Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        digest = hashlib.md5(text.encode()).digest()
        if 200 <= len(text) <= 400_000 and digest not in seen:
            seen.add(digest)
            yield text


def main():
    parser = Parser(__doc__)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("folder", nargs="+")
    args = parser.parse_args()
    written = 0
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("w", encoding="utf-8") as out:
            for text in texts(args.folder):
                out.write(json.dumps({"text": text}) + "\n")
                written += 1
    except OSError as error:
        fail(f"cannot write {args.output}: {error.strerror}")
    if written == 0:
        fail(f"expected *.py files of 200 to 400,000 characters under {', '.join(args.folder)}, found none")
    print(f"{args.output}: {written:,} files")


if __name__ == "__main__":
    main()
