#!/usr/bin/env python3
"""Compares ids and decoded text of `halftone tokenizer` with the `tokenizers` package on random text.

Every tokenizer.json below is loaded by both; the texts mix scripts, code, emoji, combining marks, white space, digits and
contractions. Code points are those assigned in Unicode 14. HALFTONE_PARITY_TEXTS sets the number of texts of each case.
"""
import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
    from tokenizers import Tokenizer
except ImportError:
    print("the tokenizers package is not installed: tools/setup.sh installs requirements-test.txt")
    sys.exit(77)

PROGRAM = pathlib.Path(os.environ.get("HALFTONE_BIN", "build/dev/bin")) / "halftone"
TEXTS = int(os.environ.get("HALFTONE_PARITY_TEXTS", "250"))
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

if unicodedata.unidata_version > "14.0.0":  # a newer Python: omit what Unicode 14 lacks
    unicodedata = unicodedata.ucd_3_2_0
ASSIGNED = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
MARKS = [c for c in ASSIGNED if unicodedata.category(c).startswith("M")]
NUMBERS = [c for c in ASSIGNED if unicodedata.category(c).startswith("N")]
SPACES = list(" \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff")
SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x904, 0x939)]
SCRIPTS += [(0xE01, 0xE3A), (0x1100, 0x11FF), (0x3041, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xAD00), (0x10400, 0x1044F), (0x1D400, 0x1D4FF)]
EMOJI = ["\U0001f600", "\U0001f469\u200d\U0001f680", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "5\ufe0f\u20e3", "\U0001f9d1\u200d\U0001f9b0"]
CODE = ["def f(x):\n", "    return x[1:]  # it's\n", "if (a<=b && c!=d) {\r\n", "\t\tfor(;;);\n", "x = {'k': [1, 2.5e-3]}", "<div class=\"a\">", "::std<T>->", "\\n", "//////", "====", "0xFF_u64"]
CONTRACTIONS = ["'s", "'S", "'t", "'RE", "'ve", "'Ll", "'d", "'M", "'\u017f", "'l", "'r\u00e9", "''s", "'\u212a", "'v", "can't", "I'LL"]
ADDED = ["<|a|>", "<|b|>", "<sp ace>", "word", "<L>", "<R>", "<LR>", "Caf\u00e9", "<|a|>x", "n\u0303"]


def random_text(rng):
    parts = []
    for _ in range(rng.choice((0, 1, 2, 5, 12, 30))):
        kind = rng.randrange(12)
        n = rng.choice((1, 1, 2, 3, 7, 20))
        if kind == 0:
            parts.append("".join(rng.choice(SPACES) for _ in range(n)))
        elif kind == 1:
            parts.append(rng.choice(" \n\t") * n)
        elif kind == 2:
            parts.append("".join(rng.choice("0123456789") for _ in range(n)) if rng.random() < 0.7 else "".join(rng.choice(NUMBERS) for _ in range(n)))
        elif kind == 3:
            parts.append("".join(rng.choice(ASSIGNED) for _ in range(n)))
        elif kind == 4:
            parts.append(rng.choice(EMOJI) * rng.choice((1, 1, 3)))
        elif kind == 5:
            parts.append(rng.choice(CODE))
        elif kind == 6:
            parts.append(rng.choice(CONTRACTIONS))
        elif kind == 7:
            parts.append(rng.choice("aeoun\u0915\u05d0\u1100") + "".join(rng.choice(MARKS) for _ in range(rng.choice((1, 2, 4)))))
        elif kind == 8:
            parts.append(rng.choice(ADDED))
        elif kind == 9:
            parts.append("".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(n)))
        else:
            low, high = rng.choice(SCRIPTS)
            parts.append(rng.choice(("", " ")) + "".join(chr(rng.randint(low, high)) for _ in range(n)))
    return "".join(c for c in "".join(parts) if unicodedata.category(c) not in ("Cn", "Cs"))


def halftone(*arguments, lines=None):
    stdin = None if lines is None else "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([PROGRAM, "tokenizer", *map(str, arguments)], input=stdin, capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(f"halftone tokenizer {' '.join(map(str, arguments))} failed: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]] if lines is not None else done.stdout


def byte_level(use_regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, byte_level(False)]}


