#!/usr/bin/env python3
"""Rows (ids, labels, positions) of every format but Parquet equal those of a plain reference: files are written by Python, tokenised by the
`tokenizers` package and packed by _rows.py."""
import gzip
import json
import lzma
import os
import pathlib
import random
import struct
import sys
import tempfile

import _program  # noqa: F401

try:
    import numpy as np
    import pyarrow as pa
    import tokenizers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from _rows import check_rows, encoder, program_rows

rng = random.Random(7)
encode = encoder()
WORDS = "the of a model learns tokens 123 naïve 漢字 🙂 \n\t x=y; it's \"quoted\" back\\slash".split(" ")
TEXTS = [" ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 60))) for _ in range(300)]
IDS = [encode(text) for text in TEXTS]


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


CODECS = {"": bytes, ".gz": gzip.compress, ".zst": zstd, ".xz": lzma.compress}


def jsonl(texts, **dump):
    return "".join(json.dumps({"n": i, "meta": {"text": "no"}, "text": t}, **dump) + "\n" for i, t in enumerate(texts)).encode()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def text_formats(folder):
    for suffix, pack in CODECS.items():
        path = write(folder / f"a.jsonl{suffix}", pack(jsonl(TEXTS, ensure_ascii=suffix == ".gz")))
        for dataset in ("jsonl", "auto", "c4"):
            check_rows(f"{dataset} {path.name}", IDS, dataset, path)
        if suffix:  # several members, frames or streams
            half = jsonl(TEXTS)[:5000]
            check_rows(f"two parts of {path.name}", IDS, "jsonl", write(folder / f"b.json{suffix}", pack(half) + pack(jsonl(TEXTS)[5000:])))
        lines = [t.replace("\n", " ").strip() or "x" for t in TEXTS]
        path = write(folder / f"t.txt{suffix}", pack("\n".join(lines).encode()))
        check_rows(f"text {path.name}", [encode(t) for t in lines], "text", path, text_split="line")
        array = json.dumps([{"text": t} for t in TEXTS], indent=rng.choice((None, 1)), ensure_ascii=False).encode()
        check_rows(f"JSON array{suffix}", IDS, "auto", write(folder / f"array.json{suffix}", pack(array)))
    nested = "".join(json.dumps({"row": {"body": t}}) + "\n" for t in TEXTS).encode()
    check_rows("nested text_key", IDS, "jsonl", write(folder / "nested.jsonl", nested), text_key="row.body")
    ids = "".join(json.dumps({"input_ids": d}) + "\n" for d in IDS).encode()
    check_rows("input_ids", IDS, "auto", write(folder / "ids.jsonl.zst", zstd(ids)))
    said = program_rows("jsonl", folder / "nested.jsonl", "concat", 64, text_key="row.text")
    assert "nested.jsonl:1: " in said and "row.body" in said, said
    said = program_rows("auto", write(folder / "cut.jsonl.gz", gzip.compress(jsonl(TEXTS))[:-9]), "concat", 64)
    assert "cut.jsonl.gz: the gzip file is cut short" in said, said


def bin_formats(folder):
    flat = [i for d in IDS for i in d]
    for name, dtype in (("uint16", "<u2"), ("uint32", "<u4")):
        data = np.array(flat, dtype).tobytes()
        check_rows(f"bin {name}", IDS, "auto", write(folder / f"{name}.bin", data), token_dtype=name)
        magic, version = (20240520, 1) if name == "uint16" else (20240801, 7)
        header = np.zeros(256, "<i4")
        header[:3] = magic, version, len(flat)
        path = write(folder / f"llmc_{name}.bin", header.tobytes() + data)
        check_rows(f"bin with the header {magic}", IDS, "bin", path)
        assert "expected" in program_rows("bin", write(folder / "cut.bin", path.read_bytes()[:-2]), "concat", 64)


def write_megatron(prefix, sequences, documents, code, dtype, gap=0):
    """`documents`: numbers of sequences of each document; `gap`: bytes between sequences."""
    offsets, data = [], b""
    for s in sequences:
        offsets.append(len(data))
        data += np.array(s, dtype).tobytes() + bytes(gap)
    first = np.cumsum([0, *documents])
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(first))
    index += np.array([len(s) for s in sequences], "<i4").tobytes() + np.array(offsets, "<i8").tobytes() + first.astype("<i8").tobytes()
    write(prefix.with_name(prefix.name + ".bin"), data)
    return write(prefix.with_name(prefix.name + ".idx"), index)


def megatron(folder):
    sequences, documents, joined = [], [], []
    for d in IDS:
        at = rng.randrange(len(d))
        parts = [d] if rng.random() < 0.5 else [d[:at], d[at:]]
        sequences += parts
        documents.append(len(parts))
        joined.append(d)
    for code, dtype in ((8, "<u2"), (4, "<i4"), (5, "<i8"), (3, "<i2")):
        for gap in (0, 3):
            prefix = folder / f"m{code}_{gap}" / "set"
            write_megatron(prefix, sequences, documents, code, dtype, gap)
            check_rows(f"Megatron {dtype}{', with gaps' if gap else ''}", joined, "megatron", prefix)
    for path in (prefix.parent, str(prefix) + ".idx", str(prefix) + ".bin", str(prefix.parent) + "/*"):
        check_rows(f"Megatron by {pathlib.Path(path).name}", joined, "auto", path)
    index = write_megatron(folder / "bad", sequences, documents, 8, "<u2")
    index.with_suffix(".bin").write_bytes(b"ab")
    assert "leaves its .bin file of 2 bytes" in program_rows("megatron", folder / "bad", "concat", 64)


