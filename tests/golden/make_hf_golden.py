#!/usr/bin/env python3
"""Makes the golden files of the families: tiny random models of Hugging Face transformers, their loss, every gradient, and
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
                                     logits on the way; of models with experts router_margin []: the smallest distance of a choice
                                     of experts from another one, in both

Everything is computed in float32 with the weights of the file. labels[b, s] is the token to be predicted at position s (already
shifted); -100 marks positions that do not count. The loss is the mean of the cross-entropy over the positions that count. A tied
model has one gradient, under the embedding's name; experts have theirs under the names in the file, where transformers fuses them. Of
models with experts the seed is the first from --seed on with which no choice of experts is close and the text varies. Greedy generation is transformers' own, with its cache; with dynamic RoPE its
frequencies follow the length reached, and keys in the cache keep the rotation of the length at which they entered.

CASES says what each model is there for. Its config.json is in the spelling of transformers 5 (rope_parameters), or, with
published=True, in that of published checkpoints (rope_theta, rope_scaling).
"""
import argparse
import dataclasses
import json
import pathlib

ROWS, LENGTH, PROMPT, GENERATED = 2, 24, 5, 64
CLOSE = 2e-4  # minimum gap for the selection of experts


@dataclasses.dataclass
class Case:
    model_type: str
    config: dict  # of transformers' class, in addition to COMMON
    rope: dict    # rope_parameters; rope_type is "default" unless given
    published: bool = False
    dtype: str = "bfloat16"  # of the file


COMMON = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=96,
              max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=94, eos_token_id=95)
WIDE = dict(head_dim=16)  # eight frequencies
# Unscaled up to index 2, divided by 4 from index 6 on.
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=4096)
# Unscaled at index 0, divided from 3 on; not truncated: from 0.28 to 2.69.
YARN_SHORT = dict(rope_type="yarn", rope_theta=1e3, factor=4.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0)

MOE = dict(num_hidden_layers=2, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=True)
LATENT = dict(num_hidden_layers=2, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=2,
              first_k_dense_replace=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, q_lora_rank=24,
              kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24, num_key_value_heads=4)
OSS = dict(num_hidden_layers=2, num_local_experts=8, num_experts_per_tok=3, intermediate_size=24, head_dim=8, sliding_window=7,
           rms_norm_eps=1e-5)
