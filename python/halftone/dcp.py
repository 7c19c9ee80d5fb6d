"""Checkpoints from and to torchtitan: PyTorch's DCP folders and halftone's step folders, one tensor after the other.

    python -m halftone.dcp to-halftone DCP_FOLDER OUT        writes OUT/step-N
    python -m halftone.dcp from-halftone STEP_FOLDER OUT     writes the DCP folder OUT

No code of a checkpoint runs: `.metadata` is a pickle that is read into inert records, and everything in `*.distcp` is read by
torch.load(weights_only=True). This file needs torch alone: `python python/halftone/dcp.py` works without the op library.
"""
import argparse
import contextlib
import io
import json
import math
import mmap
import os
import pathlib
import pickle
import re
import shutil
import struct
import sys
from typing import Callable, NamedTuple

import torch

try:
    import xxhash  # checksums are optional in index.json
except ImportError:
    xxhash = None

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
          "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
          "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PARTS = ("optimizer", "lr_scheduler", "train_state", "dataloader")  # in a DCP folder; all other keys are the model's
MAX_FILE_BYTES = 5 << 30


class Problem(Exception):
    """What is wrong with the given folder, in one line."""


def expect(condition, text):
    if not condition:
        raise Problem(text)


class Chunk(NamedTuple):
    offset: tuple
    shape: tuple
    read: Callable[[], torch.Tensor]


class Stored(NamedTuple):
    dtype: torch.dtype
    shape: tuple
    chunks: list


def stored(name, dtype, shape, chunks):
    """A tensor whose chunks are proved to cover it once. Those without elements are left out, unless there is no other."""
    for c in chunks:
        inside = len(c.offset) == len(c.shape) == len(shape) and all(o + s <= n for o, s, n in zip(c.offset, c.shape, shape))
        expect(inside, f"{name}: the chunk at {c.offset} of {c.shape} lies outside the shape {shape}")
    full = sorted((c for c in chunks if math.prod(c.shape)), key=lambda c: c.offset) or chunks[:1]
    for i, a in enumerate(full if shape else []):
        for b in full[i + 1:]:
            if b.offset[0] >= a.offset[0] + a.shape[0]:
                break
            apart = any(o + s <= p or p + t <= o for o, s, p, t in zip(a.offset, a.shape, b.offset, b.shape))
            expect(apart, f"{name}: its chunks at {a.offset} and {b.offset} overlap")
    found, total = sum(math.prod(c.shape) for c in full), math.prod(shape)
    expect(full and found == total, f"{name}: its chunks hold {found} of {total} elements")
    return Stored(dtype, shape, full)


def scalar(value, dtype):
    value = torch.as_tensor(value, dtype=dtype)
    return Stored(dtype, (), [Chunk((), (), lambda: value)])


def sizes(value):
    expect(all(type(n) is int and n >= 0 for n in value), f"expected sizes, found {str(value)[:80]}")
    return tuple(value)


def part_of(path, begin, length):
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        expect(begin + length <= size, f"{path.name} has {size} bytes, expected at least {begin + length}: the file is truncated")
        file.seek(begin)
        return file.read(length)


def plain_file(folder, name):
    expect(name not in ("", ".", "..") and not set(name) & set("/\\\0"), f"{name[:80]!r} is not the name of a file in the folder")
    return folder / name


# DCP folders.

class Record:
    """Stands for an object of .metadata: keeps its state and does nothing."""

    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


METADATA, FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
KNOWN = {(module, name): type(name, (Record,), {}) for module, names in {
    METADATA: ["Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
               "StorageMeta", "_MEM_FORMAT_ENCODING"],
    FILES: ["_StorageInfo"], "torch.serialization": ["_get_layout"], "pathlib": ["PosixPath"], "pathlib._local": ["PosixPath"],
}.items() for name in names}
KNOWN |= {("torch", "Size"): tuple} | {("torch", str(dtype).removeprefix("torch.")): dtype for dtype in [*NAMES, torch.complex64]}


class MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        expect((module, name) in KNOWN, f".metadata names {module}.{name}, which no DCP folder needs; nothing was run, do not trust it")
        return KNOWN[module, name]


def read_metadata(path):
    with open(path, "rb") as file:
        try:
            metadata = MetadataUnpickler(file).load()
        except Problem:
            raise
        except Exception as error:  # a damaged pickle can raise anything
            raise Problem(f".metadata is not that of a DCP folder ({type(error).__name__}: {str(error)[:80]})") from None
    expect(isinstance(metadata, KNOWN[METADATA, "Metadata"]), ".metadata is not that of a DCP folder")
    return metadata


