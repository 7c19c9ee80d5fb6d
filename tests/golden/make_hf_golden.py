#!/usr/bin/env python3
"""Makes the golden files of the dense families: tiny random models of Hugging Face transformers, their loss, every gradient, and
64 tokens of greedy generation.

    python tests/golden/make_hf_golden.py [--out tests/golden] [--seed 7] [NAME ...]
    python tests/golden/make_hf_golden.py --compare EXPORTED [--out tests/golden] [NAME ...]

The second form makes nothing: it lets transformers read EXPORTED/<name>, where halftone has written these models, and compares logits.

Needs torch, transformers and safetensors in the Python that runs it (made with torch 2.11, transformers 5.24); the tests
themselves only read the files. Each model becomes a folder:

    config.json, model.safetensors   as Hugging Face writes them; weights in bfloat16, of llama_untied in float32
    golden.safetensors               input_ids [2, 24] int64, labels [2, 24] int64, loss [], logits [2, 24, V] and, under
                                     "grad.<Hugging Face name>", the gradient of every parameter, all float32;
                                     prompt [P] int64, greedy [64] int64, greedy_margin []: the smallest distance of the two largest
                                     logits on the way

Everything is computed in float32 with the weights of the file. labels[b, s] is the token to be predicted at position s (already
shifted); -100 marks positions that do not count. The loss is the mean of the cross-entropy over the positions that count. A tied
model has one gradient, under the embedding's name. Greedy generation is transformers' own, with its cache; with dynamic RoPE its
frequencies follow the length reached, and keys in the cache keep the rotation of the length at which they entered.

CASES says what each model is there for. Its config.json is in the spelling of transformers 5 (rope_parameters), or, with
published=True, in that of published checkpoints (rope_theta, rope_scaling).
"""
import argparse
import dataclasses
import json
import pathlib

ROWS, LENGTH, PROMPT, GENERATED = 2, 24, 5, 64


@dataclasses.dataclass
class Case:
    model_type: str
    config: dict  # of transformers' class, beside COMMON
    rope: dict    # rope_parameters, rope_type "default" unless it says another
    published: bool = False
    dtype: str = "bfloat16"  # of the file


COMMON = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=96,
              max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=94, eos_token_id=95)
WIDE = dict(head_dim=16)  # eight frequencies
# Kept up to index 2, divided by 4 from index 6 on.
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=4096)
# Kept at index 0, divided from 3 on; not truncated: from 0.28 to 2.69.
YARN_SHORT = dict(rope_type="yarn", rope_theta=1e3, factor=4.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0)

CASES = {
    # Grouped queries, two layers.
    "llama_untied": Case("llama", dict(num_hidden_layers=2, rms_norm_eps=1e-5), dict(rope_theta=5e5), dtype="float32"),
    # One KV head. Head width 16: wavelengths 6.3 (kept), 19.9 (between), 62.8 and more (divided by 8).
    "llama_tied": Case("llama", dict(WIDE, num_hidden_layers=2, num_key_value_heads=1, tie_word_embeddings=True),
                       dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                            original_max_position_embeddings=32), published=True),
    "llama_linear": Case("llama", WIDE, dict(rope_type="linear", rope_theta=1e4, factor=3.0), published=True),
    "llama_yarn": Case("llama", dict(WIDE, max_position_embeddings=16384), YARN, published=True),
    "llama_yarn_factor": Case("llama", WIDE, dict(YARN_SHORT, attention_factor=0.7)),
    "llama_yarn_mscale": Case("llama", WIDE, dict(YARN_SHORT, mscale=1.0, mscale_all_dim=0.4, truncate=False)),
    # Rows of 24 are longer than the first training's 16; transformers takes that from max_position_embeddings.
    "llama_dynamic": Case("llama", dict(WIDE, max_position_embeddings=16), dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
    "llama_bias": Case("llama", dict(num_hidden_layers=2, attention_bias=True, mlp_bias=True), dict(rope_theta=1e4)),
    # As Llama 2 and SmolLM are.
    "llama2": Case("llama", dict(num_key_value_heads=4, rms_norm_eps=1e-5), dict(rope_theta=1e4), published=True),
    "smollm": Case("llama", dict(hidden_size=72, num_attention_heads=9, num_key_value_heads=3, intermediate_size=32, rms_norm_eps=1e-5,
                                 tie_word_embeddings=True), dict(rope_theta=1e5), published=True),
    # Windows shorter than the row; heads * head_dim differs from hidden_size.
    "mistral": Case("mistral", dict(WIDE, num_hidden_layers=2, sliding_window=7), dict(rope_theta=1e4)),
    "mistral_full": Case("mistral", dict(num_hidden_layers=2, sliding_window=None), dict(rope_theta=1e6), published=True),
    # A head width that is no power of two, more than 64, and seven heads on one of K and V.
    "mistral_odd": Case("mistral", dict(hidden_size=16, num_attention_heads=7, num_key_value_heads=1, head_dim=80, sliding_window=None),
                        dict(rope_theta=1e4)),
    "qwen2": Case("qwen2", dict(hidden_size=48, num_attention_heads=14, num_key_value_heads=2, head_dim=8, intermediate_size=32,
                                tie_word_embeddings=True), dict(rope_theta=1e6), published=True),
    # Layer 0 sees all, layer 1 a window.
    "qwen2_window": Case("qwen2", dict(num_hidden_layers=2, use_sliding_window=True, sliding_window=6, max_window_layers=1),
                         dict(rope_theta=1e6)),
    "qwen3": Case("qwen3", dict(num_attention_heads=3, num_key_value_heads=1, head_dim=80, intermediate_size=32,
                                tie_word_embeddings=True), dict(rope_theta=1e6), published=True),
    "qwen3_untied": Case("qwen3", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=64, attention_bias=True),
                         dict(rope_theta=1e6)),
}


