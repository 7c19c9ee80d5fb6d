#!/usr/bin/env python3
"""halftone convert: there and back bit for bit, logits, text, quantised folders, runs; and what is refused, without half folders."""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import tempfile

import numpy as np

from _program import path_of, source

program = path_of("halftone")
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 2048, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
          "bos_token_id": 2046, "eos_token_id": 2047, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
BLOCK = {"input_layernorm": [64], "post_attention_layernorm": [64], "self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64],
         "self_attn.v_proj": [32, 64], "self_attn.o_proj": [64, 64], "mlp.gate_proj": [128, 64], "mlp.up_proj": [128, 64], "mlp.down_proj": [64, 128]}
TEXTS = {"chat_template.jinja": "{% for m in messages %}{{ m.content }}{% endfor %}\n", "special_tokens_map.json": '{"bos_token": "<|begin_of_text|>"}\n',
         "generation_config.json": '{"eos_token_id": [2047, 860, 3], "temperature": 0.6, "top_p": 0.9}\n'}
WIDTH = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I8": 1}


def run(*words, **more):
    return subprocess.run([program, *words], cwd=source, capture_output=True, text=True, **more)


def good(*words):
    result = run(*words)
    assert result.returncode == 0, f"{words}:\n{result.stdout[-1500:]}{result.stderr}"
    return result.stdout


def refuse(part, *words, **more):
    result = run("convert", *words, **more)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and part in result.stderr, f"{words}: {result.stdout}{result.stderr}"
    target = words[words.index("--to") + 1]
    assert not os.path.exists(target + ".tmp"), f"{target}.tmp stays"


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    with open(path, "rb") as file:
        raw = file.read()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], raw[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items()}


def read_weights(folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(read_safetensors(os.path.join(folder, name)))
    return tensors


def bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def floats(tensor):
    dtype, shape, raw = tensor
    if dtype == "BF16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32).reshape(shape)


def weights(tied=False):
    random = np.random.default_rng(7)
    shapes = {"model.embed_tokens": [2048, 64], "model.norm": [64], **({} if tied else {"lm_head": [2048, 64]})}
    shapes.update({f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in BLOCK.items()})
    tensors = {}
    for name, shape in shapes.items():  # norms have a different type from the rest
        values = 1 + 0.1 * random.standard_normal(shape) if len(shape) == 1 else 0.1 * random.standard_normal(shape)
        tensors[name + ".weight"] = ("F32", shape, values.astype(np.float32).tobytes()) if len(shape) == 1 else ("BF16", shape, bf16(values).tobytes())
    return tensors


def write_folder(folder, tensors, shards=1, **config):
    os.mkdir(folder)
    names, files = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        part = names[i::shards]
        write_safetensors(os.path.join(folder, file), {name: tensors[name] for name in part})
        files.update({name: file for name in part})
    texts = dict(TEXTS, **{"config.json": json.dumps(dict(CONFIG, **config))})
    if shards > 1:
        texts["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": files})
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, "tests/assets/tokenizer", name), folder)
    return files


def say(folder):
    return good("generate", "--checkpoint", folder, "--prompt", "Hello", "--max_new_tokens", "12", "--device", "cpu", "--seed", "5", "--ignore_end", "--quiet")