def load(path, begin, length):
    """What torch.save wrote at a place of a .distcp file."""
    data = io.BytesIO(part_of(path, begin, length))
    try:
        return torch.load(data, map_location="cpu", weights_only=True)
    except Exception as error:  # from zip files, pickles and torch
        refused = re.search(r"GLOBAL \S+", str(error))
        raise Problem(f"{path.name}: the entry at byte {begin} holds more than tensors and plain values, or is damaged "
                      f"({refused[0] if refused else type(error).__name__})") from None


def load_chunk(name, dtype, shape, place):
    value = load(*place)
    same = type(value) is torch.Tensor and (value.dtype, tuple(value.shape), value.layout) == (dtype, shape, torch.strided)
    expect(same, f"{place[0].name}: {name} at byte {place[1]} is not the {dtype} of {shape} that .metadata states")
    return value


def read_dcp(folder):
    """Tensors by name, and a function that reads it for every other entry."""
    metadata, places, tensors, others = read_metadata(folder / ".metadata"), {}, {}, {}
    for key, info in metadata.storage_data.items():
        expect(not getattr(info, "transform_descriptors", None), f"{key.fqn} is compressed or encrypted, which this tool does not read")
        places[key.fqn, getattr(key, "offset", None)] = (plain_file(folder, info.relative_path), *sizes((info.offset, info.length)))
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, KNOWN[METADATA, "BytesStorageMetadata"]):
            others[name] = lambda place=places[name, None]: load(*place)
            continue
        dtype, chunks = entry.properties.state[0], []
        for c in entry.chunks:
            shape, place = sizes(c.sizes), places[name, c.offsets]
            expect(math.prod(shape) * dtype.itemsize <= place[2], f"{name}: {shape} of {dtype} are more than {place[2]} bytes")
            chunks.append(Chunk(sizes(c.offsets), shape, lambda a=(name, dtype, shape, place): load_chunk(*a)))
        tensors[name] = stored(name, dtype, sizes(entry.size), chunks)
    return tensors, others


def write_dcp(out, tensors, values):
    """What torch.distributed.checkpoint.save writes with one rank, but chunk by chunk."""
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    entries, places = {}, {}
    with new_folder(out) as folder:
        with open(folder / "__0_0.distcp", "xb") as file:
            def put(value, name, offset=None):
                begin = file.tell()
                torch.save(value, blob := io.BytesIO())  # writing to a file, torch would hide why a write fails
                file.write(blob.getbuffer())
                places[dcp.MetadataIndex(name, offset)] = _StorageInfo("__0_0.distcp", begin, file.tell() - begin)

            for name, t in tensors.items():
                chunks = [dcp.ChunkStorageMetadata(torch.Size(c.offset), torch.Size(c.shape)) for c in t.chunks]
                entries[name] = dcp.TensorStorageMetadata(dcp.TensorProperties(dtype=t.dtype), torch.Size(t.shape), chunks)
                for c in t.chunks:
                    put(c.read(), name, c.offset)
            for name, value in values.items():
                entries[name] = dcp.BytesStorageMetadata()
                put(value, name)
        paths = {name: tuple(name.split(".", 1)) if name.split(".")[0] in PARTS else (name,) for name in entries}
        metadata = dcp.Metadata(entries, planner_data=paths, storage_data=places, storage_meta=dcp.StorageMeta(), version="1.0.0")
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))


# Step folders.

@contextlib.contextmanager
def new_folder(path):
    """A folder that gets its name once it is complete."""
    if path.exists():
        raise FileExistsError(f"{path} exists; name another folder or delete it")
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def view(buffer, dtype, shape, at=0):
    count = math.prod(shape)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=at).view(shape) if count else torch.empty(shape, dtype=dtype)


def checksum(path):
    hasher = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            hasher.update(block)
    return hasher.hexdigest()


def read_header(path):
    """Where the data of a safetensors file start, and its header."""
    length = int.from_bytes(part_of(path, 0, 8), "little")
    return 8 + length, json.loads(part_of(path, 8, length))


def read_step(folder):
    """Whether the step is a model alone, its tensors by name, state.json."""
    index, files, tensors = json.loads((folder / "index.json").read_text()), {}, {}
    expect((index["format"], index["version"]) == ("halftone-checkpoint", 1), "index.json is not that of a halftone-checkpoint, version 1")
    for name, entry in index["files"].items():
        file = plain_file(folder, name)
        expect(file.stat().st_size == entry["bytes"], f"{name} does not have {entry['bytes']} bytes: the file is damaged")
        good = not xxhash or entry.get("xxh3_64") in (None, checksum(file))
        expect(good, f"{name} does not have the checksum {entry.get('xxh3_64')}: the file is damaged")
        if name.endswith(".safetensors"):
            files[name] = file, *read_header(file)
    for name, entry in index["tensors"].items():
        dtype, shape, chunks = DTYPES[entry["dtype"]], sizes(entry["shape"]), []
        for c in entry["chunks"]:
            offset, part = sizes(c["offset"]), sizes(c["shape"])
            inner = name if part == shape else f"{name}@{','.join(map(str, offset))}"
            file, start, header = files[c["file"]]
            begin, end = (start + n for n in sizes(header[inner]["data_offsets"]))
            same = (header[inner]["dtype"], header[inner]["shape"]) == (entry["dtype"], c["shape"])
            expect(same and end - begin == math.prod(part) * dtype.itemsize,
                   f"{inner} in {c['file']} is not the {entry['dtype']} of {part} that index.json states")
            chunks.append(Chunk(offset, part, lambda a=(file, begin, end - begin), b=(dtype, part): view(bytearray(part_of(*a)), *b)))
        tensors[name] = stored(name, dtype, shape, chunks)
    return index["model_only"], tensors, json.loads((folder / "state.json").read_text()) if "state.json" in index["files"] else {}


