#!/usr/bin/env python3
"""Text from checkpoints of every kind of recipe: full and model-only ones, whose tensors are the plain model's, codes, or more than these,
and Hugging Face folders; with the products that a run trained with, by several processes, and from chunks of the prompt with the same bits.
Runs the commands of docs/sampling.md."""
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
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
    return tuple(map(int, re.search(r"(?m)^(\d+) tokens after (\d+) of the prompt", words.stderr).groups()))


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


def products(folder, *more):
    """The line on how the weights are stored and multiplied."""
    words = run("generate", "--checkpoint", folder, "--prompt", "def ", "--max-new-tokens", "1", "--device", "cpu", *more)
    assert words.returncode == 0, words.stderr
    lines = [line for line in words.stderr.splitlines() if line.startswith("Weights stored as ")]
    assert len(lines) == 1, words.stderr
    return lines[0]


def own_products(int8, bitnet, folder):
    """int8, bitnet: folders of runs; folder: a Hugging Face one in float32."""
    row = "int8 (X int8 row, W int8 row) in 7 of 15 layers"  # the first block is skipped
    assert products(int8) == f"Weights stored as float32, multiplied as bfloat16 in 8 of 15 layers, {row}: as the run trained", products(int8)
    assert products(int8, "--recipe", "none") == "Weights stored as float32, multiplied as bfloat16: --recipe none"
    said = products(bitnet, "--recipe", "none")
    assert "bitnet (X int8 row, W ternary tensor)" in said and said.endswith(": no other model has the run's weights"), said
    assert products(folder) == "Weights stored as float32, multiplied as float32"
    assert products(folder, "--dtype", "bfloat16") == "Weights stored as float32, multiplied as bfloat16: --dtype"
    for option, word in (("--recipe=some", "--recipe"), ("--prefill-chunk=-1", "--prefill-chunk"),
                         ("--parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_degree"),
                         ("--parallelism.context_parallel_degree=2", "parallelism.context_parallel_degree"),
                         ("--parallelism.tensor_parallel_degree=2", "found 1 * 1 * -1 * 1 * 2 and 1 processes")):
        words = run("generate", "--checkpoint", int8, "--prompt", "def ", "--device", "cpu", option)
        assert words.returncode == 2 and words.stdout == "" and len(words.stderr.splitlines()) == 1 and word in words.stderr, words


