#!/usr/bin/env python3
"""Folders that `halftone convert --format` writes, read by transformers with compressed-tensors and torchao.

For each form of codes a small run is trained in it; its weights are exported in the training codes, and every reader gets the numbers that
halftone reads, the same log-probabilities of a text and the same greedy text in float32. Folders that compressed-tensors has written are
written again bit for bit. Each known trap of such files is a check: fp8 read as 4 bits, W4A16 taken for W4A4, the direction of NVFP4's
global scale, shards without an index, a tied head stored twice.
"""
import functools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from _program import conclude, expect, path_of, source

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import compressed_tensors
    import torch
    import torchao  # noqa: F401
    import transformers
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"skipped: export needs torch, transformers, compressed-tensors and torchao in Python ({error})")
    sys.exit(77)
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_grad_enabled(False)
torch.set_num_threads(2)
torch.manual_seed(1)
program = path_of("halftone")
work = tempfile.mkdtemp()
DENSE = {"dim": 128, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32, "ffn_dim": 256, "vocab_size": 2048, "tied": True}
MOE = {"dim": 128, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32, "expert_ffn_dim": 64, "num_experts": 4,
       "experts_per_token": 2, "vocab_size": 2048, "tied": True}
GPT_OSS = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "ffn_dim": 96, "expert_ffn_dim": 96, "num_experts": 3,
           "experts_per_token": 2, "vocab_size": 2048, "window": 16, "balance": 0}
TEXT = "The export of a model is what a server reads, and nothing else."


def at(name):
    return os.path.join(work, name)


def halftone(*words):
    return subprocess.run([program, *words], cwd=source, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="2"))


def good(*words):
    result = halftone(*words)
    assert result.returncode == 0, f"{words}:\n{result.stdout[-1500:]}{result.stderr[-3000:]}"
    return result.stdout + result.stderr


def refuse(part, *words):
    result = halftone(*words)
    line = [text for text in result.stderr.splitlines() if " - INFO - " not in text]
    expect(result.returncode == 2 and len(line) == 1 and part in line[0], f"refusal '{part}': {result.stdout}{result.stderr}")
    target = words[words.index("--to") + 1]
    expect(not os.path.exists(target) and not os.path.exists(target + ".tmp"), f"{part}: nothing is left of {target}")


def train(name, family, sizes, *more):
    good("train", "--config", "recipes/llama3_debug.toml", f"--model.name={family}", f"--model.overrides={json.dumps(sizes)}",
         "--training.seq_len=64", "--training.local_batch_size=2", "--training.steps=2", "--training.device=cpu", "--optimizer.lr=0.001", "--debug.seed=1",
         f"--job.dump_folder={at(name)}", "--checkpoint.enable", "--checkpoint.interval=2", *more)
    return at(name)


def convert(run, name, *more):
    return good("convert", "--from", run, "--to", at(name), *more)


def header(folder, file="model.safetensors"):
    with open(os.path.join(folder, file), "rb") as raw:
        size, = struct.unpack("<Q", raw.read(8))
        entries = json.loads(raw.read(size))
    entries.pop("__metadata__", None)
    return entries


def quantization(folder):
    with open(os.path.join(folder, "config.json")) as file:
        return json.load(file)["quantization_config"]


def numbers(folder, name):
    """What halftone reads from a folder of codes, as transformers loads it."""
    good("convert", "--from", folder, "--to", at(name + ".step"), "--dtype", "float32")
    good("convert", "--from", at(name + ".step"), "--to", at(name + ".numbers"))
    return at(name + ".numbers")


def load(folder, dtype=torch.float32, **more):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **more).eval()


@functools.cache
def ids_of(folder):
    return json.loads(good("logprobs", "--checkpoint", folder, "--text", at("text"), "--recipe", "none", "--dtype", "float32",
                           "--device", "cpu").splitlines()[0])


def logprobs(model, ids):
    table = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    return [table[i, token].item() for i, token in enumerate(ids[1:])]


def values_of(parameter):
    return parameter.dequantize() if type(parameter.data) is not torch.Tensor and hasattr(parameter, "dequantize") else parameter.data