def write_safetensors(path, tensors):
    order = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)  # so that every tensor is aligned
    header, end = {}, 0
    for name, t in order:
        begin, end = end, end + math.prod(t.shape) * t.dtype.itemsize
        header[name] = {"dtype": NAMES[t.dtype], "shape": t.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "x+b") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, 8 + len(text) + end)  # a full disk is an error here; in a mapped page it is a signal
        pages = mmap.mmap(file.fileno(), 0)
        for name, t in order:
            out = view(pages, t.dtype, t.shape, 8 + len(text) + header[name]["data_offsets"][0])
            for c in t.chunks:
                out[tuple(slice(o, o + s) for o, s in zip(c.offset, c.shape))].copy_(c.read())
            pages.madvise(mmap.MADV_DONTNEED)  # moves pages to the page cache, out of this process
        pages.flush()
        os.fsync(file.fileno())


def write_step(folder, step, tensors, state):
    files, rows = {}, {}
    for name, t in sorted(tensors.items()):
        kind, size = "optim" if name.startswith("optim.") else "model", math.prod(t.shape) * t.dtype.itemsize
        shards = files.setdefault(kind, [])
        if not shards or shards[-1][0] + size > MAX_FILE_BYTES:
            shards.append([0, f"{kind}-{len(shards)}.safetensors", {}])
        shards[-1][0] += size
        shards[-1][2][name] = t
        chunk = {"file": shards[-1][1], "offset": [0] * len(t.shape), "shape": t.shape}
        rows[name] = {"dtype": NAMES[t.dtype], "shape": t.shape, "chunks": [chunk]}
    with new_folder(folder) as unfinished:
        for _, name, content in sum(files.values(), []):
            write_safetensors(unfinished / name, content)
        (unfinished / "state.json").write_text(json.dumps(state, indent=1))
        written = {path.name: {"bytes": path.stat().st_size} | ({"xxh3_64": checksum(path)} if xxhash else {})
                   for path in sorted(unfinished.iterdir())}
        index = {"format": "halftone-checkpoint", "version": 1, "step": step, "model_only": not state, "world": 1, "mesh": {},
                 "files": written, "tensors": rows}
        (unfinished / "index.json").write_text(json.dumps(index))


# Conversion between the two.

OPTIMIZER_KEY = re.compile(r"optim(?:izer)?\.(state|param_groups)\.(.+)\.([^.]+)")  # kind, parameter, key


def note(text):
    print(f"note: {text}", file=sys.stderr)


def halftone_name(fqn):
    return re.sub(r"^lm_head\.", "output.", fqn.replace(".qkv_linear.", "."))  # names that differ in torchtitan after 0.2.2


def state_of(others):
    """state.json of a full step. DCP has no seed and no position of our loader; the loader of another run starts anew."""
    def count(key, default=None):
        value = others[key]() if key in others or default is None else default
        expect(type(value) is int and value >= 0, f"{key} is not a count")
        return value
    step = count("train_state.step")
    tokens = count("train_state.ntokens_seen", 0) * count("dataloader.world_size", 1)  # torchtitan counts the tokens of one rank
    state = {"train_state": {"step": step, "ntokens_seen": tokens},
             "lr_scheduler": {"last_epoch": count("lr_scheduler.last_epoch", step)}, "rng": {"seed": 0}}
    group = {}  # from the first parameter; halftone warns if a run's settings differ
    for name in others:
        if (found := OPTIMIZER_KEY.fullmatch(name)) and group.setdefault("fqn", found[2]) == found[2]:
            group[found[3]] = others[name]()
    if {"initial_lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"} <= set(group):
        state["config"] = {"optimizer": {
            "name": "AdamW" if group["decoupled_weight_decay"] else "Adam", "lr": group["initial_lr"], "beta1": group["betas"][0],
            "beta2": group["betas"][1], "eps": group["eps"], "weight_decay": group["weight_decay"]}}
    return state


