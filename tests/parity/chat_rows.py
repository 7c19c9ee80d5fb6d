"""Rows of conversations, in JSONL and Parquet and every form that is read, against jinja2 (the environment of transformers'
apply_chat_template), `tokenizers` and a plain packer: ids, labels and positions, place by place."""
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import _program

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import Tokenizer, normalizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

HALFTONE = _program.path_of("halftone")
ASSETS = pathlib.Path(_program.source, "tests/assets/tokenizer")
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
TEMPLATE = """{{ bos_token }}{% for message in messages %}
{{ '<' + message.role + '>' }}
{{ message.content | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<assistant>' }}
{% endif %}
"""
WORDS = "the of a model learns tokens 123 naïve e\u0301te\u0301 漢字 🙂 x=y; it's why? yes no".split(" ")
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
compiled = environment.from_string(TEMPLATE)


def render(messages, prompt=False):
    return compiled.render(messages=messages, add_generation_prompt=prompt, bos_token=BOS, eos_token=EOS)


def encode(tokenizer, messages, loss_on):
    """Ids, and whether each begins inside a learned range."""
    text, ranges = render(messages), []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            ranges.append((len(render(messages[:i], True)), len(render(messages[:i + 1]).rstrip("\n"))))
    if loss_on == "last":
        ranges = ranges[-1:]
    text = text.rstrip("\n")
    encoding = tokenizer.encode(text, add_special_tokens=False)
    learned = [loss_on == "all" or any(a <= begin < b for a, b in ranges) for begin, _ in encoding.offsets]
    ids = encoding.ids
    if ids[-1] != tokenizer.token_to_id(EOS):
        ids, learned = ids + [tokenizer.token_to_id(EOS)], learned + [loss_on == "all" or bool(ranges) and ranges[-1][1] >= len(text)]
    return ids, learned


def pairs_of(ids, learned):
    return [(a, b if l else -100) for a, b, l in zip(ids, ids[1:], learned[1:])]


def pack(documents, packing, size):
    """Lists of documents of a row. All documents fit into one window of best_fit."""
    kept = [(d if packing == "first_fit" else d[:size]) for d in documents]
    kept = [d for d in kept if d and len(d) <= size and any(label != -100 for _, label in d[:size])]
    if packing == "none":
        return [[d] for d in kept]
    if packing == "first_fit":
        rows, still = [], []
        for d in kept:
            row = next((r for r in still if sum(map(len, r)) + len(d) <= size), None)
            if row is None:
                if len(still) == 8:
                    rows.append(still.pop(0))
                row = []
                still.append(row)
            row.append(d)
        return rows + still
    rows = []  # [longest item, time of the last change, items]
    for time, i in enumerate(sorted(range(len(kept)), key=lambda i: -len(kept[i]))):
        room = lambda row: size - sum(len(kept[k]) for k in row[2])
        fits = [row for row in rows if room(row) >= len(kept[i])]
        row = min(fits, key=lambda row: (room(row), -row[1])) if fits else [i, 0, []]
        if not fits:
            rows.append(row)
        row[1] = time
        row[2].append(i)
    return [[kept[i] for i in sorted(row[2])] for row in sorted(rows, key=lambda row: row[0])]


def expected_rows(documents, packing, size):
    out = []
    for row in pack(documents, packing, size):
        places = [(token, label, position) for d in row for position, (token, label) in enumerate(d)]
        places += [(0, -100, 0)] * (size - len(places))
        out.append([list(column) for column in zip(*places)])
    return out


def conversation(rng):
    text = lambda: " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 14)))
    messages = [{"role": "system", "content": text()}] if rng.random() < 0.3 else []
    for _ in range(rng.randrange(1, 5)):
        messages += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
    return messages + ([{"role": "user", "content": text()}] if rng.random() < 0.2 else [])


def in_form(messages, form):
    if form == "openai":
        return {"messages": messages}
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    return {"conversations": [{"from": names[m["role"]], "value": m["content"]} for m in messages]}


def halftone_rows(folder, data, tokenizer, packing, size, loss_on, count):
    config, figures = folder / "run.toml", folder / "rows.json"
    config.write_text(f"""
[model]
hf_assets_path = "{tokenizer}"
[training]
dataset = "{'parquet' if data.suffix == '.parquet' else 'jsonl'}"
dataset_path = "{data}"
seq_len = {size}
[training.dataloader]
packing = "{packing}"
loss_on = "{loss_on}"
""")
    command = [HALFTONE, "data", "--config", str(config), "--rows", str(count), "--json", str(figures), "--threads", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())["first_rows"]
    return [[row["tokens"], row["labels"], row["positions"]] for row in rows]


def main():
    rng, compared = random.Random(5), 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for nfc in (False, True):
            assets = folder / f"tokenizer{int(nfc)}"
            shutil.copytree(ASSETS, assets)
            (assets / "chat_template.jinja").write_text(TEMPLATE)
            tokenizer = Tokenizer.from_file(str(assets / "tokenizer.json"))
            if nfc:
                tokenizer.normalizer = normalizers.NFC()
                tokenizer.save(str(assets / "tokenizer.json"))
            for form in ("openai", "sharegpt"):
                conversations = [conversation(rng) for _ in range(120)]
                rows = [in_form(messages, form) for messages in conversations]
                jsonl, parquet = folder / f"{form}{int(nfc)}.jsonl", folder / f"{form}{int(nfc)}.parquet"
                jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
                pq.write_table(pa.Table.from_pylist(rows), parquet, row_group_size=37)
                for packing, loss_on in (("best_fit", "assistant"), ("first_fit", "last"), ("none", "assistant"), ("best_fit", "all")):
                    size = 96 if loss_on != "all" else 400  # without a mask, best_fit cuts longer documents
                    documents = [pairs_of(*encode(tokenizer, m, loss_on)) for m in conversations]
                    want = expected_rows(documents, packing, size)
                    for data in (jsonl, parquet):
                        got = halftone_rows(folder, data, assets, packing, size, loss_on, len(want))
                        assert len(got) == len(want), f"{data.name} {packing} {loss_on}: {len(got)} rows, expected {len(want)}"
                        for r, (a, b) in enumerate(zip(got, want)):
                            for what, mine, theirs in zip(("ids", "labels", "positions"), a, b):
                                assert mine == theirs, f"{data.name} {packing} {loss_on}: {what} of row {r}: {mine}, expected {theirs}"
                        compared += len(want)
    print(f"{compared} rows of conversations equal jinja2, tokenizers and a plain packer")


main()