def compare(name, model, plain, weights, text, folder):
    """Weights relative to their largest, and log-probabilities and greedy text beside halftone's."""
    wanted = dict(plain.named_parameters())
    found = dict(model.named_parameters())
    expect(set(found) == set(wanted), f"{name}: the same parameters, found {sorted(set(found) ^ set(wanted))[:4]}")
    worst = max(((values_of(found[key]).float() - w).abs().max() / w.abs().max()).item() for key, w in wanted.items())
    expect(worst <= weights, f"{name}: weights differ by {worst:.3g} of the largest")
    own = ids_of(folder)
    most = max(abs(a - b) for a, b in zip(logprobs(model, own["prompt_token_ids"]), own["token_logprobs"][1:]))
    expect(most <= text, f"{name}: log-probabilities differ by {most:.3g}")
    return worst, most


def greedy(name, model, folder):
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    ids = [2046] + tokenizer.encode(TEXT, add_special_tokens=False).ids
    start = len(ids)
    for _ in range(12):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    own = good("generate", "--checkpoint", folder, "--prompt", TEXT, "--max-new-tokens", "12", "--temperature", "0", "--ignore-end",
               "--recipe", "none", "--dtype", "float32", "--device", "cpu", "--quiet")
    theirs = tokenizer.decode(ids[start:], skip_special_tokens=False)
    expect(own.rstrip("\n").endswith(theirs.rstrip("\n")) and own.startswith(TEXT), f"{name}: greedy text {own!r}, expected {theirs!r}")


# The header and the configuration of each form: types of the tensors; bits, type, strategy; inputs.
FORMS = {
    "fp8_tensorwise": ("fp8_tensorwise", {"weight": "F8_E4M3", "weight_scale": "F32"}, (8, "float", "tensor"), (8, "token")),
    "fp8_rowwise": ("fp8_rowwise", {"weight": "F8_E4M3", "weight_scale": "F32"}, (8, "float", "channel"), (8, "token")),
    "fp8_blockwise": ("fp8_blockwise", {"weight": "F8_E4M3", "weight_scale": "F32"}, (8, "float", "block"), (8, "group")),
    "int8": ("int8", {"weight": "I8", "weight_scale": "F32"}, (8, "int", "channel"), (8, "token")),
    "int4": ("int4", {"weight_packed": "I32", "weight_scale": "F32", "weight_shape": "I64"}, (4, "int", "channel"), (4, "token")),
    "mxfp8": ("mxfp8_e4m3", {"weight": "F8_E4M3", "weight_scale": "U8"}, (8, "float", "group"), (8, "group")),
    "mxfp4": ("mxfp4", {"weight_packed": "U8", "weight_scale": "U8"}, (4, "float", "group"), (4, "group")),
    "nvfp4": ("nvfp4", {"weight_packed": "U8", "weight_scale": "F8_E4M3", "weight_global_scale": "F32"}, (4, "float", "tensor_group"), None),
    "int8_weight": (None, {"weight_packed": "I32", "weight_scale": "F32", "weight_shape": "I64"}, (8, "int", "channel"), None),
    "int4_g32": (None, {"weight_packed": "I32", "weight_scale": "F32", "weight_shape": "I64"}, (4, "int", "group"), None),
    "int4_g128": (None, {"weight_packed": "I32", "weight_scale": "F32", "weight_shape": "I64"}, (4, "int", "group"), None),
}
# Differences by rounding in the reader: compressed-tensors computes nvfp4 in bfloat16, torchao its scales in another order.
ROUNDED = {("nvfp4", "compressed-tensors"): 2.0**-7, ("nvfp4", "torchao"): 1e-6}
# Log-probabilities where the reader quantises the inputs, too.
INPUTS = {"int8": 0.02, "mxfp8": 0.1, "mxfp4": 0.5, "int4": 0.5, "fp8_tensorwise": 0.1, "fp8_rowwise": 0.1, "fp8_blockwise": 0.1}


