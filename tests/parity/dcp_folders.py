#!/usr/bin/env python3
"""python/halftone/dcp.py against torch.distributed.checkpoint: both directions bit for bit, and what is refused."""
import contextlib
import importlib.util
import io
import json
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from unittest import mock

from _program import path_of, source
from _torch_ops import import_torch, skip

program = path_of("halftone")
torch = import_torch()
try:
    from safetensors import safe_open
    from safetensors.torch import save_file
except ImportError as error:
    skip(error)
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

spec = importlib.util.spec_from_file_location("dcp_tool", os.path.join(source, "python", "halftone", "dcp.py"))
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
work = tempfile.TemporaryDirectory()
folder = pathlib.Path(work.name)


def convert(*words):
    """Exit status and what was written to standard error."""
    errors = io.StringIO()
    with mock.patch.object(sys, "argv", ["dcp", *map(str, words)]), contextlib.redirect_stderr(errors):
        return tool.main(), errors.getvalue()


def refused(words, *parts):
    status, text = convert(*words)
    assert status == 2 and text.count("\n") == 1 and all(part in text for part in parts), (status, text)
    assert not list(folder.glob("refused*/*")), "a failure leaves nothing"


def equal(found, expected):
    same = {name for name, t in found.items() if name in expected and t.dtype == expected[name].dtype and torch.equal(t, expected[name])}
    return same == set(found) == set(expected)


def step_tensors(step):
    """All tensors of a step folder as its index describes them."""
    tensors = {}
    for name, row in json.loads((step / "index.json").read_text())["tensors"].items():
        for chunk in row["chunks"]:
            inner = name if chunk["shape"] == row["shape"] else name + "@" + ",".join(map(str, chunk["offset"]))
            with safe_open(step / chunk["file"], framework="pt") as file:
                part = file.get_tensor(inner)
            whole = tensors.setdefault(name, torch.zeros(row["shape"], dtype=part.dtype))
            whole[tuple(slice(o, o + n) for o, n in zip(chunk["offset"], chunk["shape"]))] = part
    return tensors