def by_processes(folder, *more, count=2):
    """The text that rank 0 of several processes prints; the others print nothing."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    ranks = [subprocess.Popen([program, "generate", "--checkpoint", folder, "--prompt", "def ", "--max-new-tokens", "8", "--temperature", "0",
                               "--device", "cpu", "--quiet", *more], cwd=source, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                       OMP_NUM_THREADS="1")) for r in range(count)]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), said
    assert said[1] == ("", ""), said
    return said[0][0]


def several_processes(work):
    cases = 0
    experts = '{"dim":64,"n_layers":2,"n_heads":4,"n_kv_heads":2,"head_dim":16,"num_experts":4,"experts_per_token":2,"expert_ffn_dim":64}'
    for config, model, degrees in (("llama3_debug", MODEL, ("tensor", "")), ("qwen3_moe_debug", experts, ("expert",)), ("gpt_oss_debug", experts, ("tensor",))):
        folder = os.path.join(work, config)
        trained = run("train", "--config", f"recipes/{config}.toml", "--model.overrides", model, "--training.seq_len=64", "--training.local_batch_size=2", "--training.steps=2",
                      "--training.device=cpu", "--checkpoint.enable", "--training.mixed_precision_param=float32", f"--job.dump_folder={folder}")
        assert trained.returncode == 0, trained.stderr
        alone = run("generate", "--checkpoint", folder, "--prompt", "def ", "--max-new-tokens", "8", "--temperature", "0", "--device", "cpu", "--quiet")
        for degree in degrees:
            more = (f"--parallelism.{degree}_parallel_degree=2",) if degree else ()
            assert by_processes(folder, *more) == alone.stdout, (config, degree)
            cases += 1
    return cases


def exported_codes(work):
    """A run, and its export in the codes that it trained with, draw the same text."""
    schemes = (("int8", "compressed-tensors"), ("fp8_blockwise", "deepseek-fp8"), ("mxfp8_e4m3", "compressed-tensors"))
    for scheme, kind in schemes:
        folder, out = os.path.join(work, "own_" + scheme), os.path.join(work, "out_" + scheme)
        for words in (train(folder, f"--quantize.scheme={scheme}", "--optimizer.lr=1e-2"), run("convert", "--from", folder, "--to", out, "--format", kind)):
            assert words.returncode == 0, words.stdout[-500:] + words.stderr
        texts = [run("generate", "--checkpoint", where, "--prompt", "def ", "--max-new-tokens", "60", "--ignore-end", "--seed", "3", "--device", "cpu",
                     "--quiet", "--dtype", "bfloat16").stdout for where in (folder, out)]
        assert len(texts[0]) > 60 and texts[0] == texts[1], (scheme, texts)
        said = products(out, "--dtype", "bfloat16")
        assert "codes in 14 of 15 layers" in said and f"multiplied as {scheme} (X " in said and said.endswith("1 of 15 layers"), said
    folder = os.path.join(work, "out_int8")
    alone = run("generate", "--checkpoint", folder, "--prompt", "def ", "--max-new-tokens", "8", "--temperature", "0", "--device", "cpu", "--quiet",
                "--dtype", "float32")
    assert by_processes(folder, "--dtype=float32", "--parallelism.tensor_parallel_degree=2") == alone.stdout, "parts of codes"
    return len(schemes)


def commands_of_docs(work):
    """Runs the bash blocks of docs/sampling.md in one shell, with outputs/ in a folder of the test."""
    with open(os.path.join(source, "docs/sampling.md")) as file:
        blocks = re.findall(r"```bash\n(.*?)```", file.read(), re.S)
    script = "\n".join(blocks).replace("outputs/", work + "/docs/")
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    if not os.path.exists(torchrun):
        script = "\n".join(line for line in script.splitlines() if "torchrun" not in line)
    path = os.pathsep.join([os.path.dirname(program), os.path.dirname(sys.executable), os.environ["PATH"]])
    words = subprocess.run(["bash", "-e", "-c", script], cwd=source, capture_output=True, text=True, env=dict(os.environ, PATH=path))
    assert words.returncode == 0, words.stdout[-1500:] + words.stderr
    return len(re.findall(r"(?m)^(?:halftone|torchrun) ", "\n".join(blocks)))


FULL, LEAN = ("--checkpoint.last_save_model_only=false",), ("--checkpoint.last_save_model_only=true",)
FACE = (*LEAN, "--checkpoint.last_save_in_hf")
CASES = [("mxfp4", ('--quantize.phases=[{"from": 2, "output": false}]', *LEAN)), ("int8", ("--quantize.skip_first_layers=1", *FULL)), ("bitnet", LEAN), ("bitnet", FULL),
         ("bitnet", ("--quantize.targets=re:.*feed_forward", *FULL)), ("int8_weight", LEAN), ("int8_weight", FULL), ("int8_weight", FACE),
         ("int4_weight", FULL), ("int4_weight", FACE), ("mxfp4", ("--quantize.lora_rank=32", *FULL))]
with tempfile.TemporaryDirectory() as work:
    for i, (scheme, more) in enumerate(CASES):
        folder = os.path.join(work, str(i))
        trained = train(folder, f"--quantize.scheme={scheme}", *more)
        assert trained.returncode == 0, f"{scheme} {more}:\n{trained.stdout[-1500:]}{trained.stderr}"
        step = os.path.join(folder, "checkpoint", "step-2")
        words = run("generate", "--checkpoint", step if more == FACE else folder, "--prompt", "def ", "--max-new-tokens", "4", "--device", "cpu")
        assert words.returncode == 0 and words.stdout.startswith("def "), f"{scheme} {more}: {words.stdout}{words.stderr}"
    # The recipe of a run whose file has since been edited and deleted.
    recipe, folder = os.path.join(work, "recipe.yaml"), os.path.join(work, "recipe")
    with open(recipe, "w") as file:
        file.write("a_stage:\n  b_modifiers:\n    LowPrecisionTrainingModifier: {scheme: bitnet}\n")
    trained = train(folder, f"--quantize.recipe={recipe}", *FULL)
    assert trained.returncode == 0, trained.stderr
    os.remove(recipe)
    words = run("generate", "--checkpoint", folder, "--prompt", "def ", "--max-new-tokens", "4", "--device", "cpu")
    assert words.returncode == 0 and words.stdout.startswith("def "), f"without the recipe file: {words.stderr}"
    refused = train(os.path.join(work, "face"), "--quantize.scheme=bitnet", *FACE)
    assert refused.returncode == 2 and "has no place in LlamaForCausalLM" in refused.stderr, refused.stderr
    assert not os.path.exists(os.path.join(work, "face", "checkpoint", "step-2"))
    refusals = hugging_face(work)
    write_json(os.path.join(work, "face_in"), "config.json", CONFIG)
    own_products(os.path.join(work, "1"), os.path.join(work, "2"), os.path.join(work, "face_in"))
    meshes = several_processes(work)
    exports = exported_codes(work)
    commands = commands_of_docs(work)
print(f"a Hugging Face folder ends text at any EOS, into a run and out of it; {refusals} configurations are refused with one line")
print(f"text from the checkpoints of {len(CASES)} runs, and of one whose recipe file is gone; bitnet beside checkpoint.last_save_in_hf is refused before the first step")
print(f"text of two processes is that of one on {meshes} meshes; a run's recipe, or none, as one line says; {exports} exports in the codes of training draw the text of their runs; {commands} commands of docs/sampling.md run")
