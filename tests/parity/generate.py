#!/usr/bin/env python3
"""Text from checkpoints of every kind of recipe: full and model-only ones, whose tensors are the plain model's, codes, or more than these,
and Hugging Face folders."""
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile

from _program import path_of, source

program = path_of("halftone")
MODEL = '{"dim":64,"n_layers":2,"n_heads":4,"n_kv_heads":2,"ffn_dim":128}'


def run(*words):
    return subprocess.run([program, *words], cwd=source, capture_output=True, text=True)


def train(folder, *more):
    return run("train", "--config", "recipes/llama3_debug.toml", "--model.overrides", MODEL, "--training.seq_len=64",
               "--training.local_batch_size=2", "--training.steps=2", "--training.device=cpu", f"--job.dump_folder={folder}",
               "--checkpoint.enable", *more)


# A Hugging Face folder of a model that always outputs token 860: every weight is 0 except norms, the embedding and one row of the head.
ALWAYS = 860
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 2048, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
          "bos_token_id": 2046, "eos_token_id": 2047, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def write_folder(folder):
    block = {"input_layernorm": [64], "post_attention_layernorm": [64], "self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64],
             "self_attn.v_proj": [32, 64], "self_attn.o_proj": [64, 64], "mlp.gate_proj": [128, 64], "mlp.up_proj": [128, 64], "mlp.down_proj": [64, 128]}
    shapes = {"model.embed_tokens": [2048, 64], "model.norm": [64], "lm_head": [2048, 64]}
    shapes.update({f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in block.items()})
    header, data, one = {}, b"", struct.pack("<f", 1)
    for name, shape in shapes.items():
        values = one * 64 if len(shape) == 1 else one * 64 * 2048 if "embed" in name else bytes(4 * shape[0] * shape[1])
        if name == "lm_head":
            values = values[:256 * ALWAYS] + one * 64 + values[256 * (ALWAYS + 1):]
        header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    os.mkdir(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, "tests/assets/tokenizer", name), folder)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)


def say(folder, *more, prompt="Hello"):
    """Tokens of text and of the prompt."""
    words = run("generate", "--checkpoint", folder, "--prompt", prompt, "--max_new_tokens", "5", "--temperature", "0", "--device", "cpu", *more)
    assert words.returncode == 0 and words.stdout.startswith(prompt), words.stderr
    return tuple(map(int, re.match(r"(\d+) tokens after (\d+) of the prompt", words.stderr).groups()))


def hugging_face(work):
    folder, end = os.path.join(work, "face_in"), [2047, ALWAYS]
    write_folder(folder)
    write_json(folder, "config.json", CONFIG)
    assert say(folder) == (5, 4) and say(folder, prompt="<|begin_of_text|>Hello") == (5, 4), "one BOS, whoever writes it"
    # In the type that the weights have, unless another one is asked for; a step that they become, too.
    step = os.path.join(work, "face_step")
    assert run("convert", "--from", folder, "--to", step).returncode == 0
    for where, more, said in ((folder, (), "float32"), (folder, ("--dtype", "bfloat16"), "bfloat16"), (step, (), "float32")):
        words = run("generate", "--checkpoint", where, "--prompt", "Hello", "--max_new_tokens", "1", "--device", "cpu", *more)
        assert f" tokens/s in {said}; float32 weights loaded" in words.stderr, words
    write_json(folder, "generation_config.json", {"eos_token_id": end})
    assert say(folder) == (1, 4), "generation_config.json says where text ends"
    os.remove(os.path.join(folder, "generation_config.json"))
    write_json(folder, "config.json", dict(CONFIG, eos_token_id=end))
    assert say(folder) == (1, 4) and say(folder, "--ignore_end") == (5, 4), "text ends at any of the list"

    # A run from this folder: an error says what to set; then the list of EOS ids is in its checkpoints and its export.
    out = os.path.join(work, "face_run")
    start = ("--optimizer.lr=1e-12", "--training.steps=2", "--checkpoint.interval=1", "--checkpoint.initial_load_in_hf",
             f"--checkpoint.initial_load_path={folder}", *LEAN, "--checkpoint.last_save_in_hf")
    refused = train(out, *start)
    assert refused.returncode == 2 and "rope_scaling is true, rope_factor 8" in refused.stderr, refused.stderr
    options = refused.stderr.rsplit("; set ", 1)[1].split()
    assert "--model.rope_scaling_mode off" in " ".join(options), options
    trained = train(out, *start, *options)
    assert trained.returncode == 0, trained.stderr
    assert say(os.path.join(out, "checkpoint", "step-1")) == (1, 4), "the run keeps the list"
    with open(os.path.join(out, "checkpoint", "step-2", "config.json")) as file:
        exported = json.load(file)
    assert exported["eos_token_id"] == end and exported["bos_token_id"] == 2046, exported

    # Nothing but the error line, with either way of printing the prompt.
    for option in ("--top-k=-1", "--top-p=2", "--temperature=-1", "--max-new-tokens=0"):
        words = run("generate", "--checkpoint", folder, "--prompt", "Hello", option)
        assert words.returncode == 2 and words.stdout == "" and len(words.stderr.splitlines()) == 1, words
    bad = [("rope_theta", 5.0), ("rope_scaling", {"rope_type": "yarn"}), ("partial_rotary_factor", 0.5), ("hidden_act", "gelu"), ("sliding_window", 128),
           ("tie_word_embeddings", True)]
    for key, value in bad:
        write_json(folder, "config.json", dict(CONFIG, **{key: value}))
        for more in ((), ("--quiet",)):
            words = run("generate", "--checkpoint", folder, "--prompt", "Hello", *more)
            assert words.returncode == 2 and words.stdout == "", f"{key}: {words.stdout!r}"
            assert len(words.stderr.splitlines()) == 1 and key in words.stderr and "config.json" in words.stderr, words.stderr
    return len(bad)


