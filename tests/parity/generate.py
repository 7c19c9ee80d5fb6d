#!/usr/bin/env python3
"""Text from checkpoints of every kind of recipe: full and model-only ones, whose tensors are the plain model's, codes, or more than these,
and Hugging Face folders."""
import os
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
    # The recipe of a run whose file was edited and lost since.
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
print(f"text from the checkpoints of {len(CASES)} runs, and of one whose recipe file is gone; bitnet beside checkpoint.last_save_in_hf is refused before the first step")
