"""Brings PyTorch and the op library into a test, or ends it as skipped after naming what is missing."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("HALFTONE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def make_stand_ins(folder):
    """Empty libraries with the names and symbol versions that the CUDA half of the torch wheel asks for. A build without CUDA does
    not install NVIDIA's libraries, and nothing of them is called on a CPU; only the loader wants them."""
    import importlib.util
    libraries = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib"
    needed, versions = set(), {}
    for path in sorted(libraries.glob("*.so*")):
        text = subprocess.run(["readelf", "-d", "-V", "-W", str(path)], capture_output=True, text=True, check=True).stdout
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*?)\]", text))
        file = None
        for line in text.splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found.group(1)
            elif (found := re.search(r"Name: (\S+)\s+Flags", line)) and file:
                versions.setdefault(file, set()).add(found.group(1))
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(needed):
        if not re.match(r"lib(cu(?!dart|pti)|nccl|nv)", name) or (libraries / name).exists():
            continue
        script = folder / f"{name}.map"
        script.write_text("".join(f"{version} {{}};\n" for version in sorted(versions.get(name, ()))))
        command = ["g++", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", str(folder / name), "-x", "c", "/dev/null"]
        subprocess.run(command + ([f"-Wl,--version-script={script}"] if versions.get(name) else []), check=True)


def import_torch():
    try:
        if os.environ.get("HALFTONE_STAND_INS"):
            sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)  # functions that are never called stay unresolved
        import torch
    except ModuleNotFoundError as error:
        skip(f"{error} (requirements-test.txt)")
    except (ImportError, OSError) as error:
        missing = re.match(r"lib(cu|nccl|nv)\S*: cannot open shared object", str(error))
        if not missing or os.environ.get("HALFTONE_STAND_INS") or not shutil.which("readelf") or not shutil.which("g++"):
            skip(f"torch does not load: {error}")
        folder = pathlib.Path("cuda_stand_ins").resolve()
        make_stand_ins(folder)
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, LD_LIBRARY_PATH=path, HALFTONE_STAND_INS="1"))
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


if __name__ == "__main__":  # torchrun, on a machine without NVIDIA's libraries too
    import_torch()
    from torch.distributed.run import main
    main(sys.argv[1:])
