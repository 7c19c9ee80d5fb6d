#!/usr/bin/env python3
"""halftone convert --format gguf, judged by the gguf wheel: every entry and tensor of small models of every family, under the names that its
own map gives Hugging Face's; codes of a run as they are, codes of ggml's rules bit for bit. Then by transformers' reader, with equal logits,
and by llama.cpp itself; and what is refused, without half files.
"""
import importlib.util
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from _program import conclude, expect, path_of, source

for needed in ("gguf", "torch", "transformers", "accelerate", "xllamacpp"):
    if importlib.util.find_spec(needed) is None:
        print(f"skipped: {needed} is not installed")
        sys.exit(77)
import gguf
from gguf.constants import GGMLQuantizationType as Type
from safetensors import safe_open
from tokenizers import Tokenizer

program = path_of("halftone")
SMALL = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 128, "vocab_size": 2048}
EXPERTS = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_dim": 64, "balance": 0}
MODELS = {
    "llama3": ("llama", {**SMALL, "attention_bias": True, "rope_scaling": True, "rope_factor": 8.0, "rope_original_context": 64}),
    "mistral": ("llama", {**SMALL, "window": 256}),
    "qwen2": ("qwen2", {**SMALL, "tied": False}),
    "qwen3": ("qwen3", {**SMALL, "head_dim": 128, "tied": True}),
    "qwen3_moe": ("qwen3moe", {**SMALL, **EXPERTS, "head_dim": 128, "expert_ffn_dim": 768}),
    "gpt_oss": ("gpt-oss", {**SMALL, **EXPERTS, "head_dim": 16, "window": 16}),
    "deepseek_v3": ("deepseek2", {**SMALL, **EXPERTS, "n_kv_heads": 4, "shared_experts": 1, "dense_layers": 1, "q_lora_rank": 32, "kv_lora_rank": 32,
                                  "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "route_score": "sigmoid", "route_scale": 2.5}),
}
TEXT = "It's 123456 o'clock,  naïve 漢字\n\n\tdef f(x): return x<|end_of_text|>!"
# Each in a process of its own. transformers' log-probabilities of the last token for folders, as JSON, and that files have the same logits.
LOGITS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
ids = torch.arange(40)[None] * 37 % 2048
def logits(*where, **more):
    model = AutoModelForCausalLM.from_pretrained(*where, dtype=torch.float32, attn_implementation="eager", **more).eval()
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0]
last = []
for folder, file in zip(sys.argv[1::2], sys.argv[2::2]):
    of_folder = logits(folder)
    last.append(torch.log_softmax(of_folder[-1].double(), -1).tolist())
    if file:
        assert torch.equal(of_folder, logits(file.rpartition("/")[0], gguf_file=file.rpartition("/")[2])), file
print(json.dumps(last))
"""
# llama.cpp's log-probabilities of all tokens, by id.
LLAMA_CPP = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.fit_params = 256, 1, 0, False, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
def last(prompt):
    answer = server.handle_completions({"prompt": prompt, "n_predict": 1, "n_probs": 2048, "temperature": 0, "cache_prompt": False})
    answer = json.loads(answer) if isinstance(answer, str) else answer
    found = {t["id"]: t["logprob"] for t in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    return [found[i] for i in range(2048)]
if len(sys.argv) > 2:
    assert last(sys.argv[2]) == last(json.loads(sys.argv[3])), "other tokens"
print(json.dumps(last([i * 37 % 2048 for i in range(40)])))
"""


def good(*words):
    result = subprocess.run([program, *words], cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, f"{words}:\n{result.stdout[-1500:]}{result.stderr}"
    return result.stdout + result.stderr


def convert(start, end, *more):
    return good("convert", "--from", start, "--to", end, *more)


def refuse(part, start, end, *more, **limits):
    result = subprocess.run([program, "convert", "--from", start, "--to", end, "--format", "gguf", *more], cwd=source, capture_output=True, text=True,
                            **limits)
    one = result.returncode == 2 and part in result.stderr and len(result.stderr.splitlines()) == 1
    expect(one and not os.path.exists(end + ".tmp"), f"refusal with '{part}': {result.stdout}{result.stderr}")


def train(model, folder, *more):
    # The seed decides the likeliest token, which must be whole characters: llama.cpp's server has no probabilities for others.
    good("train", "--config", "recipes/llama3_debug.toml", f"--model.name={model}", f"--model.overrides={json.dumps(MODELS[model][1])}",
         "--training.seq_len=64", "--training.local_batch_size=2", "--training.steps=1", "--training.device=cpu", "--debug.seed=1",
         f"--job.dump_folder={folder}", "--checkpoint.enable", "--checkpoint.interval=1", *more)
    return os.path.join(folder, "checkpoint", "step-1")


def folder_tensors(folder):
    with safe_open(os.path.join(folder, "model.safetensors"), "np") as file:
        return {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}


def pairs(weight, heads):
    """Rows of heads from halves to neighbouring pairs."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def expected_tensors(arch, folder):
    """A folder as llama.cpp's converter writes it: names by gguf's map, heads in pairs, experts stacked, latent keys and values apart."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    out, experts = {}, {}

    def put(name, value):
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, f"{arch}: gguf does not know {name}"
        out[mapped] = value

    for name, value in folder_tensors(folder).items():
        if arch == "llama" and ".q_proj." in name:
            value = pairs(value, config["num_attention_heads"])
        if arch == "llama" and ".k_proj." in name:
            value = pairs(value, config["num_key_value_heads"])
        if ".mlp.experts." in name and arch != "gpt-oss":
            head, _, rest = name.partition(".experts.")
            expert, _, rest = rest.partition(".")
            experts.setdefault(f"{head}.experts.{rest}", {})[int(expert)] = value
        elif "gate_up_proj" in name or name.endswith(("experts.down_proj", "experts.down_proj_bias")):
            bias = name.endswith("_bias")
            value = value if bias else value.swapaxes(1, 2)
            name = name.removesuffix("_bias")
            ending = ".bias" if bias else ".weight"
            if "gate_up" in name:
                put(name.replace("gate_up_proj", "gate_proj") + ending, value[:, 0::2])
                put(name.replace("gate_up_proj", "up_proj") + ending, value[:, 1::2])
            else:
                put(name + ending, value)
        elif ".kv_b_proj." in name:
            both = value.reshape(config["num_attention_heads"], config["qk_nope_head_dim"] + config["v_head_dim"], -1)
            put(name.replace("kv_b_proj", "k_b_proj"), both[:, :config["qk_nope_head_dim"]].swapaxes(1, 2))
            put(name.replace("kv_b_proj", "v_b_proj"), both[:, config["qk_nope_head_dim"]:])
        elif name.endswith("e_score_correction_bias"):
            put(name.replace("e_score_correction_bias", "e_score_correction") + ".bias", value)
        else:
            put(name + ".weight" if name.endswith("sinks") else name, value)
    for name, parts in experts.items():
        put(name, np.stack([parts[i] for i in range(len(parts))]))
    return config, out


def read(path):
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {t.name: (t.tensor_type, np.array(t.data), [int(n) for n in t.shape][::-1]) for t in reader.tensors}
    for t in reader.tensors:
        assert t.data_offset % 32 == 0, t.name
    return fields, tensors


def numbers(tensor):
    kind, data, shape = tensor
    return gguf.quants.dequantize(data, kind).reshape(shape)


def bf16(values):
    return gguf.quants.dequantize(gguf.quants.quantize(values, Type.BF16), Type.BF16).reshape(values.shape)


def same(found, wanted):
    return found.shape == wanted.shape and np.array_equal(found, wanted)


def check_entries(arch, config, fields):
    key = lambda name: fields.get(f"{arch}.{name}")
    expect(fields["general.architecture"] == arch and fields["general.quantization_version"] == 2, f"{arch}: general entries")
    for entry, name in (("embedding_length", "hidden_size"), ("block_count", "num_hidden_layers"), ("attention.head_count", "num_attention_heads"),
                        ("vocab_size", "vocab_size"), ("feed_forward_length", "intermediate_size"), ("expert_used_count", "num_experts_per_tok"),
                        ("attention.q_lora_rank", "q_lora_rank"), ("attention.kv_lora_rank", "kv_lora_rank"), ("rope.freq_base", "rope_theta"),
                        ("leading_dense_block_count", "first_k_dense_replace"), ("expert_weights_scale", "routed_scaling_factor")):
        if name in config:
            expect(key(entry) == config[name], f"{arch}.{entry} is {key(entry)}, config.json says {config[name]}")
    expect(abs(key("attention.layer_norm_rms_epsilon") - config["rms_norm_eps"]) < 1e-12, f"{arch}: epsilon")
    with open(os.path.join(source, "tests/assets/tokenizer/tokenizer.json")) as file:
        model = json.load(file)["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    tokens = fields["tokenizer.ggml.tokens"]
    expect(fields["tokenizer.ggml.model"] == "gpt2" and fields["tokenizer.ggml.merges"] == merges, f"{arch}: merges")
    expect(len(tokens) == 2048 and all(tokens[i] == token for token, i in model["vocab"].items()), f"{arch}: tokens")
    for entry, token in (("bos", "<|begin_of_text|>"), ("eos", "<|end_of_text|>")):  # llama.cpp's default of either is id 11
        expect(tokens[fields.get(f"tokenizer.ggml.{entry}_token_id", 11)] == token, f"{arch}: {entry}")


def check_family(work, model):
    arch, _ = MODELS[model]
    step = train(model, os.path.join(work, model))
    # transformers takes Llama's architecture under another name where the file's name has "mistral" in it.
    stem = "windows" if model == "mistral" else model
    folder, plain, again = (os.path.join(work, f"{stem}{ending}") for ending in ("_hf", ".gguf", "_again.gguf"))
    convert(step, folder)
    convert(step, plain, "--format", "gguf", "--codes", "f32")
    config, wanted = expected_tensors(arch, folder)
    fields, tensors = read(plain)
    check_entries(arch, config, fields)
    freqs = tensors.pop("rope_freqs.weight", None)
    expect((freqs is not None) == (model == "llama3"), f"{model}: RoPE's factors")
    expect(set(tensors) == set(wanted), f"{model}: names {sorted(set(tensors) ^ set(wanted))[:6]}")
    for name, value in wanted.items():
        expect(tensors[name][0] == Type.F32 and same(numbers(tensors[name]), value), f"{model}: {name}")
    convert(folder, again, "--format", "gguf")  # the folder's own type
    fields_again, tensors_again = read(again)
    tensors = read(plain)[1]
    expect({**fields_again, "general.name": ""} == {**fields, "general.name": ""}, f"{model}: entries from the folder")
    expect(tensors.keys() == tensors_again.keys(), f"{model}: names from the folder")
    for name, (kind, data, shape) in tensors_again.items():
        expect((kind, shape) == tensors[name][::2] and np.array_equal(data, tensors[name][1]), f"{model}: {name} from the folder")
    # Codes by ggml's rules: the bytes of the wheel's quantisers. Embedding and head are q8_0, other tensors fp32.
    for codes, kind in (("q8_0", Type.Q8_0), ("q4_0", Type.Q4_0), ("bf16", Type.BF16), ("f16", Type.F16)):
        if kind in (Type.BF16, Type.F16) and model not in ("gpt_oss", "deepseek_v3"):
            continue
        coded = os.path.join(work, f"{model}_{codes}.gguf")
        convert(step, coded, "--format", "gguf", "--codes", codes)
        _, tensors = read(coded)
        kinds = set()
        for name, value in wanted.items():
            found, data, _ = tensors[name]
            table = name in ("token_embd.weight", "output.weight")
            exact = value.ndim == 1 or name.endswith(".bias") or ".ffn_gate_inp." in name
            meant = Type.F32 if exact else Type.Q8_0 if table and codes == "q4_0" else kind
            if name.endswith("attn_k_b.weight") and codes.startswith("q"):
                continue  # the numbers of codes whose columns became rows
            expect(found == meant, f"{model} {codes}: {name} is {found.name}")
            bytes_ = gguf.quants.quantize(np.ascontiguousarray(value), meant)
            expect(np.array_equal(data.reshape(-1).view(np.uint8), np.ascontiguousarray(bytes_).reshape(-1).view(np.uint8)), f"{model} {codes}: bytes of {name}")
            kinds.add(found)
        expect(kinds == {Type.F32, kind} | ({Type.Q8_0} if codes == "q4_0" else set()), f"{model} {codes}: types {kinds}")
    return step, folder, plain


def check_training_codes(work, model, scheme, kind, added):
    """A run's codes as they are: the reader gets the numbers that another export of the same codes holds."""
    step = train(model, os.path.join(work, f"{model}_{scheme}"), f"--quantize.scheme={scheme}", "--quantize.targets=[\"Linear\", \"GroupedExperts\"]")
    file, folder, numbers_folder = (os.path.join(work, f"{model}_{scheme}{ending}") for ending in (".gguf", "_codes", "_numbers"))
    said = convert(step, file, "--format", "gguf")
    counts = [line for line in said.splitlines() if "codes that training multiplied with" in line]
    expect(len(counts) == 1 and ("signal to error" in said) == added, f"{model} {scheme}: {said}")
    stacked = model == "gpt_oss"  # whose folders hold experts alone as codes
    convert(step, folder, "--format", "gpt-oss-mxfp4" if stacked else "compressed-tensors")
    _, tensors = read(file)
    coded = [name for name, tensor in tensors.items() if tensor[0] == kind and ("_exps" in name or not stacked)]
    expect(len(coded) >= (6 if "num_experts" in MODELS[model][1] else 14), f"{model} {scheme}: {len(coded)} tensors of {kind.name}")
    if kind == Type.NVFP4:
        return check_nvfp4_bytes(folder, tensors, coded)
    native = os.path.join(work, f"{model}_{scheme}_native")
    convert(folder, native, "--dtype", "float32")
    convert(native, numbers_folder)
    _, wanted = expected_tensors(MODELS[model][0], numbers_folder)
    again = file.replace(".gguf", "_again.gguf")
    convert(folder, again, "--format", "gguf")  # codes of an MXFP4 folder
    of_folder = read(again)[1]
    for name in coded:
        value = numbers(tensors[name])
        expect(kind != Type.MXFP4 or (of_folder[name][0] == kind and same(numbers(of_folder[name]), value)), f"{model} {scheme}: {name} from the folder")
        if added:
            expect(np.abs(value - wanted[name]).max() <= np.abs(wanted[name]).max() * 2.0**-11, f"{model} {scheme}: {name} beyond fp16 scales")
        else:
            expect(same(value, wanted[name]), f"{model} {scheme}: {name}")


def nibbles(data):
    return np.stack([data & 15, data >> 4], axis=-1).astype(np.uint8)


def check_nvfp4_bytes(folder, tensors, coded):
    """Codes, scales and factors are those of compressed-tensors, which divides by the factor."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        raw = file.read()
    size, = struct.unpack("<Q", raw[:8])
    header = {name: (t["shape"], *t["data_offsets"]) for name, t in json.loads(raw[8:8 + size]).items() if name != "__metadata__"}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    modules = [name.removesuffix(".weight_packed") for name in header if name.endswith(".weight_packed")]
    expect(sorted(names.get_name(module) + ".weight" for module in modules) == sorted(coded), "nvfp4: other weights than compressed-tensors")
    for module in modules:
        def part(word, dtype):
            shape, begin, end = header[f"{module}.{word}"]
            return np.frombuffer(raw[8 + size + begin:8 + size + end], dtype).reshape(shape)
        name = names.get_name(module)
        blocks = tensors[name + ".weight"][1].reshape(-1, 36)
        scales, codes = blocks[:, :4], nibbles(blocks[:, 4:].reshape(-1, 8)).swapaxes(1, 2)
        expect(np.array_equal(codes.reshape(-1), nibbles(part("weight_packed", np.uint8)).reshape(-1)), f"nvfp4: codes of {name}")
        expect(np.array_equal(scales.reshape(-1), part("weight_scale", np.uint8).reshape(-1)), f"nvfp4: scales of {name}")
        factor = numbers(tensors[name + ".scale"])
        expect(np.array_equal(np.float32(1) / factor.reshape(-1), part("weight_global_scale", np.float32).reshape(-1)), f"nvfp4: factor of {name}")


def check_nvfp4(work, step, folder):
    """Not trained in it: halftone's own rule, with the factor beside each matrix."""
    file = os.path.join(work, "nvfp4.gguf")
    said = convert(step, file, "--format", "gguf", "--codes", "nvfp4")
    _, wanted = expected_tensors("qwen3", folder)
    _, tensors = read(file)
    coded = [name for name, tensor in tensors.items() if tensor[0] == Type.NVFP4]
    expect(len(coded) == 14 and "signal to error" in said, f"nvfp4: {len(coded)} tensors, {said}")
    for name in coded:
        value = numbers(tensors[name]) * numbers(tensors[name.replace(".weight", ".scale")])
        error = np.square(value - wanted[name]).sum() / np.square(wanted[name]).sum()
        expect(0 < error < 0.02, f"nvfp4: {name} has a relative error of {error**0.5:.3g}")


def refusals(work, folder, experts):
    out = os.path.join(work, "refused.gguf")
    refuse("--codes q9: unknown, expected f32, f16, bf16, q8_0", folder, out, "--codes", "q9")
    refuse("--check reads folders", folder, out, "--check")
    refuse("it exists; name a new file", folder, __file__)
    refuse("no type of GGUF holds e4m3", train("qwen3", os.path.join(work, "fp8"), "--quantize.scheme=fp8_rowwise"), out)
    other = train("llama3", os.path.join(work, "narrow"), '--model.overrides={"dim": 48, "n_heads": 2, "n_kv_heads": 2, "n_layers": 1, "vocab_size": 2048}')
    refuse("rows of 48 elements do not divide into the 32 of a block of q8_0", other, out, "--codes", "q8_0")
    copy = os.path.join(work, "gates")
    shutil.copytree(experts, copy)
    with open(os.path.join(copy, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(copy, "config.json"), "w") as file:
        json.dump({**config, "norm_topk_prob": False}, file)
    refuse("the architecture qwen3moe has softmax gates that sum to 1", copy, out)
    copy = os.path.join(work, "split")
    shutil.copytree(folder, copy)
    path = os.path.join(copy, "tokenizer.json")
    with open(path) as file:
        text = file.read()
    pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    assert pattern in text, text[:3000]
    with open(path, "w") as file:
        file.write(text.replace(pattern, "", 1))
    refuse("GGUF names split patterns", copy, out)

    def small_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    refuse("File too large", folder, out, preexec_fn=small_disk)
    expect(not os.path.exists(out), "a refused file exists")


def answer(script, *words):
    result = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    expect(result.returncode == 0, result.stdout[-1000:] + result.stderr[-3000:])
    return json.loads(result.stdout.strip().splitlines()[-1]) if result.returncode == 0 else None


def check_logits(made, coded):
    """coded: model, file of codes."""
    known = ("mistral", "qwen2", "qwen3", "qwen3_moe")  # that transformers reads from such files
    last = answer(LOGITS, *[path for model, (_, folder, file) in made.items() for path in (folder, file if model in known else "")])
    wanted = dict(zip(made, last or []))
    tokenizer = Tokenizer.from_file(os.path.join(source, "tests/assets/tokenizer/tokenizer.json"))
    for model, file in [(model, file) for model, (_, _, file) in made.items()] + coded:
        found = answer(LLAMA_CPP, file, *([TEXT, json.dumps(tokenizer.encode(TEXT).ids)] if model == "llama3" else []))
        if found is None or model not in wanted:
            continue
        p, q = np.array(wanted[model]), np.array(found)
        if (model, file) in coded:  # its products quantise their inputs too
            divergence = (np.exp(p) * (p - q)).sum()
            expect(0 < divergence < 1e-3 and p.argmax() == q.argmax(), f"llama.cpp: {file}: KL {divergence:.3g}")
        else:
            expect(np.abs(p - q).max() < 1e-3, f"llama.cpp: {model}: log-probabilities differ by {np.abs(p - q).max():.3g}")
    print(f"equal logits of {len(known)} families in transformers; log-probabilities of {len(made)} families and {len(coded)} files of codes in llama.cpp")


with tempfile.TemporaryDirectory() as work:
    with ThreadPoolExecutor(2) as pool:
        made = dict(zip(MODELS, pool.map(lambda model: check_family(work, model), MODELS)))
        runs = (("llama3", "mxfp4", Type.MXFP4, False), ("qwen3", "nvfp4", Type.NVFP4, False), ("qwen3_moe", "mxfp4", Type.MXFP4, False),
                ("gpt_oss", "mxfp4", Type.MXFP4, False), ("qwen2", "int8", Type.Q8_0, True))
        list(pool.map(lambda run: check_training_codes(work, *run), runs))
    print(f"{len(made)} families: names, entries, f32, bf16, f16, q8_0 and q4_0 bit for bit")
    print("codes of training: mxfp4, nvfp4 as they are, int8 with fp16 scales")
    check_nvfp4(work, *made["qwen3"][:2])
    refusals(work, made["qwen3"][1], made["qwen3_moe"][1])
    coded = [("qwen3", os.path.join(work, "nvfp4.gguf")), ("gpt_oss", os.path.join(work, "gpt_oss_4.gguf")), ("llama3", os.path.join(work, "llama3_q8_0.gguf"))]
    convert(made["gpt_oss"][0], coded[1][1], "--format", "gguf", "--codes", "mxfp4")
    check_logits(made, coded)
conclude()