YARN_OSS = dict(YARN_SHORT, truncate=False)

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
    # Rows of 24 exceed the original 16, which transformers takes from max_position_embeddings.
    "llama_dynamic": Case("llama", dict(WIDE, max_position_embeddings=16), dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
    "llama_bias": Case("llama", dict(num_hidden_layers=2, attention_bias=True, mlp_bias=True), dict(rope_theta=1e4)),
    # Like Llama 2 and SmolLM.
    "llama2": Case("llama", dict(num_key_value_heads=4, rms_norm_eps=1e-5), dict(rope_theta=1e4), published=True),
    "smollm": Case("llama", dict(hidden_size=72, num_attention_heads=9, num_key_value_heads=3, intermediate_size=32, rms_norm_eps=1e-5,
                                 tie_word_embeddings=True), dict(rope_theta=1e5), published=True),
    # Windows shorter than the row; heads * head_dim differs from hidden_size.
    "mistral": Case("mistral", dict(WIDE, num_hidden_layers=2, sliding_window=7), dict(rope_theta=1e4)),
    "mistral_full": Case("mistral", dict(num_hidden_layers=2, sliding_window=None), dict(rope_theta=1e6), published=True),
    # A head width above 64 that is no power of two, and seven heads sharing one K and V.
    "mistral_odd": Case("mistral", dict(hidden_size=16, num_attention_heads=7, num_key_value_heads=1, head_dim=80, sliding_window=None),
                        dict(rope_theta=1e4)),
    "qwen2": Case("qwen2", dict(hidden_size=48, num_attention_heads=14, num_key_value_heads=2, head_dim=8, intermediate_size=32,
                                tie_word_embeddings=True), dict(rope_theta=1e6), published=True),
    # Layer 0 attends to everything, layer 1 has a window.
    "qwen2_window": Case("qwen2", dict(num_hidden_layers=2, use_sliding_window=True, sliding_window=6, max_window_layers=1),
                         dict(rope_theta=1e6)),
    "qwen3": Case("qwen3", dict(num_attention_heads=3, num_key_value_heads=1, head_dim=80, intermediate_size=32,
                                tie_word_embeddings=True), dict(rope_theta=1e6), published=True),
    "qwen3_untied": Case("qwen3", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=64, attention_bias=True),
                         dict(rope_theta=1e6)),
    "qwen3_moe": Case("qwen3_moe", dict(MOE, num_attention_heads=14, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True),
                      dict(rope_theta=1e6), published=True),
    # Most experts get no token; a dense first layer; a head width that is no power of two.
    "qwen3_moe_empty": Case("qwen3_moe", dict(MOE, hidden_size=16, num_experts=64, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=False,
                                              mlp_only_layers=[0], num_attention_heads=3, num_key_value_heads=1, head_dim=80),
                            dict(rope_theta=1e6)),
    # One expert, and windows; all experts.
    "qwen3_moe_one": Case("qwen3_moe", dict(MOE, num_experts=1, num_experts_per_tok=1, use_sliding_window=True, sliding_window=6,
                                            head_dim=16), dict(rope_theta=1e6)),
    "qwen3_moe_all": Case("qwen3_moe", dict(MOE, num_experts=4, num_experts_per_tok=4, head_dim=16), dict(rope_theta=1e6)),
    # YaRN scales the scores; expert groups restrict the selection.
    "deepseek_v3": Case("deepseek_v3", LATENT, dict(YARN_SHORT, mscale=1.0, mscale_all_dim=1.0), published=True),
    # Like Moonlight: no low rank of q, one group, no YaRN.
    "deepseek_v3_full_q": Case("deepseek_v3", dict(LATENT, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=None, n_group=1,
                                                   topk_group=1, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
                                                   norm_topk_prob=False, qk_nope_head_dim=24, v_head_dim=8, rms_norm_eps=1e-5,
                                                   tie_word_embeddings=True), dict(rope_theta=1e4)),
    "deepseek_v3_all": Case("deepseek_v3", dict(LATENT, num_hidden_layers=1, first_k_dense_replace=0, n_routed_experts=4, num_experts_per_tok=4,
                                                n_group=2, topk_group=2), dict(rope_theta=1e4)),
    # mscale_all_dim alone: it scales the scores; angles have YaRN's own magnitude.
    "deepseek_v3_all_dim": Case("deepseek_v3", dict(LATENT, num_hidden_layers=1, first_k_dense_replace=0, n_routed_experts=4, num_experts_per_tok=4,
                                                    n_group=2, topk_group=2), dict(YARN_SHORT, mscale_all_dim=0.707)),
    # Windows in even layers, shorter than the row; sinks.
    "gpt_oss": Case("gpt_oss", dict(OSS, num_attention_heads=14), YARN_OSS, published=True),
    "gpt_oss_wide": Case("gpt_oss", dict(OSS, hidden_size=16, num_attention_heads=3, num_key_value_heads=1, head_dim=80, num_local_experts=3,
                                         tie_word_embeddings=True), dict(YARN_OSS, rope_theta=1.5e5)),
    "gpt_oss_empty": Case("gpt_oss", dict(OSS, hidden_size=16, num_hidden_layers=3, num_local_experts=32, num_experts_per_tok=2, intermediate_size=8,
                                          head_dim=16), YARN_OSS),
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
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        # Larger than the usual 0.02, norms that differ from one, biases that differ from zero: every code path then shows in the
        # gradients.
        for key, parameter in model.named_parameters():
            if key.endswith("gate_up_proj_bias"):
                parameter.normal_(0.0, 4.0)  # some exceed 7, at which GPT-OSS's experts clamp
            elif key.endswith(("bias", "sinks")):
                parameter.normal_(0.0, 0.3)
            elif parameter.dim() == 3:  # experts; GPT-OSS's have the inputs first
                parameter.normal_(0.0, parameter.shape[1 if case.model_type == "gpt_oss" else 2] ** -0.5)
            elif parameter.dim() == 1:
                parameter.normal_(1.0, 0.2)
            else:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
            parameter.copy_(parameter.to(getattr(torch, case.dtype)))
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.1)
                buffer.copy_(buffer.to(getattr(torch, case.dtype)))
    return model.eval()


