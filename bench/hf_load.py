#!/usr/bin/env python3
"""Reading and converting a Hugging Face folder against cat and cp, on this machine's disk.

    bench/hf_load.py FOLDER [--layers 16]      makes FOLDER/face, a random Llama of the 1B's widths in bfloat16, unless it is there

Prints seconds and GB/s of cat > /dev/null, of loading (halftone generate: fp32 masters with bf16 copies), of cp -r and of halftone convert
both ways, each with the file in the page cache (warm) and without (cold), and what the programs took of memory: the fastest of some rounds,
which take turns. cp and convert include sync. FOLDER needs room for three times the model."""
import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
program = os.path.join(os.environ.get("HALFTONE_BIN", os.path.join(source, "build/release/bin")), "halftone")
WIDE = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256}


def shapes(layers):
    d, f, kv = WIDE["hidden_size"], WIDE["intermediate_size"], WIDE["hidden_size"] // 4
    yield "model.embed_tokens", [WIDE["vocab_size"], d]
    for i in range(layers):
        block = {"input_layernorm": [d], "post_attention_layernorm": [d], "self_attn.q_proj": [d, d], "self_attn.k_proj": [kv, d], "self_attn.v_proj": [kv, d],
                 "self_attn.o_proj": [d, d], "mlp.gate_proj": [f, d], "mlp.up_proj": [f, d], "mlp.down_proj": [d, f]}
        for name, shape in block.items():
            yield f"model.layers.{i}.{name}", shape
    yield "model.norm", [d]
    yield "lm_head", [WIDE["vocab_size"], d]


def make(folder, layers):
    os.makedirs(folder)
    random, header, end = np.random.default_rng(0), {}, 0
    for name, shape in shapes(layers):
        bytes_ = 2 * int(np.prod(shape))
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes_]}
        end += bytes_
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes(layers):  # random mantissas and signs, magnitude about 0.02
            bits = random.integers(0, 1 << 16, int(np.prod(shape)), np.uint16)
            file.write(((bits & 0x80FF) | 0x3C00).tobytes())
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False, "rope_theta": 10000.0, "torch_dtype": "bfloat16", **WIDE}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, "tests/assets/tokenizer", name), folder)


def files(folder):
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors")]


def prepare(folder, warm):
    os.sync()
    for path in files(folder):
        with open(path, "rb") as file:
            if warm:
                while file.read(1 << 24):
                    pass
            else:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(*words):
    """Seconds until all is on the disk, the errors' text, the largest resident memory in GiB."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        os.sync()
        seconds = time.perf_counter() - start
        errors.seek(0)
        text = errors.read()
    if process.returncode:
        sys.exit(text)
    return seconds, text, usage.ru_maxrss / (1 << 20)


def one_round(folder, warm, add):
    face, copy, native, back = (os.path.join(folder, name) for name in ("face", "copy", "native", "back"))
    prepare(face, warm)
    add("cat", *timed("sh", "-c", "cat \"$0\"/*.safetensors > /dev/null", face)[::2])
    prepare(face, warm)
    words = (program, "generate", "--checkpoint", face, "--prompt", "a", "--max-new-tokens", "1", "--device", "cpu")
    add("load", *map(float, re.search(r"loaded in ([0-9.]+) s with ([0-9.]+) GiB", timed(*words)[1]).groups()))
    for what, start, end in (("cp", face, copy), ("convert", face, native), ("cp of the step", native, copy), ("convert back", native, back)):
        prepare(start, warm)
        words = (program, "convert", "--from", start, "--to", end) if "convert" in what else ("cp", "-r", start, end)
        add(what, *timed(*words)[::2])
        if what != "convert":
            shutil.rmtree(end)
    shutil.rmtree(native)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    face = os.path.join(options.folder, "face")
    if not os.path.exists(face):
        make(face, options.layers)
    gb = sum(os.path.getsize(path) for path in files(face)) / 1e9
    print(f"{gb:.2f} GB, {gb / 2:.2f} 10^9 parameters; masters and copies are {gb / 2 * 6e9 / (1 << 30):.2f} GiB")
    for warm in (False, True):
        best = {}

        def add(what, seconds, peak):
            best[what] = min(best.get(what, (seconds, peak)), (seconds, peak))

        for _ in range(options.rounds):
            one_round(options.folder, warm, add)
        for what, (seconds, peak) in best.items():
            print(f"{what:16} {'warm' if warm else 'cold'}  {seconds:6.2f} s  {gb / seconds:5.2f} GB/s  peak {peak:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