def check_header(form, folder):
    _, types, weights, inputs = FORMS[form]
    entries = header(folder)
    module = "model.layers.0.mlp.up_proj."
    found = {name[len(module):]: entry["dtype"] for name, entry in entries.items() if name.startswith(module)}
    expect(found == types, f"{form}: tensors {found}")
    expect(not any(name.startswith("lm_head") for name in entries), f"{form}: the tied head is not stored again")
    config = quantization(folder)
    group = config["config_groups"]["group_0"]
    expect((group["weights"]["num_bits"], group["weights"]["type"], group["weights"]["strategy"]) == weights, f"{form}: {group['weights']}")
    known = group["input_activations"]
    expect((known and (known["num_bits"], known["strategy"])) == inputs and (not known or known["dynamic"]), f"{form}: inputs {known}")
    expect(set(config["ignore"]) == {"lm_head", "model.embed_tokens"}, f"{form}: ignored {config['ignore']}")


def dense():
    runs = {}
    plain_run = train("none", "llama3", DENSE)
    for form, (scheme, *_) in FORMS.items():
        run = runs[form] = train(form, "llama3", DENSE, f"--quantize.scheme={scheme}") if scheme else plain_run
        codes = () if scheme else ("--codes", form)
        said = convert(run, form + ".ct", "--format", "compressed-tensors", *codes)
        convert(run, form + ".ao", "--format", "torchao", *codes)
        if scheme:
            expect("14 of 14 weights are written in the codes that training multiplied with" in said and " dB" not in said, f"{form}: {said}")
        else:
            expect("0 of 14 weights" in said and said.count(" dB as ") == 14, f"{form}: the error of every weight: {said}")
        folder, other = at(form + ".ct"), at(form + ".ao")
        check_header(form, folder)
        numeric = numbers(folder, form)
        plain = load(numeric)
        rounded = ROUNDED.get((form, "compressed-tensors"), 0)
        model = load(folder, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
        compare(form, model, plain, rounded, 1e-4 if rounded == 0 else 0.02, folder)
        if rounded == 0:
            greedy(form, model, folder)
        # As servers load it: in codes, with quantised inputs. MX and NVFP4 need a bfloat16 model here.
        model = load(folder, torch.bfloat16 if "weight_packed" in FORMS[form][1] and "float" in FORMS[form][2] or form == "mxfp8" else torch.float32)
        own = ids_of(folder)
        most = max(abs(a - b) for a, b in zip(logprobs(model, own["prompt_token_ids"]), own["token_logprobs"][1:]))
        bar = INPUTS.get(form, 1e-4 if form != "nvfp4" else 0.1)
        expect(most <= bar, f"{form} in codes: log-probabilities differ by {most:.3g}")
        model = load(other)
        worst, text = compare(form + " torchao", model, plain, ROUNDED.get((form, "torchao"), 0), INPUTS.get(form, 1e-4), folder)
        print(f"{form}: compressed-tensors in codes within {most:.2g}, torchao within {text:.2g}", flush=True)
    return runs


def directions(runs):
    """NVFP4: scales are divided by the global one. Read the other way, weights are off by its square."""
    tensors = load_file(os.path.join(at("nvfp4.ct"), "model.safetensors"))
    torchao_tensors = load_file(os.path.join(at("nvfp4.ao"), "model.safetensors"))
    name = "model.layers.0.mlp.up_proj."
    whole, outer = tensors[name + "weight_global_scale"].item(), torchao_tensors[name + "_weight_per_tensor_scale"].item()
    expect(whole > 1 > outer and abs(whole * outer - 1) < 1e-6, f"the scale of all: {whole}, torchao {outer}")
    expect(torch.equal(tensors[name + "weight_packed"], torchao_tensors[name + "_weight_qdata"]), "both formats have the same codes")
    convert(runs["nvfp4"], "nvfp4.reference")
    weight = load_file(os.path.join(at("nvfp4.reference"), "model.safetensors"))[name + "weight"]
    read = load_file(os.path.join(at("nvfp4.numbers"), "model.safetensors"))[name + "weight"]
    ratio = 10 * math.log10((weight**2).sum() / ((weight - read)**2).sum())
    expect(ratio > 15, f"nvfp4 is read with {ratio:.1f} dB")


def experts():
    run = train("moe", "qwen3_moe", MOE, "--quantize.scheme=fp8_rowwise", '--quantize.targets=["Linear","GroupedExperts"]',
                '--quantize.ignore=["output","re:.*gate$"]')
    said = convert(run, "moe.ct", "--format", "compressed-tensors")
    expect("14 of 14 weights are written in the codes" in said, said)
    convert(run, "moe_int4.ct", "--format", "compressed-tensors", "--codes", "int4_g32")
    for name in ("moe", "moe_int4"):
        plain = load(numbers(at(name + ".ct"), name))
        model = load(at(name + ".ct"), quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
        compare(name, model, plain, 0, 1e-4, at(name + ".ct"))
    expect("model.layers.0.mlp.gate" in quantization(at("moe.ct"))["ignore"], "the router is ignored")
    # transformers 5.24 cannot assemble the experts of this form: the library's own decompression.
    convert(run, "moe_nvfp4.ct", "--format", "compressed-tensors", "--codes", "nvfp4")
    tensors = load_file(os.path.join(at("moe_nvfp4.ct"), "model.safetensors"))
    plain = load_file(os.path.join(numbers(at("moe_nvfp4.ct"), "moe_nvfp4"), "model.safetensors"))
    scheme = QuantizationScheme(**quantization(at("moe_nvfp4.ct"))["config_groups"]["group_0"])
    name = "model.layers.1.mlp.experts.3.down_proj."
    state = {key[len(name):]: tensor for key, tensor in tensors.items() if key.startswith(name)}
    read = BaseCompressor.get_value_from_registry(scheme.format).decompress(state, scheme)["weight"].float()
    expect(((read - plain[name + "weight"]).abs().max() / read.abs().max()).item() < 2.0**-7, "an expert's nvfp4")


def gpt_oss():
    run = train("gpt_oss", "gpt_oss", GPT_OSS, "--quantize.scheme=mxfp4", '--quantize.targets=["GptOssGroupedExperts"]')
    said = convert(run, "gpt_oss.mx", "--format", "gpt-oss-mxfp4", "--dtype", "bfloat16")
    expect("4 of 4 weights are written in the codes" in said, said)
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    coded = load_file(os.path.join(at("gpt_oss.mx"), "model.safetensors"))
    plain = load_file(os.path.join(numbers(at("gpt_oss.mx"), "gpt_oss"), "model.safetensors"))
    names = [name[:-7] for name in coded if name.endswith("_blocks")]
    expect(len(names) == 4, f"stacked experts: {names}")
    for name in names:
        expect(torch.equal(convert_moe_packed_tensors(coded[name + "_blocks"], coded[name + "_scales"]).float(), plain[name]), name)


def same_folder(name, folder, *more):
    """Written again: the same tensors and the same quantization_config."""
    method = {"compressed-tensors": "compressed-tensors", "fp8": "deepseek-fp8", "mxfp4": "gpt-oss-mxfp4"}[quantization(folder)["quant_method"]]
    said = convert(folder, name + ".again", "--format", method, *more)
    expect("are copied in the codes" in said, f"{name}: {said}")
    files = sorted(file for file in os.listdir(folder) if file.endswith(".safetensors"))
    expect(files == sorted(file for file in os.listdir(at(name + ".again")) if file.endswith(".safetensors")), f"{name}: files")
    for file in files:
        a, b = load_file(os.path.join(folder, file)), load_file(os.path.join(at(name + ".again"), file))
        expect(set(a) == set(b), f"{name}: {sorted(set(a) ^ set(b))[:4]}")
        for key in a:
            same = a[key].dtype == b[key].dtype and a[key].shape == b[key].shape
            expect(same and torch.equal(a[key].contiguous().view(torch.uint8), b[key].contiguous().view(torch.uint8)), f"{name}: {key}")
    expect(quantization(folder) == quantization(at(name + ".again")), f"{name}: quantization_config")


def foreign():
    """Folders by compressed-tensors itself: NVFP4 with scales of inputs, int4 with zero points, in shards."""
    convert(at("none"), "none.numbers", "--dtype", "bfloat16")
    tensors = load_file(os.path.join(at("none.numbers"), "model.safetensors"))
    for preset, codes in (("NVFP4", "nvfp4-pack-quantized"), ("W4A16_ASYM", "pack-quantized"), ("W4A16", "pack-quantized")):
        scheme = preset_name_to_scheme(preset, ["Linear"])
        scheme.format = codes
        written = {}
        for name, tensor in tensors.items():
            if "_proj.weight" not in name:
                written[name] = tensor
                continue
            args = scheme.weights
            state, module = {"weight": tensor}, name[:-len("weight")]
            groups = tensor.unflatten(-1, (-1, args.group_size)).float()
            low, high = groups.amin(-1), groups.amax(-1)
            if preset == "NVFP4":
                state["weight_global_scale"] = generate_gparam(low.min(), high.max())
                state["input_global_scale"] = torch.tensor([123.25])
            scale, zero = calculate_qparams(low, high, args, state.get("weight_global_scale"))
            state["weight_scale"] = scale if preset == "NVFP4" else scale.to(torch.bfloat16)
            state["weight_zero_point"] = zero
            state = BaseCompressor.get_value_from_registry(codes).compress(state, scheme)
            written.update({module + key: value.contiguous() for key, value in state.items()})
        folder = at("foreign_" + preset)
        shutil.copytree(at("none.numbers"), folder)
        os.remove(os.path.join(folder, "model.safetensors"))
        keys = sorted(written)
        index = {key: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, key in enumerate(keys)}
        for file in set(index.values()):
            save_file({key: written[key] for key in keys if index[key] == file}, os.path.join(folder, file), {"format": "pt"})
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": index}, file)
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
        config["quantization_config"] = {"quant_method": "compressed-tensors", "format": codes, "quantization_status": "compressed",
                                         "config_groups": {"group_0": json.loads(scheme.model_dump_json())}, "ignore": ["lm_head"],
                                         "kv_cache_scheme": None, "version": compressed_tensors.__version__}
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        same_folder(preset, folder)
    same_folder("gpt_oss_again", at("gpt_oss.mx"))
    convert(at("none"), "deepseek", "--format", "deepseek-fp8")
    other = load_file(os.path.join(at("deepseek"), "model.safetensors"))
    for name in other:
        if name.endswith("_scale_inv"):
            other[name] = other[name] * 1.7  # scales of another rule
    save_file(other, os.path.join(at("deepseek"), "model.safetensors"), {"format": "pt"})
    same_folder("deepseek_again", at("deepseek"))


def shards(runs):
    convert(runs["int8"], "shards", "--format", "compressed-tensors", "--max-shard-bytes", "100000")
    with open(os.path.join(at("shards"), "model.safetensors.index.json")) as file:
        index = json.load(file)
    names = {name: file for file in sorted(set(index["weight_map"].values())) for name in header(at("shards"), file)}
    expect(len(set(names.values())) > 3 and names == index["weight_map"], f"every tensor is in the index: {sorted(set(names) ^ set(index['weight_map']))[:4]}, {len(set(names.values()))} files")
    expect(index["metadata"]["total_size"] == sum(entry["data_offsets"][1] - entry["data_offsets"][0] for file in set(names.values())
                                                  for entry in header(at("shards"), file).values()), "total_size")
    a, b = load(at("shards")), load(at("int8.ct"))
    same = all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))
    expect(same and a.lm_head.weight.data_ptr() == a.model.embed_tokens.weight.data_ptr(), "shards hold the same model, with a tied head")
    os.remove(os.path.join(at("shards"), "model.safetensors.index.json"))
    refuse("expected", "convert", "--from", at("shards"), "--to", at("out"))


