#!/usr/bin/env python3
"""cuda_stand_ins.py --write|--remove: lets Python import the CUDA build of torch where NVIDIA's libraries are not installed, so that
torchrun works in a set-up without CUDA. --write puts a small library beside torch's own for each missing one that they link. Every
function that torch takes from it prints what to install and aborts; torch calls none of them on a CPU. --remove deletes these files."""
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

MARK = "stand-in written by tools/cuda_stand_ins.py"
FOLDER = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib"


def readelf(path, *options):
    return subprocess.run(["readelf", "-W", *options, str(path)], capture_output=True, text=True, check=True).stdout


def symbols(path):
    """(name, version, defined, weak) of each dynamic symbol of a library."""
    for line in readelf(path, "--dyn-syms").splitlines():
        field = line.split()
        if len(field) >= 8 and field[0][:-1].isdigit() and field[4] in ("GLOBAL", "WEAK"):
            name, _, version = field[7].partition("@")
            yield name, version.lstrip("@"), field[6] != "UND", field[4] == "WEAK"


def remove():
    for path in FOLDER.glob("lib*.so*"):
        if path.stat().st_size < 1 << 20 and MARK.encode() in path.read_bytes():
            path.unlink()


def write():
    rpath = [FOLDER, *FOLDER.parent.parent.glob("nvidia/*/lib")]
    # Libraries that import torch loads; torch's others, which link the driver, are loaded when a GPU is used.
    own, needed, file_versions = {}, {"libtorch_python.so", "libtorch_global_deps.so"}, {}
    while todo := [FOLDER / name for name in needed - own.keys() if (FOLDER / name).exists()]:
        for path in todo:
            own[path.name] = path
            needed |= set(re.findall(r"\(NEEDED\).*\[(.*?)\]", readelf(path, "-d")))
    for path in own.values():
        for file, names in re.findall(r"File: (\S+).*((?:\n.*Name: .*)+)", readelf(path, "-V")):
            file_versions.setdefault(file, set()).update(re.findall(r"Name: (\S+)", names))
    missing = sorted(n for n in needed if re.match(r"lib(cu|nccl|nv)", n) and not any((folder / n).exists() for folder in rpath))
    if not missing:
        return
    defined, asked = set(), set()
    for path in [*own.values(), *(p for folder in rpath[1:] for p in folder.glob("lib*.so*"))]:
        for name, version, is_defined, weak in symbols(path):
            if is_defined:
                defined.add(name)
            elif not weak:
                asked.add((name, version))
    by_version, plain = {}, []
    for name, version in sorted(asked):
        if version:
            by_version.setdefault(version, []).append(name)
        elif re.match(r"(cu|nccl|nv)", name) and name not in defined:
            plain.append(name)  # the loader takes it from any library that has it
    for index, library in enumerate(missing):
        versions = {v: by_version.get(v, []) for v in sorted(file_versions.get(library, ()))}
        functions = sorted(set(sum(versions.values(), plain if index == 0 else [])))
        with tempfile.TemporaryDirectory() as work:
            source, script = pathlib.Path(work, "stand_in.c"), pathlib.Path(work, "versions")
            source.write_text(
                "#include <stdio.h>\n#include <stdlib.h>\n"
                f'__attribute__((used)) static void stop(void) {{ fputs("a CUDA function was called, but this is a {MARK}: '
                'run HALFTONE_CUDA=ON tools/setup.sh\\n", stderr); abort(); }\n'
                + "".join(f'void {name}(void) __attribute__((alias("stop")));\n' for name in functions))
            script.write_text("".join(f"{v} {{ {''.join(f'{name}; ' for name in names)} }};\n" for v, names in versions.items()))
            command = ["gcc", "-shared", "-fPIC", "-O1", "-s", f"-Wl,-soname,{library}", "-o", str(FOLDER / library), str(source)]
            subprocess.run(command + ([f"-Wl,--version-script={script}"] if versions else []), check=True)


if __name__ == "__main__":
    remove()
    if sys.argv[1:] == ["--write"]:
        write()