def to_halftone(folder, out):
    tensors, others = read_dcp(folder)
    has = {"optimizer": any(name.startswith("optimizer.state.") for name in tensors), "train_state": "train_state.step" in others}
    full = all(has.values())
    if any(has.values()) and not full:
        note(f"there is no {min(has, key=has.get)}: the step holds the model only")
    state = state_of(others) if full else {}
    named = re.fullmatch(r"step-(\d+)", folder.resolve().name)
    step = state["train_state"]["step"] if full else int(named[1]) if named else 0
    found, unread = {}, []
    for name, value in [*tensors.items(), *others.items()]:
        key = OPTIMIZER_KEY.fullmatch(name)
        if name.split(".")[0] not in PARTS:
            if isinstance(value, Stored) and value.dtype in NAMES:
                found[halftone_name(name)] = value
            else:
                unread.append(name)
        elif full and key and key[1] == "state" and isinstance(value, Stored):
            value = scalar(value.chunks[0].read(), torch.float64) if key[3] == "step" else value
            found[f"optim.state.{halftone_name(key[2])}.{key[3]}"] = value
        elif full and key and key[3] in ("lr", "weight_decay"):
            value = value.chunks[0].read() if isinstance(value, Stored) else value()  # a capturable optimizer's rate is a tensor
            found[f"optim.param_groups.{halftone_name(key[2])}.{key[3]}"] = scalar(value, torch.float64)
    if unread:
        note(f"skipped {len(unread)} entries that are not model tensors: {', '.join(unread[:5])}")
    write_step(out / f"step-{step}", step, found, state)
    return out / f"step-{step}", found


def values_of(tensors, model, state):
    """The entries beside tensors that torchtitan's Trainer, LRSchedulersContainer and torch.optim.Adam(W) want back."""
    c, epoch, train = state["config"]["optimizer"], state["lr_scheduler"]["last_epoch"], state["train_state"]
    kind = c.get("implementation", "fused")
    same = {"betas": (c["beta1"], c["beta2"]), "eps": c["eps"], "amsgrad": False, "maximize": False, "capturable": False,
            "foreach": kind == "foreach", "differentiable": False, "fused": kind not in ("foreach", "for-loop"),
            "decoupled_weight_decay": c["name"] == "AdamW", "initial_lr": c["lr"]}
    rates = {f"{fqn}.{key}": tensors[f"optim.param_groups.{fqn}.{key}"].chunks[0].read().item()
             for fqn in model for key in ("lr", "weight_decay")}
    parts = {"train_state": {"step": train["step"], "ntokens_seen": train["ntokens_seen"]},
             "lr_scheduler": {"base_lrs": [c["lr"]], "last_epoch": epoch, "_step_count": epoch + 1, "_is_initial": False,
                              "_get_lr_called_within_step": False, "_last_lr": [rates[f"{next(iter(model))}.lr"]], "lr_lambdas": [None]},
             "optimizer.param_groups": rates | {f"{fqn}.{key}": value for fqn in model for key, value in same.items()}}
    return {f"{part}.{key}": value for part, entries in parts.items() for key, value in entries.items()}


def from_halftone(folder, out):
    model_only, tensors, state = read_step(folder)
    model = {name: t for name, t in tensors.items() if not name.startswith("optim.")}
    codes = [name for name in model if f"{name}_scale" in model]
    expect(not codes, f"{codes[:1]} are stored as codes; use a model-only step (last_save_model_only), which is dequantised")
    full = not model_only and all(f"optim.state.{name}.{key}" in tensors for name in model for key in ("exp_avg", "exp_avg_sq", "step"))
    if not full and not model_only:
        note("some tensors lack one of the two moments that torchtitan's Adam and AdamW need: only the model is written")
    found = dict(model)
    for name, t in tensors.items():
        if full and (key := OPTIMIZER_KEY.fullmatch(name)) and key[1] == "state":
            found[f"optimizer.state.{key[2]}.{key[3]}"] = scalar(t.chunks[0].read(), torch.float32) if key[3] == "step" else t
    write_dcp(out, found, values_of(tensors, model, state) if full else {})
    return out, found


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    return 2


def main():
    parser = argparse.ArgumentParser(prog="halftone.dcp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("direction", choices=["to-halftone", "from-halftone"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    try:
        written, tensors = (to_halftone if options.direction == "to-halftone" else from_halftone)(options.folder, options.out)
    except OSError as error:
        return fail(f"{options.folder} to {options.out}: {error}")
    except Problem as error:
        return fail(f"{options.folder}: {error}")
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:  # objects of an unexpected type
        return fail(f"{options.folder} is malformed ({type(error).__name__}: {error})")
    optimizer = sum(name.startswith("optim") for name in tensors)
    print(f"{written}: {len(tensors) - optimizer} tensors of the model, {optimizer} of the optimizer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
