#!/usr/bin/env python3
"""Reads files of ours with the safetensors package, and the other way round."""
import json
import os
import struct
import subprocess
import sys
import tempfile

from _program import path_of

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

program = path_of("checkpoint_test")


def expected_bytes(tensor, count):
    return bytes((tensor * 31 + i * 7 + 5) % 113 for i in range(count))


def ours(test, folder):
    environment = dict(os.environ, HALFTONE_PARITY_DIR=folder)
    result = subprocess.run([program, f"--gtest_filter=SafetensorsParity.{test}"], env=environment, capture_output=True, text=True)
    if result.returncode != 0 or "[  PASSED  ] 1 test" not in result.stdout:
        sys.exit(f"{test} failed:\n{result.stdout}{result.stderr}")


with tempfile.TemporaryDirectory() as folder:
    ours("Write", folder)
    path = os.path.join(folder, "ours.safetensors")
    wanted = {"0": ("uint8", (5,)), "1": ("float32", (3, 4)), "2": ("int64", ()), "3": ("float16", (2, 0, 3)),
              '4 "odd\\\n é漢': ("float64", (2, 2, 2)), "5": ("int8", (7,))}
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(wanted), file.keys()
        assert file.metadata() == {"format": "pt", 'k"ey': "väl"}, file.metadata()
        for name, (dtype, shape) in wanted.items():
            array = file.get_tensor(name)
            assert array.dtype == dtype and array.shape == shape, (name, array.dtype, array.shape)
            assert array.tobytes() == expected_bytes(int(name[0]), array.nbytes), name
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        json.loads(file.read(length))
        assert length % 8 == 0
    print(f"safetensors reads our file: {len(wanted)} tensors equal")

    def make(tensor, dtype, shape):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(expected_bytes(tensor, count), dtype=dtype).reshape(shape).copy()

    tensors = {"0": make(0, "uint8", (5,)), "1": make(1, "float32", (3, 4)), "2": make(2, "int64", ()), "3 é": np.array([True, False])}
    save_file(tensors, os.path.join(folder, "theirs.safetensors"), metadata={"who": "theirs"})
    ours("Read", folder)
    print(f"we read a file of safetensors: {len(tensors)} tensors equal")
