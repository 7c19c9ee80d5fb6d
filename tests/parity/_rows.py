"""Rows of training as a plain reference makes them from documents of ids (shared/platform.md 6.2), and as our program makes them."""
import subprocess
import tempfile

import numpy as np

from _program import path_of, source

IGNORED = -100
TOKENIZER = f"{source}/tests/assets/tokenizer"


def load_tokenizer():
    from tokenizers import Tokenizer
    return Tokenizer.from_file(f"{TOKENIZER}/tokenizer.json")


def encoder():
    """A function from a text to the ids of a document, with BOS and EOS."""
    tokenizer = load_tokenizer()
    bos, eos = (tokenizer.token_to_id(t) for t in ("<|begin_of_text|>", "<|end_of_text|>"))
    return lambda text: [bos, *tokenizer.encode(text, add_special_tokens=False).ids, eos]


def concat(documents, length):
    """Windows of length + 1 tokens, one after the other."""
    stream = [i for d in documents for i in d]
    rows = []
    for at in range(0, len(stream) - length, length + 1):
        window = stream[at:at + length + 1]
        rows.append((window[:-1], window[1:], list(range(length))))
    return rows


def pairs(document):
    return list(zip(document[:-1], document[1:]))


def positions_of(owners):
    """Of the places of a row: counted from the first one of the same document."""
    out = []
    for i, owner in enumerate(owners):
        out.append(out[-1] + 1 if i > 0 and owners[i - 1] == owner else 0)
    return out


def concat_documents(documents, length):
    """Pairs of each document, one after the other, in rows of `length`; what is left is dropped."""
    stream = [(number, *pair) for number, d in enumerate(documents) for pair in pairs(d)]
    rows = []
    for at in range(0, len(stream) // length * length, length):
        owners, tokens, labels = zip(*stream[at:at + length])
        rows.append((list(tokens), list(labels), positions_of(owners)))
    return rows


def first_fit(documents, length, bins=8):
    """Pairs of whole documents: into the oldest open row with room, else into a new one; with `bins` open the oldest is closed first."""
    rows, opened = [], []
    for document in documents:
        own = pairs(document)
        if not own or len(own) > length:
            continue
        row = next((r for r in opened if sum(map(len, r)) + len(own) <= length), None)
        if row is None:
            if len(opened) == bins:
                rows.append(opened.pop(0))
            row = []
            opened.append(row)
        row.append(own)
    out = []
    for row in rows + opened:
        flat = [pair for own in row for pair in own]
        left = length - len(flat)
        positions = [i for own in row for i in range(len(own))]
        out.append(([p[0] for p in flat] + [0] * left, [p[1] for p in flat] + [IGNORED] * left, positions + [0] * left))
    return out


PACKINGS = {"concat": concat, "concat_documents": concat_documents, "first_fit": first_fit}


def program_rows(dataset, path, packings, length, **options):
    """Standard output of our program: the log, then int32 [rows, 3, length] (tokens, labels, positions) of each packing. Or its error line."""
    with tempfile.TemporaryDirectory() as cache:
        command = [path_of("rows"), dataset, str(path), TOKENIZER, cache, packings, str(length), *(f"{k}={v}" for k, v in options.items())]
        done = subprocess.run(command, capture_output=True)
    if done.returncode:
        return done.stderr.decode().strip().splitlines()[-1]
    return done.stdout


def check_rows(name, documents, dataset, path, length=64, **options):
    """Every packing of a source against the reference."""
    expected = {p: np.array(reference(documents, length), dtype=np.int32).reshape(-1, 3, length) for p, reference in PACKINGS.items()}
    found = program_rows(dataset, path, ",".join(PACKINGS), length, **options)
    assert isinstance(found, bytes), f"{name}: {found}"
    size = sum(rows.nbytes for rows in expected.values())
    assert len(found) >= size and (len(found) == size or found[:-size].endswith(b"\n")), f"{name}: {len(found)} bytes, expected {size}"
    at = len(found) - size
    for packing, rows in expected.items():
        same = np.array_equal(np.frombuffer(found[at:at + rows.nbytes], dtype="<i4"), rows.ravel())
        assert len(rows) > 0 and same, f"{name}, {packing}: rows differ"
        at += rows.nbytes
    print(f"{name}: {len(documents)} documents, rows of {', '.join(f'{p} ({len(r)})' for p, r in expected.items())} are equal")
