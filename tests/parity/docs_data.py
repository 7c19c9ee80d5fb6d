#!/usr/bin/env python3
"""Runs every command of the pages on data, as it is written, in a folder with the files that the pages name, and reads their TOML. Training
is cut to two steps of a tiny model; what a page shows as output must be what the program prints. Every recipe loads, and reads the data with
the options that its first lines name."""
import gzip
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from _program import path_of, source

programs = os.path.dirname(path_of("halftone"))
for name in ("moto", "flask", "pyarrow"):
    if importlib.util.find_spec(name) is None:
        print(f"skipped: {name} is not installed")
        sys.exit(77)
import pyarrow as pa
import pyarrow.parquet as pq
from _object_server import Server

PAGES = ("data", "data_formats", "data_streams", "data_places", "data_look", "chats")
SERVER = "http://127.0.0.1:9000"  # of the pages
SMALL = ["--training.steps=2", "--training.seq_len=128", "--training.local_batch_size=2", "--device=cpu", "--metrics.log_freq=1",
         "--debug.seed=1"]
MODEL = ["--model.overrides", '{"dim":32,"n_layers":1,"n_heads":2,"n_kv_heads":2,"ffn_dim":64}']
TEMPLATE = """{{ bos_token }}{% for message in messages %}{{ '<' + message.role + '>' + message.content }}{% if message.role == 'assistant' %}\
{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
failures = []


def blocks(page):
    """Language and text of the fenced blocks of a page; outside of them no line may be a command."""
    text = pathlib.Path(source, "docs", f"{page}.md").read_text()
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
    stray = re.search(r"^ *(\$ )?halftone [a-z]+ --.*", fenced.sub("", text), re.M)
    assert not stray, f"docs/{page}.md: a command outside of a block: {stray[0]}"
    return fenced.findall(text)


def commands(block):
    """Each command with what the block shows as its output: only behind a prompt is that all of it."""
    start = r"(?:\$ )?(?:build/release/bin/|halftone )"
    for found in re.finditer(rf"^({start}.*(?:(?<=\\)\n.*)*)\n((?:(?!{start}).*\n)*)", block, re.M):
        prompt = found[1].startswith("$ ")
        yield found[1].removeprefix("$ ").replace("\\\n", " "), found[2] if prompt else ""


def steady(text):
    """Without times and rates, and blanks at the ends of lines."""
    return [re.sub(r"[\d.]+ s \([\d.,]+ [kMG]?B/s\)", "", line).rstrip() for line in text.strip("\n").splitlines()]


class Checkout:
    """A folder with the files that the pages name, and a server with a bucket."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("recipes", "tests"):
            (folder / name).symlink_to(pathlib.Path(source, name))
        self.texts = [json.loads(line)["text"] for line in pathlib.Path(source, "tests/assets/c4_test/data.json").read_text().splitlines()]
        self.server = Server()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "STORAGE_", "GOOGLE_", "HALFTONE_CACHE"))}
        self.environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
                             "OMP_NUM_THREADS": "2", "COLUMNS": "80", "PATH": f"{programs}:{os.environ['PATH']}"}
        self.tokenizer()
        self.parquet("fineweb/000_00000.parquet", self.texts[:100])
        self.parquet("fineweb/000_00001.parquet", self.texts[100:200])
        self.parquet("data/fineweb/sample/10BT/000_00000.parquet", self.texts[:100])
        for split in ("train", "test"):
            self.parquet(f"data/wiki/en/{split}-00000-of-00001.parquet", self.texts[200:])
        self.write("data/web.jsonl.zst", pa.Codec("zstd").compress(self.lines("body"), asbytes=True))
        self.write("data/code/a.jsonl.zst", pa.Codec("zstd").compress(self.lines("content"), asbytes=True))
        for split in ("train", "validation"):
            self.write(f"c4/en/c4-{split}.00000-of-00001.json.gz", gzip.compress(self.lines("text")))
        self.mds("data/streams")
        self.model("assets/SmolLM2-135M-Instruct")
        chats = "".join(json.dumps({"messages": [{"role": "user", "content": f"How much is {i} and {i}?"},
                                                 {"role": "assistant", "content": f"{i} and {i} is {2 * i}."}]}) + "\n" for i in range(200))
        for name in ("chats.jsonl", "data/chats.jsonl"):
            self.write(name, chats.encode())
        for key, path in (("c4/c4-train.00000-of-00001.json.gz", "c4/en/c4-train.00000-of-00001.json.gz"),
                          ("fineweb/sample/10BT/000_00000.parquet", "fineweb/000_00000.parquet")):
            self.server.put(key, folder / path)

    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def lines(self, key):
        return "".join(json.dumps({key: text}) + "\n" for text in self.texts).encode()

    def parquet(self, name, texts):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": texts}), path)

    def tokenizer(self):
        path = self.folder / "assets/tokenizer"
        shutil.copytree(pathlib.Path(source, "tests/assets/tokenizer"), path)
        config = json.loads((path / "tokenizer_config.json").read_text())
        (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))

    def model(self, name):
        """A folder of Hugging Face, as a run writes it."""
        self.run("files", ["halftone", "train", "--config", "recipes/llama3_debug.toml", "--model.hf_assets_path=assets/tokenizer",
                           "--checkpoint.enable", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only"])
        shutil.move(self.folder / "outputs/checkpoint/step-2", self.folder / name)
        shutil.rmtree(self.folder / "outputs")

    def mds(self, name):
        """A shard of MosaicML streaming with a column of text: a count, offsets, samples; a sample is its size and its bytes."""
        samples = [len(t).to_bytes(4, "little") + t for t in (text.encode() for text in self.texts)]
        at, offsets = 4 * (len(samples) + 2), []
        for sample in [b"", *samples]:
            at += len(sample)
            offsets.append(at.to_bytes(4, "little"))
        shard = len(samples).to_bytes(4, "little") + b"".join(offsets + samples)
        self.write(f"{name}/shard.00000.mds", shard)
        raw = {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}}
        index = {"column_encodings": ["str"], "column_names": ["text"], "column_sizes": [None], "compression": None, "format": "mds",
                 "hashes": [], "raw_data": raw, "samples": len(samples), "size_limit": 1 << 26, "version": 2, "zip_data": None}
        self.write(f"{name}/index.json", json.dumps({"version": 2, "shards": [index]}).encode())

    def run(self, page, words, shown="", pattern=""):
        written = shlex.join(words)
        words = [word.replace(SERVER, f"http://127.0.0.1:{self.server.port}") for word in words]
        train = words[:2] == ["halftone", "train"]
        if train:
            words += SMALL + ([] if "--model.name=hf" in words else MODEL)
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        said = done.stdout + done.stderr
        problem = ""
        if done.returncode != 0:
            problem = f"status {done.returncode}"
        elif not re.search(pattern, said):
            problem = f"expected {pattern}"
        elif train and not re.search(r"step:\S* *2 ", re.sub("\x1b\\[[0-9;]*m", "", said)):
            problem = "no step 2"
        elif "--output" in words and not (self.folder / words[words.index("--output") + 1]).stat().st_size:
            problem = "an empty file"
        elif shown and steady(shown) != steady(done.stdout):
            problem = f"expected as output\n{shown}"
        print(f"{page}: {written}: {problem or 'runs'}")
        if problem:
            failures.append(page)
            print(said[-3000:])

    def read_toml(self, page, number, text):
        """The program knows every key; named sets and sources are read."""
        name = f"{page}{number}.toml"
        self.write(name, text.encode())
        self.run(page, ["halftone", "config", "--config", name])
        small = ["--config", name, "--tokenizer", "assets/tokenizer", "--seq_len", "128", "--data.endpoint_url", SERVER]
        if "[training.sources." in text:
            self.run(page, ["halftone", "data", *small])
            self.run(page, ["halftone", "train", *small[:2], *small[-2:], "--model.flavor=debugmodel",
                            "--model.hf_assets_path=assets/tokenizer", "--job.dump_folder=outputs/mixture"])
        for named in re.findall(r"^\[data\.names\.(\w+)\]", text, re.M):
            self.run(page, ["halftone", "data", *small, "--dataset", named])

    def read_recipes(self):
        named = 0
        for recipe in sorted(pathlib.Path(source, "recipes").glob("*.toml")):
            name = f"recipes/{recipe.name}"
            self.run(name, ["halftone", "config", "--config", name])
            for options in re.findall(r"^# Set (--training\.dataset_path=.*): a copy of allenai/c4", recipe.read_text(), re.M):
                small = ["--tokenizer", "assets/tokenizer", "--seq_len=128"]
                self.run(name, ["halftone", "data", "--config", name, *small, *shlex.split(options)],
                         pattern=f"documents +{len(self.texts)}\n")
                named += 1
            assert "c4/" in recipe.read_text() or 'dataset = "c4"' not in recipe.read_text(), f"{name}: no place of c4"
        return named


def main():
    with tempfile.TemporaryDirectory() as work:
        checkout, count = Checkout(pathlib.Path(work)), 0
        try:
            for page in PAGES:
                before = count
                for number, (language, block) in enumerate(blocks(page)):
                    if language == "toml":
                        checkout.read_toml(page, number, block)
                        continue
                    found = list(commands(block))
                    written = len(re.findall(r"\bhalftone [a-z]+ ", block))
                    assert written == len(found), f"docs/{page}.md: {written} commands, but {len(found)} are found in\n{block}"
                    for command, shown in found:
                        checkout.run(page, shlex.split(command, comments=True), shown)
                    count += len(found)
                assert count > before, f"docs/{page}.md has no command"
            recipes = checkout.read_recipes()
            assert recipes > 0, "no recipe says how to set c4"
        finally:
            checkout.server.close()
        assert not failures, f"commands of {', '.join(sorted(set(failures)))} do not run as written"
        print(f"{count} commands of {len(PAGES)} pages run; {recipes} recipes read c4")


main()