def read_json(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def there_and_back(work, tied, shards):
    face, native, back = (os.path.join(work, f"{name}_{tied}_{shards}") for name in ("face", "native", "back"))
    tensors = weights(tied)
    files = write_folder(face, tensors, shards, tie_word_embeddings=tied)
    for start, end in ((face, native), (native, back)):
        assert "largest difference of logits 0 (of magnitude " in good("convert", "--from", start, "--to", end, "--check")
    assert read_weights(back) == tensors, "the same names, types, shapes and bytes"
    if shards > 1:
        assert read_json(back, "model.safetensors.index.json")["weight_map"] == files, "the same shards"
    for name, text in TEXTS.items():
        for folder in (native, back):
            with open(os.path.join(folder, name)) as file:
                assert file.read() == text, name
    config = read_json(back, "config.json")
    assert config["torch_dtype"] == "bfloat16" and config["tie_word_embeddings"] == tied and config["bos_token_id"] == 2046, config
    assert say(face) == say(native) == say(back)
    return face, native


def other_types(work, face, native):
    for dtype, name in (("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")):
        out = os.path.join(work, dtype)
        lines = good("convert", "--from", native, "--to", out, "--dtype", dtype, "--max-shard-bytes", "100000", "--check")
        found, before = read_weights(out), read_weights(face)
        assert len(os.listdir(out)) > 8 and set(found) == set(before)
        assert dtype != "float32" or "largest difference of logits 0 " in lines, lines
        for key, tensor in found.items():
            assert tensor[0] == name and np.allclose(floats(tensor), floats(before[key]), rtol=2**-8, atol=1e-7), key


def quantised(work):
    """fp8 in blocks of 128 x 128, some smaller; codes and scales against numpy."""
    table = np.zeros(256, np.float32)
    for code in range(256):
        e, m = code >> 3 & 15, code & 7
        table[code] = (-1 if code & 128 else 1) * (m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0**(e - 7))
    random, tensors, values = np.random.default_rng(9), weights(), {}
    for name, (dtype, shape, _) in list(tensors.items()):
        if "proj" not in name:
            continue
        codes = random.integers(0, 0x70, shape).astype(np.uint8) | (random.integers(0, 2, shape).astype(np.uint8) << 7)
        scales = (0.01 * (1 + random.random([-(-shape[0] // 48), -(-shape[1] // 32)]))).astype(np.float32)
        tensors[name] = ("F8_E4M3", shape, codes.tobytes())
        tensors[name + "_scale_inv"] = ("F32", list(scales.shape), scales.tobytes())
        values[name] = table[codes] * np.repeat(np.repeat(scales, 48, 0)[:shape[0]], 32, 1)[:, :shape[1]]
    face, native, back = (os.path.join(work, "fp8_" + name) for name in ("face", "native", "back"))
    write_folder(face, tensors, quantization_config={"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [48, 32]})
    assert "largest difference of logits 0 " in good("convert", "--from", face, "--to", native, "--dtype", "float32", "--check")
    good("convert", "--from", native, "--to", back)
    found = read_weights(back)
    for name, expected in values.items():
        assert np.array_equal(floats(found[name]), expected), name
    assert "quantization_config" not in read_json(back, "config.json")
    assert say(face) == say(native)
    brief = os.path.join(work, "fp8_brief")
    good("convert", "--from", face, "--to", brief)
    good("convert", "--from", brief, "--to", brief + "_back")
    found = read_weights(brief + "_back")
    for name, expected in values.items():
        assert found[name][:2] == ("BF16", list(expected.shape)) and found[name][2] == bf16(expected).tobytes(), name
    return face


def train(folder, *more):
    return run("train", "--config", "recipes/llama3_debug.toml", "--training.seq_len=64", "--training.local_batch_size=2", "--training.device=cpu",
               f"--job.dump_folder={folder}", "--checkpoint.enable", "--checkpoint.interval=1", *more)


def runs(work, face, native, fp8):
    """Runs that begin from a converted step or a quantised folder, and back from a full step of one."""
    start = ("--training.steps=2", "--optimizer.lr=1e-12", f"--model.hf_assets_path={face}", "--checkpoint.last_save_model_only=false")
    first = ("--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_in_hf_quantized", f"--checkpoint.initial_load_path={fp8}")
    refused = train(os.path.join(work, "run"), *start, *first)
    assert refused.returncode == 2, refused.stdout
    options = refused.stderr.rsplit("; set ", 1)[1].split()
    trained = train(os.path.join(work, "run"), *start, *first, *options)
    assert trained.returncode == 0 and "14 weights are codes with scales (fp8)" in trained.stdout, trained.stdout + trained.stderr
    out = os.path.join(work, "run_face")
    assert "largest difference of logits 0 " in good("convert", "--from", os.path.join(work, "run"), "--to", out, "--check")
    assert {t[0] for t in read_weights(out).values()} == {"F32"}
    assert read_json(out, "generation_config.json")["eos_token_id"] == [2047, 860, 3]
    assert os.path.exists(os.path.join(out, "chat_template.jinja"))
    trained = train(os.path.join(work, "run2"), *start, *options, f"--checkpoint.initial_load_path={native}")
    assert trained.returncode == 0 and "Loaded initial weights" in trained.stdout, trained.stdout
    step = os.path.join(work, "run2", "checkpoint", "step-1")
    assert say(step) == say(native)
    return step


def refusals(work, face, native, step):
    out = os.path.join(work, "out")
    refuse("already holds weights", "--from", face, "--to", native)
    refuse("already holds weights", "--from", native, "--to", face)
    os.mkdir(out)
    good("convert", "--from", face, "--to", out)  # an empty folder is accepted
    shutil.rmtree(out)
    os.mkdir(out + ".tmp")  # left by a killed conversion
    with open(os.path.join(out + ".tmp", "model.safetensors"), "w") as file:
        file.write("half")
    good("convert", "--from", face, "--to", out)
    shutil.rmtree(out)
    os.mkdir(out)
    with open(os.path.join(out, "notes.txt"), "w") as file:
        file.write("mine")
    refuse("is not empty (notes.txt)", "--from", face, "--to", out)
    shutil.rmtree(out)
    refuse("no checkpoint", "--from", os.path.join(work, "nowhere"), "--to", out)
    refuse("--dtype", "--from", face, "--to", out, "--dtype", "float8")

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

    refuse("File too large", "--from", face, "--to", out, preexec_fn=small_files)  # simulates a full disk
    assert not os.path.exists(out)
    bad = os.path.join(work, "bad")
    tensors = weights()
    cases = [("model.layers.1.mlp.up_proj.weight holds a NaN", lambda t: t.update({"model.layers.1.mlp.up_proj.weight": ("BF16", [128, 64], b"\xc0\x7f" * 8192)})),
             ("missing: layers.1.feed_forward.w3.weight (model.layers.1.mlp.up_proj.weight)", lambda t: t.pop("model.layers.1.mlp.up_proj.weight")),
             ("unknown: layers.2.feed_forward.w3.weight (model.layers.2.mlp.up_proj.weight)", lambda t: t.update({"model.layers.2.mlp.up_proj.weight": t["model.layers.1.mlp.up_proj.weight"]})),
             ("unknown: model.extra.weight", lambda t: t.update({"model.extra.weight": t["model.norm.weight"]})),
             ("too large for F16", lambda t: t.update({"lm_head.weight": ("BF16", [2048, 64], bf16(np.full(2048 * 64, 1e30)).tobytes())}))]
    for part, change in cases:
        changed = dict(tensors)
        change(changed)
        write_folder(bad, changed)
        refuse(part, "--from", bad, "--to", out, *(("--dtype", "float16") if "F16" in part else ()))
        assert not os.path.exists(out)
        shutil.rmtree(bad)
    shutil.copytree(native, bad)
    with open(os.path.join(bad, "model-0.safetensors"), "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\x12")
    refuse("the file is damaged", "--from", bad, "--to", out)
    assert not os.path.exists(out) and os.path.exists(step)
    return len(cases) + 7


with tempfile.TemporaryDirectory() as work:
    face, native = there_and_back(work, False, 3)
    there_and_back(work, True, 1)
    other_types(work, face, native)
    fp8 = quantised(work)
    step = runs(work, face, native, fp8)
    count = refusals(work, face, native, step)
print(f"Hugging Face folders into steps and back are the same bytes, shards and files; fp8 blocks as numpy; runs from and to; {count} refusals")