def added(content, **flags):
    token = {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return token | flags


def cases(base):
    """Name -> tokenizer.json; base is one of ours."""
    size = len(base["model"]["vocab"])
    tokens = [added("<|a|>", special=True), added("<|b|>", special=True, lstrip=True), added("<sp ace>"), added("word", single_word=True)]
    tokens += [added("<L>", lstrip=True, normalized=True), added("<R>", rstrip=True), added("<LR>", lstrip=True, rstrip=True)]
    tokens += [added("Caf\u00e9", normalized=True), added("<|a|>x"), added("n\u0303", normalized=True), added("the", special=True)]
    with_ids = [token | {"id": size + i} for i, token in enumerate(tokens)]
    a = {"id": "<|a|>", "ids": [size], "tokens": ["<|a|>"]}
    b = {"id": "<|b|>", "ids": [size + 1], "tokens": ["<|b|>"]}
    special, text = (lambda name: {"SpecialToken": {"id": name, "type_id": 0}}), {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [special("<|a|>"), text], "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}]}
    template["special_tokens"] = {"<|a|>": a, "<|b|>": b}
    both = copy.deepcopy(template)
    both["single"].append(special("<|b|>"))
    offsets = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    roberta = {"type": "RobertaProcessing", "sep": ["<|b|>", size + 1], "cls": ["<|a|>", size], "trim_offsets": True, "add_prefix_space": False}

    def make(model=None, **fields):
        out = copy.deepcopy(base) | {"added_tokens": [], "post_processor": None} | fields
        out["model"] |= model or {}
        return out

    merges = base["model"]["merges"]
    no_a = {token: i for token, i in base["model"]["vocab"].items() if "a" not in token}
    no_a_merges = [m for m in merges if "a" not in m]
    # Constructs with a different meaning, or none, in PCRE2 than in Oniguruma.
    ruby = [r"[a[bc]]+", r"\p{N}{1,3}+", r"\p{N}{2}?", r"l{,2}", r"\s++$|\s", r"^l|^\s", r"\w+", r"[^\w\s]+", r"\W", r"(?m)e.+", r"\h+", r"\H", r"[\h,]+",
            r" ?[^(\s|[.,!?])]+", r"\u0061+", r"[\s\v]+", r"(?i:THE|[x-z])+", r"(?<=e)\s|a(?!b)", "[\u00e9\u4e00-\u9fa5]{1,2}", r"(?:ab|\d{2,}){2}+"]
    twice = with_ids[:2] + [with_ids[1] | {"lstrip": False, "rstrip": True}]
    return {f"pattern {i}": make(pre_tokenizer=sequence(split(p))) for i, p in enumerate(ruby)} | {
        "an added token twice": make(pre_tokenizer=sequence(split(LLAMA3)), added_tokens=twice),
        "gpt2": make(pre_tokenizer=byte_level(True)),
        "gpt2, prefix space": make(pre_tokenizer=byte_level(True, prefix=True), added_tokens=with_ids),
        "llama3": make(pre_tokenizer=sequence(split(LLAMA3)), added_tokens=with_ids, post_processor=template),
        "llama3, ignore_merges": make({"ignore_merges": True, "merges": merges[: len(merges) // 3]}, pre_tokenizer=sequence(split(LLAMA3))),
        "qwen2, NFC": make(pre_tokenizer=sequence(split(QWEN2)), normalizer={"type": "NFC"}, added_tokens=with_ids, post_processor=offsets),
        "matches kept": make(pre_tokenizer=sequence(split(QWEN2, "Removed", True)), post_processor=roberta, added_tokens=with_ids),
        "o200k": make(pre_tokenizer=sequence(split(O200K)), post_processor={"type": "Sequence", "processors": [offsets, both]}, added_tokens=with_ids),
        "digits, then gpt2": make(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)]}),
        "joined digits": make(pre_tokenizer=sequence({"type": "Digits", "individual_digits": False}, split(r"[\u4e00-\u9fa5]+".encode().decode("unicode_escape")))),
        "removed blanks": make(pre_tokenizer=sequence(split(r"\s+", "Removed"), split("e", "Contiguous"))),
        "merges as pairs": make({"merges": [m.split(" ") for m in merges]}, pre_tokenizer=sequence(split(LLAMA3))),
        "unknown byte": make({"vocab": no_a, "merges": no_a_merges, "unk_token": "!"}, pre_tokenizer=sequence(split(LLAMA3))),
        "fused unknown": make({"vocab": no_a, "merges": no_a_merges, "unk_token": "!", "fuse_unk": True}, pre_tokenizer=byte_level(True)),
        "bytes left out": make({"vocab": no_a, "merges": no_a_merges}, pre_tokenizer=byte_level(True)),
    }


def compare(name, folder, texts):
    """Each start of halftone takes half a second of a processor: both ways of special tokens where the file has some, and decoding, which
    only depends on the vocabulary and the added tokens, not for each pattern."""
    path = folder / "tokenizer.json"
    theirs, file = Tokenizer.from_file(str(path)), json.loads(path.read_text(encoding="utf-8"))
    both = (True, False) if file["added_tokens"] or file["post_processor"] else (False,)
    for special in both:
        ours = halftone("encode", "--tokenizer", folder, "--jsonl", *([] if special else ["--no-special"]), lines=texts)
        for text, ids in zip(texts, ours, strict=True):
            expected = theirs.encode(text, add_special_tokens=special).ids
            if ids != expected:
                at = next((i for i, (x, y) in enumerate(zip(ids, expected)) if x != y), min(len(ids), len(expected)))
                sys.exit(f"{name}: {text!r}\n  ids differ at {at}: ours {ids[at:at+8]}, theirs {expected[at:at+8]} = {theirs.decode(expected[at:at+8])!r}")
    # The package reads the characters of an added token through the byte alphabet when they all belong to it (Caf\u00e9); ours do not.
    plain = [ids for ids in ours if "\ufffd" not in theirs.decode(ids)]
    for skip in () if name.startswith("pattern") else both:
        decoded = halftone("decode", "--tokenizer", folder, "--jsonl", *(["--skip-special"] if skip else []), lines=plain)
        for ids, text in zip(plain, decoded, strict=True):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            if text != expected:
                sys.exit(f"{name}: {ids} decode to {text!r}, theirs {expected!r}")
    tokens = sum(map(len, ours))
    print(f"{name}: {len(texts)} texts, {tokens} ids equal, {0 if name.startswith('pattern') else len(plain)} texts decoded")
    return tokens


def normalised():
    """Every character with a combining class or a decomposition, between marks of other classes, and between jamo."""
    changed = [c for c in map(chr, range(0x110000)) if unicodedata.combining(c) or unicodedata.normalize("NFD", c) != c]
    return ["".join(f"e\u0327{c}\u0302 \u1100{c}\u11a8\U00011935{c} " for c in changed[i : i + 500]) for i in range(0, len(changed), 500)]


def trained_by_the_package(corpus):
    tokenizer = Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1500, special_tokens=["<|a|>", "<|b|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer.to_str()


def main():
    if not PROGRAM.exists():
        print(f"{PROGRAM} is not built: run tools/build dev halftone")
        return 77
    rng = random.Random(int(os.environ.get("HALFTONE_PARITY_SEED", "1")))
    source = pathlib.Path(os.environ.get("HALFTONE_SOURCE_DIR", ".")) / "tests/parity/tokenizer_parity.py"
    code = source.read_text(encoding="utf-8")
    total = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        corpus = [random_text(rng) for _ in range(3000)] + [code]
        for i, text in enumerate(corpus):
            (folder / f"{i}.txt").write_text(text, encoding="utf-8", newline="")
        for pattern in ("gpt2", "llama3", "qwen2"):
            halftone("train", "--files", folder / "*.txt", "--vocab-size", 3000, "--pattern", pattern, "--output", folder / pattern)
            texts = [random_text(rng) for _ in range(TEXTS)]
            total += compare(f"trained by us, {pattern}", folder / pattern, texts + ["<|begin_of_text|>a<|end_of_text|>", code])
        base = json.loads((folder / "llama3" / "tokenizer.json").read_text(encoding="utf-8"))
        written = {name: json.dumps(case) for name, case in cases(base).items()}
        written["trained by the package"] = trained_by_the_package(corpus)
        for name, text in written.items():
            out = folder / ("case_" + name.replace(" ", "_"))
            out.mkdir()
            (out / "tokenizer.json").write_text(text, encoding="utf-8")
            texts = [random_text(rng) for _ in range(TEXTS)] + [code, "", " ", "a" * 5000, " " * 3000, "ab" * 999]
            total += compare(name, out, texts + (normalised() if "NFC" in text else []))
    print(f"tokenizers {tokenizers.__version__}: {total} ids equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