def write_mds(folder, columns, samples, pack=None, per_shard=90):
    """`columns`: (name, encoding, size or None); `samples`: bytes of each column."""
    shards = []
    for number, at in enumerate(range(0, len(samples), per_shard)):
        encoded = []
        for sample in samples[at:at + per_shard]:
            sizes = [len(c) for c, (_, _, size) in zip(sample, columns) if size is None]
            encoded.append(np.array(sizes, "<u4").tobytes() + b"".join(sample))
        settings = json.dumps({"format": "mds"}).encode()
        offsets = np.cumsum([0, *map(len, encoded)]) + 4 + 4 * (len(encoded) + 1) + len(settings)
        raw = struct.pack("<I", len(encoded)) + offsets.astype("<u4").tobytes() + settings + b"".join(encoded)
        name = f"shard.{number:05}.mds"
        entry = {"column_names": [c[0] for c in columns], "column_encodings": [c[1] for c in columns], "column_sizes": [c[2] for c in columns],
                 "compression": None, "format": "mds", "hashes": [], "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
                 "samples": len(encoded), "size_limit": 1 << 26, "version": 2, "zip_data": None}
        if pack:
            suffix, function = pack
            data = function(raw)
            entry |= {"compression": suffix, "zip_data": {"basename": f"{name}.{suffix}", "bytes": len(data), "hashes": {}}}
            write(folder / f"{name}.{suffix}", data)
        else:
            write(folder / name, raw)
        shards.append(entry)
    write(folder / "index.json", json.dumps({"version": 2, "shards": shards}).encode())
    return folder


def array(ids, dtype, dynamic_type=False, codes={"uint16": 16, "int32": 33, "int64": 65}):
    shape = bytes([1 << 2 | 1]) + struct.pack("<H", len(ids))
    return (bytes([codes[dtype]]) if dynamic_type else b"") + shape + np.array(ids, dtype).tobytes()


def mds(folder):
    texts = [(struct.pack("<q", i), t.encode()) for i, t in enumerate(TEXTS)]
    columns = [("id", "int", 8), ("text", "str", None)]
    for name, pack in (("plain", None), ("zstd", ("zstd", zstd)), ("gz", ("gz", gzip.compress))):
        check_rows(f"MDS text, {name}", IDS, "auto", write_mds(folder / name, columns, texts, pack))
    for encoding, column in (("ndarray:int32", lambda d: array(d, "int32")), ("ndarray:uint16", lambda d: array(d, "uint16")),
                             ("ndarray", lambda d: array(d, "int64", True)), ("bytes", lambda d: np.array(d, "<i8").tobytes())):
        samples = [(column(d), b"{}") for d in IDS]
        path = write_mds(folder / encoding.replace(":", "_"), [("tokens", encoding, None), ("meta", "json", None)], samples)
        check_rows(f"MDS tokens, {encoding}", IDS, "mds", path)
    for part, half in (("a", texts[:100]), ("b", texts[100:])):
        write_mds(folder / "streams" / part, columns, half)
    check_rows("MDS, two streams", IDS, "auto", folder / "streams")
    said = program_rows("mds", write_mds(folder / "jpeg", [("image", "jpeg", None)], [(b"x",)]), "concat", 64)
    assert 'found image (jpeg)' in said, said


def hugging_face(folder):
    train, test = TEXTS[:200], TEXTS[200:]
    expected = {"train": IDS[:200], "test": IDS[200:]}
    named, listed = folder / "named", folder / "listed"
    for split, texts in (("train", train), ("test", test)):
        half = len(texts) // 2
        for i, part in enumerate((texts[:half], texts[half:])):
            write(named / "data" / f"{split}-{i:05}-of-00002.jsonl.zst", zstd(jsonl(part)))
            write(listed / "files" / split[:2] / f"{i}.jsonl", jsonl(part))
    write(named / "README.md", b"---\nlicense: mit\n---\n# A data set\n")
    yaml = "---\nlicense: mit\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: files/tr/*\n  - split: test\n    path:\n" \
           "    - files/te/0.jsonl\n    - files/te/1.jsonl\n- config_name: de\n  data_files: files/te/*.jsonl\ntags: [a]\n---\nText\n"
    write(listed / "README.md", yaml.encode())
    for split, ids in expected.items():
        check_rows(f"Hugging Face folder by names, {split}", ids, "auto", named, split=split)
        check_rows(f"Hugging Face folder by README.md, {split}", ids, "auto", listed, split=split, subset="en")
    said = program_rows("auto", listed, "concat", 64)
    assert "set dataloader.subset to one of de, en" in said, said
    said = program_rows("auto", named, "concat", 64, split="dev")
    assert 'no split "dev"; there is: test, train' in said, said
    hub = folder / "datasets--org--name"
    write(hub / "refs" / "main", b"abc123")
    for number, (split, texts) in enumerate((("train", train), ("test", test))):
        write(hub / "blobs" / str(number), jsonl(texts))
        link = hub / "snapshots" / "abc123" / f"{split}.jsonl"
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(f"../../blobs/{number}", link)
    check_rows("the hub's cache", expected["test"], "auto", hub, split="test")


with tempfile.TemporaryDirectory() as work:
    for run in (text_formats, bin_formats, megatron, mds, hugging_face):
        run(pathlib.Path(work, run.__name__))
