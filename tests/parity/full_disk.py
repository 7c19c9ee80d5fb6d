#!/usr/bin/env python3
"""What an interrupted run left fills the disk: the next start removes it and goes on. On a tmpfs in a mount namespace of its own."""
import os
import subprocess
import sys
import tempfile

from _program import path_of, source

program = path_of("halftone")
SPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
MODEL = '{"dim":32,"n_layers":1,"n_heads":2,"n_kv_heads":2,"ffn_dim":64}'


def train(folder, steps, expected=0):
    words = subprocess.run([program, "train", "--config", "recipes/llama3_debug.toml", "--device", "cpu", "--model.overrides", MODEL,
                            "--training.dataset", "text", "--training.dataset_path", "README.md", "--training.seq_len=32",
                            "--training.local_batch_size=1", f"--training.steps={steps}", "--debug.seed=1", "--job.dump_folder", folder,
                            "--checkpoint.enable", "--checkpoint.interval=2", "--checkpoint.keep_latest_k=2", "--lr_scheduler.total_steps=100",
                            "--checkpoint.last_save_model_only=false"], cwd=source, capture_output=True, text=True)
    assert words.returncode == expected, f"status {words.returncode}, expected {expected}:\n{words.stdout[-1500:]}{words.stderr}"
    return words.stdout + words.stderr


def fill(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    assert os.statvfs(os.path.dirname(path)).f_bavail == 0, "the disk is not full"


def inside(work):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", work], check=True)
    folder = os.path.join(work, "run")
    train(folder, 2)
    lock = next(name for name in os.listdir(os.path.join(folder, "cache")) if name.endswith(".lock"))
    left = ["checkpoint/step-4.tmp/model-0.safetensors", "checkpoint/step-1.deleted/optim-0.safetensors",
            "checkpoint/step-4.old/model-0.safetensors", "cache/" + lock.replace(".lock", ".tokens.tmp.1")]
    for steps, name in enumerate(left, 3):
        fill(os.path.join(folder, name))
        text = train(folder, steps)
        assert "left by an interrupted run" in text and not os.path.exists(os.path.join(folder, name)), f"{name}: {text}"
    # A file that no start removes is named, with what to do.
    fill(os.path.join(folder, "mine"))
    text = train(folder, 9, expected=2)
    assert "with free space" in text or "free some space" in text, text
    print(f"a disk filled by {len(left)} kinds of leftovers: each start removes them and goes on")


if len(sys.argv) == 2:
    inside(sys.argv[1])
elif subprocess.run([*SPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode != 0:
    print("skipped: mount namespaces (unshare --mount) are not allowed here")
    sys.exit(77)
else:
    with tempfile.TemporaryDirectory() as work:
        sys.exit(subprocess.run([*SPACE, sys.executable, __file__, work]).returncode)