class RouterMargin:
    """The smallest distance of a choice of experts from another one, over what a model computes from now on."""

    def __init__(self, model):
        import torch

        self.smallest = torch.tensor(float("inf"))
        for module in model.modules():
            if type(module).__name__.endswith("Router"):
                module.register_forward_hook(self.see)

    def see(self, router, _, output):
        import torch

        scores = output[0].float()
        groups, kept = getattr(router, "num_group", 1), getattr(router, "topk_group", 1)
        if hasattr(router, "e_score_correction_bias"):
            scores = scores.sigmoid() + router.e_score_correction_bias
        if groups > 1:
            of_group = scores.view(scores.shape[0], groups, -1)
            sums = of_group.topk(2, -1).values.sum(-1)
            self.add(sums, kept)
            chosen = torch.zeros_like(sums).scatter_(1, sums.topk(kept, -1).indices, 1).bool()
            scores = of_group.masked_fill(~chosen.unsqueeze(-1), float("-inf")).flatten(1)
        self.add(scores, router.top_k)

    def add(self, scores, taken):
        import torch

        if taken < scores.shape[-1]:
            best = scores.topk(taken + 1, -1).values
            self.smallest = torch.minimum(self.smallest, (best[:, taken - 1] - best[:, taken]).min())


def gradients(model):
    """(name in the file, gradient) of every parameter."""
    import torch

    for key, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        module, _, word = key.rpartition(".")
        if parameter.dim() < 3 or model.config.model_type == "gpt_oss":
            yield key, grad
        elif word == "gate_up_proj":
            for e, of_expert in enumerate(grad):
                gate, up = of_expert.chunk(2)
                yield f"{module}.{e}.gate_proj.weight", gate
                yield f"{module}.{e}.up_proj.weight", up
        else:
            for e, of_expert in enumerate(grad):
                yield f"{module}.{e}.{word}.weight", of_expert


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
    for chosen in healthy or [int(margins.argmax())]:
        seen = RouterMargin(model)
        with torch.no_grad():
            model(input_ids=torch.cat([prompts[chosen], tokens[chosen]])[None], use_cache=False)
        if seen.smallest > CLOSE:
            break
    assert margins[chosen] > 1e-3, margins
    return prompts[chosen].clone(), tokens[chosen].clone(), margins[chosen].clone(), seen.smallest


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

    router = RouterMargin(model)
    logits = model(input_ids=input_ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    prompt, tokens, margin, router_margin = greedy(case, seed)
    router_margin = torch.minimum(router_margin, router.smallest)
    if router_margin <= CLOSE or ("num_experts_per_tok" in case.config and len(set(tokens.tolist())) < 8):
        return make(name, folder, seed + 1)
    tensors = {"input_ids": input_ids, "labels": labels, "loss": loss.detach(), "logits": logits.detach().contiguous(),
               "prompt": prompt, "greedy": tokens, "greedy_margin": margin}
    if router_margin.isfinite():
        tensors["router_margin"] = router_margin
    others = len(tensors)
    for key, grad in gradients(model):
        # An expert may get no token, and one that all tokens select has a gate of 1.
        assert grad.abs().max() > 1e-6 or ".mlp.experts." in key or ".mlp.gate." in key, key
        tensors["grad." + key] = grad.clone()  # the model is converted below

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
    model = AutoModelForCausalLM.from_pretrained(exported, attn_implementation="eager", experts_implementation="eager",
                                                 dtype=torch.float32)
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
