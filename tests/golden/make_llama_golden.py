#!/usr/bin/env python3
"""Makes the golden files of the Llama 3 family: tiny random models of Hugging Face transformers, their loss and every gradient.

    python tests/golden/make_llama_golden.py [--out tests/golden] [--seed 7]

Needs torch, transformers and safetensors in the Python that runs it (made with torch 2.11, transformers 5.23); the tests
themselves only read the files. Each model becomes a folder:

    config.json, model.safetensors   as Hugging Face writes them, weights in float32
    golden.safetensors               input_ids [2, 24] int64, labels [2, 24] int64, loss [], logits [2, 24, V] and, under
                                     "grad.<Hugging Face name>", the gradient of every parameter, all float32

labels[b, s] is the token to be predicted at position s (already shifted); -100 marks positions that do not count. The loss
is the mean of the cross-entropy over the positions that count. A tied model has one gradient, under the embedding's name.

llama_untied: grouped-query attention, no RoPE scaling; config.json in the spelling of transformers 5 (rope_parameters).
llama_tied:   one KV head, llama3 RoPE scaling whose three ranges all occur; config.json in the spelling that
              published checkpoints have (rope_theta, rope_scaling).
"""
import argparse
import json
import pathlib

ROWS, LENGTH = 2, 24
COMMON = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=128,
              max_position_embeddings=256, bos_token_id=126, eos_token_id=127, attention_bias=False, mlp_bias=False)
MODELS = {
    "llama_untied": dict(COMMON, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
                         rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
    # Head width 16: wavelengths 6.3 (kept), 19.9 (between), 62.8 and more (divided by 8).
    "llama_tied": dict(COMMON, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
                       rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                            high_freq_factor=4.0, original_max_position_embeddings=32)),
}


def published_spelling(folder):
    """Rewrites rope_parameters of transformers 5 as rope_theta and rope_scaling, which older files have."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(name, folder, seed):
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    config = LlamaConfig(**MODELS[name], attn_implementation="eager", dtype="float32")
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        # Larger than the usual 0.02, and norms that differ from one: every path then shows in the gradients.
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.2)
            else:
                parameter.normal_(0.0, 0.6 * parameter.shape[1] ** -0.5)
    input_ids = torch.randint(config.vocab_size, (ROWS, LENGTH))
    labels = torch.randint(config.vocab_size, (ROWS, LENGTH))
    labels[torch.rand(ROWS, LENGTH) < 0.2] = -100
    labels[0, -1] = -100

    logits = model(input_ids=input_ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()

    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name == "llama_tied":
        published_spelling(folder)
    tensors = {"input_ids": input_ids, "labels": labels, "loss": loss.detach(), "logits": logits.detach().contiguous()}
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-6, key
        tensors["grad." + key] = parameter.grad.contiguous()
    save_file(tensors, folder / "golden.safetensors", {"format": "pt", "seed": str(seed)})
    counted = int((labels != -100).sum())
    print(f"{name}: loss {loss.item():.6f} over {counted} positions, {len(tensors) - 4} gradients, seed {seed}, {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    for name in MODELS:
        make(name, arguments.out / name, arguments.seed)


if __name__ == "__main__":
    main()