def published_spelling(folder):
    """Rewrites rope_parameters of transformers 5 as rope_theta and rope_scaling, which older files have."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make_model(case, seed):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(case.model_type, **{**COMMON, **case.config}, rope_parameters=dict({"rope_type": "default"}, **case.rope))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        # Larger than the usual 0.02, norms that differ from one, biases from zero: every path then shows in the gradients.
        for key, parameter in model.named_parameters():
            if key.endswith(".bias"):
                parameter.normal_(0.0, 0.3)
            elif parameter.dim() == 1:
                parameter.normal_(1.0, 0.2)
            else:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
            parameter.copy_(parameter.to(getattr(torch, case.dtype)))
    return model.eval()


def greedy(case, seed):
    """(prompt, tokens, margin) of the first of 32 prompts whose tokens vary and whose smallest margin is healthy, else of the one with the
    largest margin. The model is a fresh one: dynamic RoPE remembers the longest row."""
    import torch
    from transformers import GenerationConfig

    model = make_model(case, seed)
    prompts = torch.randint(COMMON["vocab_size"], (32, PROMPT))
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=GENERATED, pad_token_id=0, output_logits=True,
                                               return_dict_in_generate=True)
    with torch.no_grad():
        result = model.generate(prompts, attention_mask=torch.ones_like(prompts))
    tokens = result.sequences[:, PROMPT:]
    best = torch.stack(result.logits, 1).topk(2).values  # [prompts, GENERATED, 2]
    margins = (best[..., 0] - best[..., 1]).min(1).values
    varied = torch.tensor([len(set(row.tolist())) for row in tokens]) >= 8
    assert tokens.shape == (32, GENERATED)
    healthy = (varied & (margins > 5e-3)).nonzero().flatten().tolist()
    chosen = healthy[0] if healthy else int(margins.argmax())
    assert margins[chosen] > 1e-3, margins
    return prompts[chosen].clone(), tokens[chosen].clone(), margins[chosen].clone()


def make(name, folder, seed):
    import torch
    from safetensors.torch import save_file

    case = CASES[name]
    torch.use_deterministic_algorithms(True)
    model = make_model(case, seed)
    vocabulary = model.config.vocab_size
    input_ids = torch.randint(vocabulary, (ROWS, LENGTH))
    labels = torch.randint(vocabulary, (ROWS, LENGTH))
    labels[torch.rand(ROWS, LENGTH) < 0.2] = -100
    labels[0, -1] = -100

    logits = model(input_ids=input_ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    prompt, tokens, margin = greedy(case, seed)
    tensors = {"input_ids": input_ids, "labels": labels, "loss": loss.detach(), "logits": logits.detach().contiguous(),
               "prompt": prompt, "greedy": tokens, "greedy_margin": margin}
    others = len(tensors)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-6, key
        tensors["grad." + key] = parameter.grad.clone()  # the model is converted below

    folder.mkdir(parents=True, exist_ok=True)
    model.to(getattr(torch, case.dtype)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case.published:
        published_spelling(folder)
    save_file(tensors, folder / "golden.safetensors", {"format": "pt", "seed": str(seed)})
    counted = int((labels != -100).sum())
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: loss {loss.item():.6f} over {counted} positions, {len(tensors) - others} gradients, greedy margin {margin.item():.4f} "
          f"over {len(set(tokens.tolist()))} tokens, seed {seed}, {size / 1000:.0f} kB, {folder}")


def compare(name, folder, exported):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    golden = load_file(folder / "golden.safetensors")
    model = AutoModelForCausalLM.from_pretrained(exported, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=golden["input_ids"], use_cache=False).logits
    difference = ((logits - golden["logits"]).norm() / golden["logits"].norm()).item()
    print(f"{name}: relative difference of the exported model's logits {difference:.1e}")
    if not difference < 1e-6:
        raise SystemExit(f"{exported}: transformers computes other logits than for {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; without any: all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--compare", type=pathlib.Path, metavar="EXPORTED", help="read these folders instead of making any")
    arguments = parser.parse_args()
    for name in arguments.names or CASES:
        if arguments.compare:
            compare(name, arguments.out / name, arguments.compare / name)
        else:
            make(name, arguments.out / name, arguments.seed)


if __name__ == "__main__":
    main()
