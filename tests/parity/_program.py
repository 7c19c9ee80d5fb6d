"""Brings one of our programs into a test, or ends it as skipped where it is not built; collects what failed."""
import os
import sys

source = os.environ["HALFTONE_SOURCE_DIR"]
failures = []


def path_of(name):
    path = os.path.join(os.environ["HALFTONE_BIN"], name)
    if not os.path.exists(path):
        print(f"skipped: {path} is not built")
        sys.exit(77)
    return path


def expect(true, text):
    if not true:
        failures.append(text)
        print(f"FAILED {text}", flush=True)


def conclude():
    print("failures:", len(failures))
    sys.exit(1 if failures else 0)
