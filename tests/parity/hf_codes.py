#!/usr/bin/env python3
"""Codes of Hugging Face's files, written: GPT-OSS's experts as MXFP4 and DeepSeek's and Llama's linear layers as fp8 in blocks of 128 x 128, by
the end of a run and by convert. What is read and written again has the same bytes, and transformers, which turns codes into numbers on a
CPU, gets the numbers that halftone reads from MXFP4.

The second part needs torch, transformers and accelerate in some Python: HALFTONE_TORCH_PYTHON names one, else the interpreter that runs this script.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

from _program import path_of, source

program = path_of("halftone")
FORMATS = {"mxfp4": "gpt-oss-mxfp4", "fp8_blockwise": "deepseek-fp8"}
MODELS = {
    "gpt_oss": ("mxfp4", {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "ffn_dim": 96, "expert_ffn_dim": 96,
                          "num_experts": 3, "experts_per_token": 2, "vocab_size": 2048, "window": 16, "balance": 0}),
    "deepseek_v3": ("fp8_blockwise", {"dim": 136, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 200, "expert_ffn_dim": 72,
                                      "num_experts": 4, "experts_per_token": 2, "shared_experts": 1, "dense_layers": 1, "kv_lora_rank": 32,
                                      "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 2048,
                                      "route_score": "sigmoid"}),
    "llama3": ("fp8_blockwise", {"dim": 136, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 80, "ffn_dim": 200, "vocab_size": 2048})}

# Run by the Python with transformers: compares the tensors of folders of codes with those of folders with dequantised weights.
COMPARE = """
import json, os, pathlib, sys, torch
from transformers import AutoModelForCausalLM
def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager")
ids = torch.arange(40).reshape(2, 20) * 37 % 2048
for coded, plain in zip(sys.argv[1::2], sys.argv[2::2]):
    a, b = load(coded), load(plain)
    one, other = a.state_dict(), b.state_dict()
    assert set(one) == set(other), (coded, sorted(set(one) ^ set(other))[:4])
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), (coded, name)
    with torch.no_grad():
        assert torch.equal(a(input_ids=ids, use_cache=False).logits, b(input_ids=ids, use_cache=False).logits), coded
"""
# transformers' own decoding of GPT-OSS's experts, which does not need a model.
UNPACK = """
import sys, torch
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
coded, plain = load_file(sys.argv[1] + "/model.safetensors"), load_file(sys.argv[2] + "/model.safetensors")
names = [name[:-7] for name in coded if name.endswith("_blocks")]
assert len(names) == 4, names
for name in names:
    assert torch.equal(convert_moe_packed_tensors(coded[name + "_blocks"], coded[name + "_scales"]), plain[name]), name
"""


def good(*words):
    result = subprocess.run([program, *words], cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, f"{words}:\n{result.stdout[-1500:]}{result.stderr}"
    return result.stdout


def refuse(part, *words):
    result = subprocess.run([program, *words], cwd=source, capture_output=True, text=True)
    assert result.returncode == 2 and part in result.stderr and len(result.stderr.splitlines()) == 1, f"{words}: {result.stdout}{result.stderr}"


def train(model, folder, *more):
    overrides = json.dumps(MODELS[model][1])
    return ("train", "--config", "recipes/llama3_debug.toml", f"--model.name={model}", f"--model.overrides={overrides}", "--training.seq_len=64",
            "--training.local_batch_size=2", "--training.steps=2", "--training.device=cpu", f"--job.dump_folder={folder}", "--checkpoint.enable",
            "--checkpoint.interval=1", *more)


def weights(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        raw = file.read()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], raw[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items()}


def types(tensors, ending):
    return {dtype for name, (dtype, _, _) in tensors.items() if name.endswith(ending)}


def check(work, model):
    codes, _ = MODELS[model]
    run, step, plain, again = (os.path.join(work, f"{model}_{name}") for name in ("run", "step", "plain", "again"))
    good(*train(model, run, "--checkpoint.last_save_model_only=true", "--checkpoint.last_save_in_hf", f"--checkpoint.export_dtype={codes}"))
    coded = os.path.join(run, "checkpoint", "step-2")
    tensors = weights(coded)
    if codes == "mxfp4":
        assert types(tensors, "_blocks") == types(tensors, "_scales") == {"U8"} and types(tensors, "proj_bias") == {"BF16"}, model
    else:
        assert types(tensors, "_proj.weight") == {"F8_E4M3"} and types(tensors, "_scale_inv") == {"F32"}, model
    assert types(tensors, "embed_tokens.weight") == types(tensors, "norm.weight") == {"BF16"}, model
    # From the fp32 weights of the preceding full step: other codes, the same names.
    good("convert", "--from", os.path.join(run, "checkpoint", "step-1"), "--to", again, "--format", FORMATS[codes], "--dtype", "bfloat16")
    before = weights(again)
    assert {name: t[:2] for name, t in before.items()} == {name: t[:2] for name, t in tensors.items()} and before != tensors, model
    # Round trip.
    good("convert", "--from", coded, "--to", step)
    good("convert", "--from", step, "--to", again + "2", "--format", FORMATS[codes])
    good("convert", "--from", step, "--to", plain)
    back = weights(again + "2")
    assert set(back) == set(tensors), model
    if codes == "mxfp4":
        assert back == tensors, f"{model}: the same bytes"
        with open(os.path.join(coded, "config.json")) as one, open(os.path.join(again + "2", "config.json")) as other:
            assert json.load(one) == json.load(other), model
    good("generate", "--checkpoint", again + "2", "--prompt", "Hello", "--max_new_tokens", "4", "--device", "cpu", "--quiet")
    return coded, plain, step


with tempfile.TemporaryDirectory() as work:
    folders = {model: check(work, model) for model in MODELS}
    out = os.path.join(work, "out")
    for model, other in (("gpt_oss", "fp8_blockwise"), ("llama3", "mxfp4")):
        refuse("is not a format of", "convert", "--from", folders[model][2], "--to", out, "--format", FORMATS[other])
        refuse("is not a format of", *train(model, out + "_run", "--checkpoint.last_save_model_only=true", "--checkpoint.last_save_in_hf", f"--checkpoint.export_dtype={other}"))
    refuse("--codes mxfp4 needs --format: ", "convert", "--from", folders["gpt_oss"][0], "--to", out, "--codes", "mxfp4")
    refuse("needs checkpoint.last_save_in_hf", *train("gpt_oss", out + "_run", "--checkpoint.export_dtype=mxfp4"))
    print("MXFP4 experts are the same bytes after a round trip; fp8 blocks; ends of runs; 6 refusals")
    python = os.environ.get("HALFTONE_TORCH_PYTHON", sys.executable)
    probe = subprocess.run([python, "-c", "import torch, transformers, accelerate, safetensors.torch"], capture_output=True, text=True)
    if probe.returncode != 0:
        print(f"transformers did not read them ({(probe.stderr.strip().splitlines() or ['it does not start'])[-1]}); set HALFTONE_TORCH_PYTHON")
        sys.exit(0)
    for script, paths in ((UNPACK, folders["gpt_oss"][:2]), (COMPARE, folders["gpt_oss"][:2])):
        result = subprocess.run([python, "-c", script, *paths], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-3000:]
    print("transformers reads the same numbers from MXFP4 experts")
