#!/usr/bin/env python3
"""Two hosts with other contents under the same path: all ranks end with a line that has both digests. The hosts are working folders, the
paths relative."""
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile

from _program import path_of, source

program = path_of("halftone")
MODEL = '{"dim":32,"n_layers":1,"n_heads":2,"n_kv_heads":2,"ffn_dim":64}'
RECIPE = "a_stage:\n  b_modifiers:\n    LowPrecisionTrainingModifier: {scheme: int8, targets: ['re:.*wq'], stochastic_rounding: %s}\n"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(hosts, folder, *more):
    """A rank on each host: statuses and errors."""
    port, processes = free_port(), []
    for rank, host in enumerate(hosts):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(len(hosts)), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        command = [program, "train", "--config", os.path.join(source, "recipes/llama3_debug.toml"), "--device", "cpu", "--model.overrides", MODEL,
                   "--model.hf_assets_path", "tokenizer", "--training.dataset", "text", "--training.dataset_path", "data.md",
                   "--validation.enable", "--validation.dataset", "text", "--validation.dataset_path", "held.md", "--validation.seq_len=32",
                   "--validation.local_batch_size=1", "--validation.steps=1", "--training.seq_len=32", "--training.local_batch_size=1",
                   "--training.steps=2", "--debug.seed=1", "--comm.init_timeout_seconds=60", "--job.dump_folder", folder, *more]
        processes.append(subprocess.Popen(command, cwd=host, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    result = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        result.append((process.returncode, err.strip(), out))
    return result


with tempfile.TemporaryDirectory() as work:
    good, bad, folder = (os.path.join(work, name) for name in ("good", "bad", "run"))
    for host in (good, bad):
        os.mkdir(host)
        shutil.copytree(os.path.join(source, "tests/assets/tokenizer"), os.path.join(host, "tokenizer"))
        for name in ("data.md", "held.md"):
            shutil.copy(os.path.join(source, "README.md"), os.path.join(host, name))
        with open(os.path.join(host, "recipe.yaml"), "w") as file:
            file.write(RECIPE % "false")
    begin = ["--checkpoint.enable", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only"]
    for host, seed in ((good, 1), (bad, 2)):
        for name, more in (("step", begin[:1]), ("folder", begin)):
            [(status, error, out)] = start([host], os.path.join(host, "first", name), *more, f"--debug.seed={seed}")
            assert status == 0, out + error
            shutil.move(os.path.join(host, "first", name, "checkpoint/step-2"), os.path.join(host, name))
    initial = ["--checkpoint.enable", "--checkpoint.initial_load_path"]
    hugging = [*initial, "folder", "--checkpoint.initial_load_in_hf", "--model.rope_scaling_mode", "off"]
    recipe = ["--quantize.recipe", "recipe.yaml"]
    same = start([good, good], os.path.join(work, "same"), *recipe, *initial, "step")
    assert [status for status, _, _ in same] == [0, 0], same
    with open(os.path.join(bad, "tokenizer/tokenizer_config.json")) as file:
        tokenizer = json.load(file)

    def other_tokenizer(host):
        with open(os.path.join(host, "tokenizer/tokenizer_config.json"), "w") as file:
            json.dump(tokenizer | {"remark": "other"}, file)

    def other_text(name):
        def change(host):
            with open(os.path.join(host, name), "a") as file:
                file.write("Other words.\n")
        return change

    def other_recipe(host):
        with open(os.path.join(host, "recipe.yaml"), "w") as file:
            file.write(RECIPE % "true")

    def other_weights(name):
        return lambda host: (shutil.rmtree(os.path.join(host, name)), shutil.copytree(os.path.join(bad, name), os.path.join(host, name)))

    cases = [("training data (training.dataset_path)", [], other_text("data.md")),
             ("validation data (validation.dataset_path)", [], other_text("held.md")),
             ("tokenizers (model.hf_assets_path)", [], other_tokenizer), ("digest of quantize.recipe", recipe, other_recipe),
             ("checkpoints at step", [*initial, "step"], other_weights("step")),
             ("checkpoints at folder", hugging, other_weights("folder"))]
    for i, (what, more, change) in enumerate(cases):
        other = os.path.join(work, f"other{i}")
        shutil.copytree(good, other)
        change(other)
        said = start([good, other], os.path.join(work, f"run{i}"), *more)
        assert [status for status, _, _ in said] == [2, 2], f"{what}: {said}"
        for _, line, _ in said:
            assert what in line and len(line.splitlines()) == 1, f"{what}: {line}"
            digests = re.findall(r"\b[0-9a-f]{16,32}\b", line)
            assert len(digests) == 2 and digests[0] != digests[1], f"{what}: expected two digests in {line}"
    print(f"{len(cases)} inputs that differ between two hosts are refused with both digests")
