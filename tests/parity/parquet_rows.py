"""Parquet files of many shapes, written by pyarrow, give the rows of training that a plain reference makes from pyarrow's own reading of
them; conversations give the ids of the text that jinja2 renders; rows without a document are named."""
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from _program import path_of
from _rows import TOKENIZER, check_rows, encoder, load_tokenizer, program_rows

try:
    import jinja2
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    encode = encoder()
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

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


def column(table, key):
    """Rows of a column, or of a.b."""
    name, *rest = key.split(".") if key not in table.column_names else [key]
    values = table[name].to_pylist()
    for inner in rest:
        values = [None if v is None else v[inner] for v in values]
    return values


def documents_of(folder, key):
    """By pyarrow: files by name, rows in order; empty documents dropped."""
    documents = []
    for path in sorted(folder.glob("*.parquet")):
        for row in column(pq.read_table(path), key):
            if row:
                documents.append(row if isinstance(row, list) else encode(row if isinstance(row, str) else row.decode()))
    return documents


def compare(name, tables, key="text"):
    """tables: (table, options of the writer) of each file."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for i, (table, writer) in enumerate(tables):
            pq.write_table(table, folder / f"{i:03}.parquet", **writer)
        options = {} if key == "input_ids" else {"text_key": key}
        check_rows(name, documents_of(folder, key), "parquet", folder, **options)


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


TEMPLATE = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}\
{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}|{{ m.name }}
{% endfor %}"""


def conversations(rng):
    """Tables of rows, and the messages in OpenAI's form that each row stands for."""
    def turns():
        roles = ["system"] * (rng.random() < 0.3) + ["user", "assistant"] * rng.randrange(1, 4)
        return [{"role": r, "content": rng.choice(WORDS) * rng.randrange(1, 20), "name": rng.choice((None, "x"))} for r in roles]

    rows = [turns() for _ in range(200)]
    kind = pa.list_(pa.struct([(field, pa.string()) for field in ("role", "content", "name")]))
    yield pa.table({"source": ["x"] * 200, "messages": pa.array(rows, kind)}), rows
    parts = [[{**m, "content": [{"type": "text", "text": m["content"]}, {"type": "text", "text": "!"}]} for m in row] for row in rows]
    yield pa.table({"messages": parts}), parts
    questions = [[m for m in row if m["role"] != "system"][:2] for row in rows]
    more = [rng.choice((None, "", "more")) for _ in rows]
    yield (pa.table({"instruction": [q["content"] for q, _ in questions], "input": more, "output": [a["content"] for _, a in questions]}),
           [[{"role": "user", "content": q["content"] + ("\n" + m if m else "")}, {"role": "assistant", "content": a["content"]}]
            for (q, a), m in zip(questions, more)])
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    yield (pa.table({"conversations": [[{"from": names[m["role"]], "value": m["content"]} for m in row] for row in rows]}),
           [[{"role": m["role"], "content": m["content"]} for m in row] for row in rows])


def compare_conversations(rng):
    tokenizer = load_tokenizer()
    bos, eos = (tokenizer.token_to_id(t) for t in ("<|begin_of_text|>", "<|end_of_text|>"))
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    for table, rows in conversations(rng):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            pq.write_table(table, folder / "x.parquet", row_group_size=70)
            (folder / "chat.jinja").write_text(TEMPLATE)
            command = [path_of("halftone"), "tokenize", "--dataset", "parquet", "--dataset_path", str(folder / "x.parquet"), "--tokenizer", TOKENIZER,
                       "--output", str(folder / "out.bin"), "--token_dtype", "uint32", "--loss_on", "all", "--chat_template", str(folder / "chat.jinja")]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            found = np.fromfile(folder / "out.bin", dtype="<u4").tolist()
        expected = []
        for messages in rows:
            known = [{k: v for k, v in m.items() if v is not None} for m in messages]
            expected += [bos, *tokenizer.encode(template.render(messages=known).rstrip("\n"), add_special_tokens=False).ids, eos]
        assert found == expected, f"{table.schema}: ids differ"
        print(f"conversations in {', '.join(table.column_names)}: {len(rows)} rows, {len(expected)} ids are equal")


def refused(name, table, part):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "x.parquet")
        pq.write_table(table, path, row_group_size=2)
        found = program_rows("parquet", path, "concat", 8)
        assert isinstance(found, str) and re.search(part, found), f"{name}: expected {part}, found {found}"
        print(f"{name}: refused with {part!r}")


def main():
    rng = random.Random(43)
    compare("encodings", list(encodings(rng)))
    compare("types", list(types(rng)))
    compare("nested", list(nested(rng)), "row.inner.text")
    compare("one row group", [(pa.table({"text": texts(rng, 5000, 300)}), dict(row_group_size=100000, compression="zstd"))])
    for _ in range(2):
        compare("ids", list(ids(rng)), "input_ids")
    compare_conversations(rng)
    bad = pa.table({"text": pa.array([b"a", b"b", b"c", b"caf\xe9"], pa.binary())})
    refused("not UTF-8", bad, r"x\.parquet: row 3: not UTF-8 at column 4 \(byte 0xE9\)")
    refused("missing column", pa.table({"body": ["a"]}), r'expected a column "text" .* found body \(string\)')
    refused("null among ids", pa.table({"input_ids": [[1], [1, None]]}), r"row 1: null among the ids")


main()
