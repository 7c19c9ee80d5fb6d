"""Brings one of our programs into a test, or ends it as skipped where it is not built."""
import os
import sys

source = os.environ["HALFTONE_SOURCE_DIR"]


def path_of(name):
    path = os.path.join(os.environ["HALFTONE_BIN"], name)
    if not os.path.exists(path):
        print(f"skipped: {path} is not built")
        sys.exit(77)
    return path