FULL, LEAN = ("--checkpoint.last_save_model_only=false",), ("--checkpoint.last_save_model_only=true",)
FACE = (*LEAN, "--checkpoint.last_save_in_hf")
CASES = [("mxfp4", LEAN), ("int8", ("--quantize.skip_first_layers=1", *FULL)), ("bitnet", LEAN), ("bitnet", FULL),
         ("bitnet", ("--quantize.targets=re:.*feed_forward", *FULL)), ("int8_weight", LEAN), ("int8_weight", FULL), ("int8_weight", FACE),
         ("int4_weight", FULL), ("int4_weight", FACE), ("mxfp4", ("--quantize.lora_rank=32", *FULL))]
with tempfile.TemporaryDirectory() as work:
    for i, (scheme, more) in enumerate(CASES):
        folder = os.path.join(work, str(i))
        trained = train(folder, f"--quantize.scheme={scheme}", *more)
        assert trained.returncode == 0, f"{scheme} {more}:\n{trained.stdout[-1500:]}{trained.stderr}"
        step = os.path.join(folder, "checkpoint", "step-2")
        words = run("generate", "--checkpoint", step if more == FACE else folder, "--prompt", "def ", "--max-new-tokens", "4", "--device", "cpu")
        assert words.returncode == 0 and words.stdout, f"{scheme} {more}: {words.stderr}"
    # The recipe of a run whose file has since been edited and deleted.
    recipe, folder = os.path.join(work, "recipe.yaml"), os.path.join(work, "recipe")
    with open(recipe, "w") as file:
        file.write("a_stage:\n  b_modifiers:\n    LowPrecisionTrainingModifier: {scheme: bitnet}\n")
    trained = train(folder, f"--quantize.recipe={recipe}", *FULL)
    assert trained.returncode == 0, trained.stderr
    os.remove(recipe)
    words = run("generate", "--checkpoint", folder, "--prompt", "def ", "--max-new-tokens", "4", "--device", "cpu")
    assert words.returncode == 0 and words.stdout, f"without the recipe file: {words.stderr}"
    refused = train(os.path.join(work, "face"), "--quantize.scheme=bitnet", *FACE)
    assert refused.returncode == 2 and "has no place in LlamaForCausalLM" in refused.stderr, refused.stderr
    assert not os.path.exists(os.path.join(work, "face", "checkpoint", "step-2"))
    refusals = hugging_face(work)
print(f"a Hugging Face folder ends text at any EOS, into a run and out of it; {refusals} configurations are refused with one line")
print(f"text from the checkpoints of {len(CASES)} runs, and of one whose recipe file is gone; bitnet beside checkpoint.last_save_in_hf is refused before the first step")
