"""Parquet files of many shapes, written by pyarrow, give the documents that pyarrow reads from them: halftone tokenize against pyarrow and
the `tokenizers` package, id for id, and the same error lines for the rows that hold no document."""
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import _program

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

HALFTONE = _program.path_of("halftone")
TOKENIZER = pathlib.Path(_program.source, "tests/assets/tokenizer")
tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
BOS, EOS = (tokenizer.token_to_id(t) for t in ("<|begin_of_text|>", "<|end_of_text|>"))
WORDS = "the of a model learns tokens 123 naïve 漢字 🙂 \n\t x=y; it's".split(" ")


def texts(rng, rows, longest=60):
    """Of all lengths, with nulls, empty ones and repeats."""
    out = []
    for _ in range(rows):
        kind = rng.random()
        if kind < 0.05:
            out.append(None)
        elif kind < 0.1:
            out.append("")
        elif kind < 0.2 and out:
            out.append(rng.choice(out))
        else:
            out.append(" ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, longest))))
    return out


def tokenize(folder, *options):
    """The ids of halftone's .bin file, and its log."""
    output = folder / "out.bin"
    command = [HALFTONE, "tokenize", "--dataset", "parquet", "--dataset_path", str(folder), "--tokenizer", str(TOKENIZER),
               "--output", str(output), "--token_dtype", "uint32", "--threads", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    return (np.fromfile(output, dtype="<u4") if done.returncode == 0 else None), done.stdout + done.stderr


def column(table, key):
    """Rows of a column, or of a.b."""
    name, *rest = key.split(".") if key not in table.column_names else [key]
    values = table[name].to_pylist()
    for inner in rest:
        values = [None if v is None else v[inner] for v in values]
    return values


def reference(folder, key):
    """The same by pyarrow and `tokenizers`: files by name, BOS and EOS around each text, EOS behind ids; empty documents dropped."""
    ids, documents = [], 0
    for path in sorted(folder.glob("*.parquet")):
        for row in column(pq.read_table(path), key):
            if not row:
                continue
            documents += 1
            if isinstance(row, bytes):
                row = row.decode()
            ids += [BOS, *tokenizer.encode(row, add_special_tokens=False).ids, EOS] if isinstance(row, str) else [*row, EOS]
    return np.array(ids, dtype=np.uint32), documents


def compare(name, tables, key="text", options=()):
    """tables: (table, options of the writer) of each file."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for i, (table, writer) in enumerate(tables):
            pq.write_table(table, folder / f"{i:03}.parquet", **writer)
        expected, documents = reference(folder, key)
        found, log = tokenize(folder, *([] if key == "input_ids" else ["--text_key", key]), *options)
        assert found is not None, f"{name}: {log}"
        assert np.array_equal(found, expected), f"{name}: {len(found)} ids, expected {len(expected)}"
        print(f"{name}: {len(tables)} files, {documents} documents, {len(expected)} ids are equal")


def encodings(rng):
    for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4"):
        for dictionary in (True, False):
            for version in ("1.0", "2.0"):
                table = pa.table({"id": range(300), "text": texts(rng, 300), "score": [0.5] * 300})
                yield table, dict(compression=codec, use_dictionary=dictionary, data_page_version=version, row_group_size=rng.choice((7, 100, 1000)),
                                  data_page_size=rng.choice((256, 4096, 1 << 20)), write_page_checksum=rng.random() < 0.5)
    for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        yield pa.table({"text": texts(rng, 300)}), dict(use_dictionary=False, column_encoding={"text": encoding})


def types(rng):
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()):
        rows = texts(rng, 200)
        yield pa.table({"text": pa.array(rows if "binary" not in str(kind) else [None if r is None else r.encode() for r in rows], kind)}), {}
    yield pa.table({"text": pa.array(texts(rng, 200)).dictionary_encode()}), dict(row_group_size=50)
    yield pa.table({"text": pa.nulls(3)}), {}
    yield pa.table({"text": pa.array([], pa.string())}), {}


def nested(rng):
    rows = [None if rng.random() < 0.1 else {"other": i, "inner": None if rng.random() < 0.1 else {"n": [i], "text": t}}
            for i, t in enumerate(texts(rng, 400))]
    yield pa.table({"text": ["not this"] * 400, "row": rows}), dict(row_group_size=90)


def ids(rng):
    for kind in (pa.int32(), pa.int64(), pa.uint16(), pa.int16(), pa.uint32(), pa.uint64()):
        rows = [None if rng.random() < 0.1 else [rng.randrange(2, 200) for _ in range(rng.randrange(20))] for _ in range(200)]
        yield pa.table({"n": range(200), "input_ids": pa.array(rows, rng.choice((pa.list_, pa.large_list))(kind))}), dict(row_group_size=64)


def refused(name, table, part, options=()):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        pq.write_table(table, folder / "x.parquet", row_group_size=2)
        found, log = tokenize(folder, *options)
        assert found is None and re.search(part, log), f"{name}: expected {part}, found {log}"
        assert len([line for line in log.splitlines() if "x.parquet" in line]) == 1, log
        print(f"{name}: refused with {part!r}")


def main():
    rng = random.Random(43)
    compare("encodings", list(encodings(rng)))
    compare("types", list(types(rng)))
    compare("nested", list(nested(rng)), "row.inner.text")
    compare("one row group", [(pa.table({"text": texts(rng, 5000, 300)}), dict(row_group_size=100000, compression="zstd"))])
    for _ in range(2):
        compare("ids", list(ids(rng)), "input_ids")
    bad = pa.table({"text": pa.array([b"a", b"b", b"c", b"caf\xe9"], pa.binary())})
    refused("not UTF-8", bad, r"x\.parquet: row 3: not UTF-8 at column 4 \(byte 0xE9\)")
    refused("missing column", pa.table({"body": ["a"]}), r'expected a column "text" .* found body \(string\)')
    refused("null among ids", pa.table({"input_ids": [[1], [1, None]]}), r"row 1: null among the ids")


main()
