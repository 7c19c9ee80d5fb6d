"""Brings PyTorch and the op library into a test, or ends it as skipped after naming what is missing."""
import os
import pathlib
import sys

SOURCE = pathlib.Path(os.environ.get("HALFTONE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def import_torch():
    try:
        import torch
    except ModuleNotFoundError as error:
        skip(f"{error} (requirements-test.txt)")
    except (ImportError, OSError) as error:
        skip(f"torch does not load: {error} (tools/setup.sh writes stand-ins for libraries of CUDA)")
    if not torch.__version__.startswith("2.11."):
        skip(f"the op library is built for torch 2.11, this is {torch.__version__}")
    return torch


def load():
    """(torch, halftone)."""
    torch = import_torch()
    sys.path.insert(0, str(SOURCE / "python"))
    if "HALFTONE_LIBRARY" not in os.environ and "HALFTONE_BIN" in os.environ:
        os.environ["HALFTONE_LIBRARY"] = str(pathlib.Path(os.environ["HALFTONE_BIN"]).parent / "lib")
    library = pathlib.Path(os.environ.get("HALFTONE_LIBRARY", SOURCE / "build/release/lib"))
    library = library / "libhalftone_ops.so" if library.is_dir() else library
    if not library.exists():
        skip(f"{library} is not built (tools/build release halftone_ops)")
    if b"__asan_init" in library.read_bytes():
        skip(f"{library} is built with sanitizers, which Python is not")
    import halftone
    return torch, halftone


def sqnr(reference, value):
    """20 log10(|reference| / |reference - value|) in float64 (docs/spec/numerics.md section 13)."""
    reference, value = reference.detach().double(), value.detach().double()
    noise = (reference - value).norm()
    return float("inf") if noise == 0 else float(20 * (reference.norm() / noise).log10())


def run(checks):
    """Every check, also after one that fails; exits with 1 if any did."""
    import traceback
    failed = []
    for check in checks:
        try:
            check()
        except Exception:
            traceback.print_exc()
            failed.append(check.__name__)
    if failed:
        print(f"failed: {', '.join(failed)}")
    sys.exit(1 if failed else 0)