def phases_and_heads():
    """The codes are those of the step's phase; blocks that heads of 96 cut are quantised again, and the command says so."""
    run = train("phases", "llama3", DENSE, "--quantize.scheme=int8", '--quantize.phases=[{"from":2,"scheme":"fp8_rowwise"}]')
    said = convert(run, "phases.ct", "--format", "compressed-tensors")
    types = {entry["dtype"] for name, entry in header(at("phases.ct")).items() if name.endswith("_proj.weight")}
    expect("14 of 14 weights are written in the codes" in said and types == {"F8_E4M3"}, f"phases: {types} {said}")
    run = train("heads", "llama3", DENSE | {"dim": 192, "n_heads": 2, "head_dim": 96, "ffn_dim": 320}, "--quantize.scheme=fp8_blockwise")
    said = convert(run, "heads.ct", "--format", "compressed-tensors")
    expect("10 of 14 weights are written in the codes" in said and said.count("rows of a head in another order") == 4, f"heads: {said}")
    model = load(at("heads.ct"), quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    compare("heads", model, load(numbers(at("heads.ct"), "heads")), 0, 1e-4, at("heads.ct"))


def refusals(runs):
    run = runs["int8"]
    out = ("--to", at("out"), "--format")
    refuse("--format awq: unknown, expected compressed-tensors, ", "convert", "--from", run, *out, "awq")
    refuse("--codes int8 needs --format: compressed-tensors, torchao", "convert", "--from", run, "--to", at("out"), "--codes", "int8")
    refuse("--codes int3: unknown, expected fp8_tensorwise, ", "convert", "--from", run, *out, "torchao", "--codes", "int3")
    refuse("no recipe trains with fixed scales", "convert", "--from", run, *out, "compressed-tensors", "--codes", "int8_static")
    refuse("deepseek-fp8 holds fp8_blockwise", "convert", "--from", run, *out, "deepseek-fp8", "--codes", "int8")
    refuse("gpt-oss-mxfp4 is not a format of LlamaForCausalLM files", "convert", "--from", run, *out, "gpt-oss-mxfp4")
    refuse("was not trained in codes; choose those to write: --codes ", "convert", "--from", at("none"), *out, "compressed-tensors")
    for scheme, options, part in (("mxint8", (), "has no place for the codes of mxint8"), ("amdfp4", (), "of amdfp4"),
                                  ("mxfp4", ("--quantize.two_level_scaling=blockwise",), "factors of macro blocks"),
                                  ("int8", ("--quantize.stochastic_rounding",), "codes that are drawn anew in every step"),
                                  ("int4_weight", (), "")):
        folder = train(f"refused_{scheme}{len(options)}", "llama3", DENSE, f"--quantize.scheme={scheme}", "--checkpoint.last_save_model_only", *options)
        refuse(part or "has no place for the codes of int4_weight", "convert", "--from", folder, *out, "compressed-tensors")
    said = convert(at("refused_mxint80"), "chosen", "--format", "compressed-tensors", "--codes", "int4_g32")
    expect(said.count("(trained as int8 32x32 e8m0 rceil)") == 14, f"the reason of every error: {said}")


def documented(runs):
    """The commands of docs/export.md."""
    with open(os.path.join(source, "docs/export.md")) as file:
        lines = [line.split() for line in file if line.startswith("halftone convert ")]
    expect(len(lines) == 6, f"commands: {len(lines)}")
    places = {"outputs/run": runs["fp8_blockwise"], "outputs/gpt_oss": at("gpt_oss")}
    for line in lines:
        good(*[places.get(word, at(word.replace("outputs/", "docs_")) if word.startswith("outputs/") else word) for word in line[1:]])


def main():
    with open(at("text"), "w") as file:
        file.write(TEXT)
    runs = dense()
    directions(runs)
    experts()
    gpt_oss()
    foreign()
    shards(runs)
    phases_and_heads()
    refusals(runs)
    documented(runs)
    print(f"transformers {transformers.__version__}, compressed-tensors {compressed_tensors.__version__}, torchao {torchao.__version__}")
    conclude()


try:
    main()
finally:
    shutil.rmtree(work, ignore_errors=True)