def random(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# A folder written by two ranks of torch.distributed.checkpoint, under torchtitan's keys.

MODEL = {"layers.0.attention.wq.weight": random((7, 6), 1), "norm.weight": random((5,), 2, torch.bfloat16),
         "tok_embeddings.weight": random((4, 8), 3)}
MOMENTS = {f"state.{name}.{key}": random(t.shape, 10 + i) for i, key in enumerate(("exp_avg", "exp_avg_sq")) for name, t in MODEL.items()}


def save_sharded(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}.store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    # Split by columns, so that chunks interleave.
    shard = {name: distribute_tensor(t, mesh, [Shard(t.dim() - 1)]) for name, t in (MODEL | MOMENTS).items()}
    optimizer = {name: shard[name] for name in MOMENTS} | {f"state.{name}.step": torch.tensor(3.0) for name in MODEL}
    group = {"lr": 0.3, "betas": (0.9, 0.95), "fused": None}
    optimizer |= {f"param_groups.{name}.{key}": value for name in MODEL for key, value in group.items()}
    others = {"train_state": {"step": 3, "ntokens_seen": 50}, "lr_scheduler": {"last_epoch": 2, "lr_lambdas": [None]},
              "dataloader": {f"dp_rank_{rank}": b"\x80\x04.", "world_size": 2}, "optimizer": optimizer}
    dcp.save({name: shard[name] for name in MODEL} | others, checkpoint_id=path)
    dist.destroy_process_group()


sharded = folder / "sharded"
ranks = [multiprocessing.get_context("fork").Process(target=save_sharded, args=(rank, sharded)) for rank in range(2)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
assert [process.exitcode for process in ranks] == [0, 0]
assert convert("to-halftone", sharded, folder / "steps") == (0, "")
found = step_tensors(folder / "steps" / "step-3")
expected = MODEL | {f"optim.{name}": t for name, t in MOMENTS.items()}
expected |= {f"optim.state.{name}.step": torch.tensor(3.0, dtype=torch.float64) for name in MODEL}
expected |= {f"optim.param_groups.{name}.lr": torch.tensor(0.3, dtype=torch.float64) for name in MODEL}
assert equal(found, expected), found
state = json.loads((folder / "steps" / "step-3" / "state.json").read_text())
assert state["train_state"] == {"step": 3, "ntokens_seen": 100} and state["lr_scheduler"] == {"last_epoch": 2}, state
print(f"a DCP folder of two ranks becomes a step: {len(found)} tensors equal")

# Rejected arguments, without running anything.

refused(["to-halftone", folder / "steps", folder / "refused"], ".metadata")
refused(["from-halftone", sharded, folder / "refused"], "index.json")
refused(["to-halftone", sharded, folder / "steps"], "step-3 exists")


class Command:
    def __reduce__(self):
        return os.system, (f"touch {folder}/ran",)


def damaged(change):
    """The folder once more, after `change` of its metadata."""
    with open(sharded / ".metadata", "rb") as file:
        metadata = pickle.load(file)
    copy = folder / "damaged"
    copy.mkdir(exist_ok=True)
    for path in sharded.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    change(metadata, copy)
    (copy / ".metadata").write_bytes(pickle.dumps(metadata))
    return ["to-halftone", copy, folder / "refused"]


def place_of(metadata, fqn):
    return next(info for index, info in metadata.storage_data.items() if index.fqn == fqn)


def command_in_file(metadata, copy):
    place = place_of(metadata, "train_state.step")
    torch.save(Command(), copy / "evil.distcp")
    place.relative_path, place.offset, place.length = "evil.distcp", 0, (copy / "evil.distcp").stat().st_size


refused(damaged(lambda m, copy: setattr(m, "planner_data", Command())), ".metadata", "names posix.system", "nothing was run")
refused(damaged(command_in_file), "evil.distcp", "holds more than tensors", "posix.system")
assert not (folder / "ran").exists()
refused(damaged(lambda m, copy: os.truncate(copy / "__1_0.distcp", 2000)), "__1_0.distcp has 2000 bytes", "truncated")
refused(damaged(lambda m, copy: setattr(place_of(m, "norm.weight"), "relative_path", "../x")), "'../x' is not the name of a file")
refused(damaged(lambda m, copy: setattr(place_of(m, "norm.weight"), "offset", -1)), "expected sizes")
refused(damaged(lambda m, copy: m.state_dict_metadata["norm.weight"].chunks.pop()), "norm.weight: its chunks hold 3 of 5 elements")
refused(damaged(lambda m, copy: setattr(m.state_dict_metadata["norm.weight"].properties, "dtype", torch.float16)), "the torch.float16")
refused(damaged(lambda m, copy: setattr(m, "storage_data", 5)), "malformed")
(folder / "damaged" / ".metadata").write_bytes(b"\x80\x04")
refused(["to-halftone", folder / "damaged", folder / "refused"], ".metadata is not that")
print("commands, truncated files and wrong metadata are refused in one line each")

# A step folder in chunks, to DCP and back.

step = folder / "own" / "step-7"
step.mkdir(parents=True)
rows = {}


def store(file, tensors, cuts={}):
    """Writes a file of the step; a tensor with a cut (dimension, position) becomes two chunks."""
    parts = {}
    for name, t in tensors.items():
        dim, at = cuts.get(name, (0, 0))
        pieces = [(at, t.narrow(dim, at, t.shape[dim] - at)), (0, t.narrow(dim, 0, at))] if at else [(0, t)]
        rows[name] = {"dtype": tool.NAMES[t.dtype], "shape": list(t.shape), "chunks": []}
        for start, piece in pieces:
            offset = [start if d == dim else 0 for d in range(t.dim())]
            parts[f"{name}@{','.join(map(str, offset))}" if at else name] = piece.contiguous()
            rows[name]["chunks"].append({"file": file, "offset": offset, "shape": list(piece.shape)})
    save_file(parts, step / file)


numbers = {f"state.{name}.step": 7 for name in MODEL} | {f"param_groups.{name}.lr": 0.1 for name in MODEL}
numbers |= {f"param_groups.{name}.weight_decay": 0.01 for name in MODEL}
optim = {f"optim.{name}": t for name, t in MOMENTS.items()}
optim |= {f"optim.{name}": torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
store("model-0.safetensors", MODEL, {"tok_embeddings.weight": (1, 3), "norm.weight": (0, 2)})
store("optim-0.safetensors", optim, {"optim.state.tok_embeddings.weight.exp_avg": (0, 1)})
config = {"optimizer": {"name": "AdamW", "lr": 0.2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01}}
(step / "state.json").write_text(json.dumps(
    {"train_state": {"step": 7, "ntokens_seen": 70}, "lr_scheduler": {"last_epoch": 6}, "rng": {"seed": 5}, "config": config}))
index = {"format": "halftone-checkpoint", "version": 1, "step": 7, "model_only": False, "world": 2, "mesh": {}, "tensors": rows,
         "files": {path.name: {"bytes": path.stat().st_size} for path in step.iterdir()}}
(step / "index.json").write_text(json.dumps(index))
assert convert("from-halftone", step, folder / "dcp") == (0, "")

# The state that a torchtitan Trainer requests from torch: its own tensors to fill, and every value of its optimizer and schedule.
wanted = {name: torch.zeros_like(t) for name, t in MODEL.items()}
parameters = {name: torch.nn.Parameter(t.float()) for name, t in MODEL.items()}
optimizer = torch.optim.AdamW(parameters.values())
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
states = {name: torch.zeros_like(t) for name, t in MOMENTS.items()} | {f"state.{name}.step": torch.tensor(0.0) for name in MODEL}
states |= {f"param_groups.{name}.{key}": value for name in MODEL for key, value in group.items()}
wanted |= {"optimizer": states, "train_state": {"step": 0, "ntokens_seen": 0}, "lr_scheduler": schedule.state_dict()}
dcp.load(wanted, checkpoint_id=folder / "dcp", no_dist=True)
assert equal({name: wanted[name] for name in MODEL}, MODEL) and equal({name: states[name] for name in MOMENTS}, MOMENTS)
lr, decay, betas, first = (states[f"param_groups.norm.weight.{key}"] for key in ("lr", "weight_decay", "betas", "initial_lr"))
assert (lr, decay, betas, first, states["state.norm.weight.step"].item()) == (0.1, 0.01, (0.9, 0.95), 0.2, 7.0)
assert wanted["train_state"] == {"step": 7, "ntokens_seen": 70} and wanted["lr_scheduler"]["last_epoch"] == 6
assert wanted["lr_scheduler"]["base_lrs"] == [0.2], wanted["lr_scheduler"]
assert convert("to-halftone", folder / "dcp", folder / "again") == (0, "")
assert equal(step_tensors(folder / "again" / "step-7"), MODEL | optim) and equal(step_tensors(step), MODEL | optim)
print(f"a step in chunks becomes a DCP folder, which torch loads, and a step again: {len(MODEL | optim)} tensors equal")
os.truncate(step / "model-0.safetensors", 100)
refused(["from-halftone", step, folder / "refused"], "model-0.safetensors does not have", "damaged")

# A halftone run resumes from the converted step as from its own.


def train(name, steps, *more):
    """The losses of a run by its folder's name."""
    model = json.dumps({"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 64})
    command = [program, "train", "--config", "recipes/llama3_debug.toml", "--device", "cpu", "--model.overrides", model,
               "--training.local_batch_size", "1", "--training.seq_len=64", "--training.steps", steps, "--debug.seed", "42",
               "--debug.deterministic", "--checkpoint.enable", "--job.dump_folder", folder / name, *more]
    run = subprocess.run(list(map(str, command)), cwd=source, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [line["loss_metrics/global_avg_loss"] for line in lines if line["kind"] == "train"]


train("run", 3)
origin = folder / "run" / "checkpoint" / "step-3"
assert convert("from-halftone", origin, folder / "run_dcp") == (0, "")
assert convert("to-halftone", folder / "run_dcp", folder / "run_again") == (0, "")
assert equal(step_tensors(folder / "run_again" / "step-3"), step_tensors(origin))
onward = [train(f"from_{path.parent.name}", 6, "--checkpoint.initial_load_path", path, "--checkpoint.initial_load_model_only", "false",
                "--checkpoint.exclude_from_loading", "dataloader,rng") for path in (origin, folder / "run_again" / "step-3")]
assert onward[0] == onward[1] and len(onward[0]) == 3, onward
print(f"a run goes on from the converted step as from its own: losses {onward[0]}")
