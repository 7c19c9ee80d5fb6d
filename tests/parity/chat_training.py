"""Fine-tuning on conversations, on the CPU: the loss falls, only the answers are learned, and the model gives the trained answers."""
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

from _program import path_of, source

PROGRAM = path_of("halftone")
MODEL = '{"dim":64,"n_layers":2,"n_heads":4,"n_kv_heads":2,"ffn_dim":128}'
TEMPLATE = """{{ bos_token }}{% for message in messages %}{{ '<' + message.role + '>' + message.content }}{% if message.role == 'assistant' %}\
{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
ANSWERS = {"red": "stop and wait", "green": "go ahead now", "yellow": "slow down first"}


def run(*words):
    done = subprocess.run([PROGRAM, *words], cwd=source, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(pathlib.Path(source, "tests/assets/tokenizer"), folder / "tokenizer")
        config = json.loads((folder / "tokenizer/tokenizer_config.json").read_text())
        config["chat_template"] = [{"name": "tool_use", "template": "{{ 1 / 0 }}"}, {"name": "default", "template": TEMPLATE}]
        (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(config))
        rows = []
        for i in range(60):
            first, second = list(ANSWERS)[i % 3], list(ANSWERS)[(i // 3) % 3]
            rows.append({"messages": [{"role": "user", "content": f"The light is {first}."}, {"role": "assistant", "content": ANSWERS[first]},
                                      {"role": "user", "content": f"Then it is {second}."}, {"role": "assistant", "content": ANSWERS[second]}]})
        (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = ["--training.dataset=jsonl", f"--training.dataset_path={folder / 'chats.jsonl'}"]
        status, said = run("train", "--config", "recipes/llama3_debug.toml", "--model.overrides", MODEL, "--training.seq_len=128",
                           "--training.local_batch_size=2", "--training.steps=150", "--training.device=cpu", "--optimizer.lr=3e-3",
                           "--lr_scheduler.warmup_steps=5", "--metrics.log_freq=10", f"--job.dump_folder={folder / 'run'}", "--checkpoint.enable",
                           f"--model.hf_assets_path={folder / 'tokenizer'}", "--training.dataloader.packing=best_fit",
                           "--training.dataloader.shuffle", "--model.attn_mask_type=block_causal", *data)
        assert status == 0, said
        share = re.search(r"([0-9.]+)% of the tokens have a loss, ([0-9.]+)% padding", said)
        assert share and 20 < float(share[1]) < 60, said
        assert "attend to each other" not in said, said
        losses = [float(x) for x in re.findall(r"loss: *([0-9.]+)", re.sub("\x1b\\[[0-9;]*m", "", said))]
        assert losses[0] > 6 and losses[-1] < 0.05, losses
        for light, answer in ANSWERS.items():
            prompt = f"<|begin_of_text|><user>The light is {light}.<assistant>"
            status, text = run("generate", "--checkpoint", str(folder / "run"), "--prompt", prompt, "--temperature=0", "--quiet", "--device=cpu",
                               "--max-new-tokens=20")
            assert status == 0 and answer in text, f"{prompt}: {text}, expected {answer}"

        # concat would cut attention at the end of every turn; a .bin file has no mask.
        status, said = run("train", "--config", "recipes/llama3_debug.toml", "--model.overrides", MODEL, "--training.steps=1",
                           "--training.device=cpu", f"--job.dump_folder={folder / 'other'}", f"--model.hf_assets_path={folder / 'tokenizer'}", *data)
        assert status == 2 and 'set packing = "best_fit"' in said, said
        tokenize = ["tokenize", "--dataset=jsonl", "--dataset_path", str(folder / "chats.jsonl"), "--tokenizer", str(folder / "tokenizer"),
                    "--output", str(folder / "chats.bin")]
        status, said = run(*tokenize)
        assert status == 2 and "a .bin file holds no loss mask" in said and not (folder / "chats.bin").exists(), said
        status, said = run(*tokenize, "--loss_on=all")
        assert status == 0 and (folder / "chats.bin").exists(), said
        status, said = run(*tokenize[:-3], str(pathlib.Path(source, "tests/assets/tokenizer")), *tokenize[-2:])
        assert status == 2 and "chats.jsonl:1: a conversation (fields messages), but the tokenizer has no chat template" in said, said
        print(f"{len(rows)} conversations: the loss fell from {losses[0]} to {losses[-1]}, with {share[1]}% of the tokens")


main()
