#!/usr/bin/env python3
"""Proves the rules of the house about who includes whom; prints each violation as file:line and exits 1 if there is one.

    python3 tools/check_layers.py [--root DIR]      check the tree
    python3 tools/check_layers.py --self-test       show that every rule can fail
    python3 tools/check_layers.py --torch-free FILE ...  print those of the files that reach no torch header

Rules:
 1. src/halftone/CMakeLists.txt lists the layers, lowest first. Each layer's CMakeLists.txt opens with
    "# may include: ..." naming lower layers, "torch" where LibTorch's headers are allowed, or "std" alone.
 2. A file includes headers of its own layer and of the named layers only; the libraries that the layer's CMake target
    depends on are among them too. torch, ATen and c10 headers appear only where "torch" is named.
 3. Kernels are launched (<<<) only in layers that do not name torch.
 4. Headers open with #pragma once; no source, script or document is longer than 600 lines.
 5. No file names a folder of one particular machine.
 6. Relative links of Markdown pages lead to a file.
 7. A model family is named (outside comments) in its own folder of models/ and in the registry; the only other places are options
    with such values: model.name and the tokenizer's patterns.
"""
import argparse
import os
import pathlib
import re
import sys
import tempfile

MAX_LINES = 600
CODE = {".h", ".cpp", ".cu", ".cuh", ".inc"}
TEXT = CODE | {".py", ".sh", ".cmake", ".txt", ".md", ".toml", ".yaml", ".yml", ".json", ""}
SKIPPED_FOLDERS = {".git", ".venv", ".cache", "build", "bundle", "outputs", "golden", "assets", "seeds", "__pycache__"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
OURS = re.compile(r"^halftone/([a-z0-9_]+)/")
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)")
# Machine-specific folders. Assembled at run time, so that this file passes its own rule.
MACHINE = re.compile("(?<![A-Za-z0-9_.$}])/(?:" + "|".join(["home" + "/", "root" + "/", "Users" + "/", "work" + "/", "opt" + "/peer"]) + ")")
# Parts of src/halftone that may name families in option values.
FAMILIES_NAMED = ("models/registry.cpp", "models/rope_reader.", "models/decoder_", "fused/rope.", "config/", "data/", "chat/conversation.",
                  "cli/tokenizer_command.cpp", "cli/bench_experts.", "checkpoint/hf_forms.")
CLASS_OF_RECIPES = "GptOssGroupedExperts"  # class name by which recipes select a module


def read(path):
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def code_files(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in CODE and p.is_file())


def text_files(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in sorted(files):
            path = pathlib.Path(folder, name)
            if path.suffix in TEXT and not path.is_symlink() and name != "LICENSE":
                yield path


def layer_order(root):
    """The layers in the order in which src/halftone/CMakeLists.txt adds them."""
    text = (root / "src/halftone/CMakeLists.txt").read_text()
    found = re.search(r"foreach\(layer ([^)]*)\)", text)
    return found.group(1).split() if found else []


def allowed_by(folder):
    """The words of the opening '# may include:' line, or None."""
    lines = read(folder / "CMakeLists.txt") if (folder / "CMakeLists.txt").exists() else []
    if not lines or not lines[0].startswith("# may include:"):
        return None
    return [w for w in lines[0].split(":", 1)[1].split() if w != "std"]


def check_layer(root, name, order, complain):
    folder = root / "src/halftone" / name
    cmake = folder / "CMakeLists.txt"
    allowed = allowed_by(folder)
    if allowed is None:
        complain(cmake, 1, "the first line must be '# may include: ...'")
        return
    lower = set(order[: order.index(name)]) if name in order else set()
    for word in allowed:
        if word != "torch" and word not in lower:
            complain(cmake, 1, f"'{word}' is not a layer below '{name}'")
    known = set(order)
    for number, line in enumerate(read(cmake), 1):
        found = re.match(r"\s*(?:halftone_library|target_link_libraries)\(([^)]*)\)", line)
        for word in found.group(1).split()[1:] if found else []:
            if word in known and word != name and word not in allowed:
                complain(cmake, number, f"'{name}' links '{word}', which its first line does not name")
    for path in code_files(folder):
        for number, line in enumerate(read(path), 1):
            include = INCLUDE.match(line)
            if include:
                ours = OURS.match(include.group(1))
                if ours and ours.group(1) != name and ours.group(1) not in allowed:
                    complain(path, number, f"'{name}' may not include '{include.group(1)}' (may: {' '.join(allowed) or 'std'})")
                if TORCH.match(include.group(1)) and "torch" not in allowed:
                    complain(path, number, f"'{name}' may not include torch ('{include.group(1)}')")
            if "<<<" in line and "torch" in allowed and not line.lstrip().startswith("//"):
                complain(path, number, f"kernels are not launched in '{name}': it sees torch")


def check_family(source, family, complain):
    word = re.match("[a-z]+", family.name).group(0)  # "llama" of llama3
    for path in code_files(source):
        if path.relative_to(source).as_posix().startswith(FAMILIES_NAMED) or family in path.parents:
            continue
        for number, line in enumerate(read(path), 1):
            if word in line.split("//")[0].replace(CLASS_OF_RECIPES, "").lower():
                complain(path, number, f"names the family '{family.name}': its traits belong in its folder under models/")


def check_tree(root):
    complaints = []

    def complain(path, number, message):
        complaints.append(f"{path.relative_to(root)}:{number}: {message}")

    order = layer_order(root)
    if not order:
        complain(root / "src/halftone/CMakeLists.txt", 1, "expected 'foreach(layer ...)' naming the layers")
    folders = sorted(p.name for p in (root / "src/halftone").iterdir() if p.is_dir() and code_files(p))
    for name in folders:
        if name not in order:
            complain(root / "src/halftone/CMakeLists.txt", 1, f"folder '{name}' is not among the layers")
        else:
            check_layer(root, name, order, complain)
    for family in sorted(p for p in (root / "src/halftone/models").glob("*") if p.is_dir()):
        check_family(root / "src/halftone", family, complain)
    for path in text_files(root):
        lines = read(path)
        if len(lines) > MAX_LINES:
            complain(path, len(lines), f"{len(lines)} lines, at most {MAX_LINES} are allowed: split the file")
        for number, line in enumerate(lines, 1):
            if MACHINE.search(line):
                complain(path, number, f"contains a path of one machine: {MACHINE.search(line).group(0)}")
            for target in LINK.findall(line) if path.suffix == ".md" else []:
                if not (path.parent / target).exists():
                    complain(path, number, f"links to '{target}', which does not exist")
        if path.suffix in {".h", ".cuh"} and not any(line.strip() == "#pragma once" for line in lines):
            complain(path, 1, "a header opens with #pragma once")
    return complaints


def torch_free(root, files):
    """Those of the files from which no torch header can be reached through our own headers."""
    cache = {}

    def reaches(path):
        if path not in cache:
            cache[path] = False  # an include cycle adds nothing
            for line in read(path) if path.exists() else []:
                include = INCLUDE.match(line)
                if include and (TORCH.match(include.group(1)) or
                                (include.group(1).startswith("halftone/") and reaches(root / "src" / include.group(1)))):
                    cache[path] = True
                    break
        return cache[path]

    return [file for file in files if not reaches(file)]


SELF_TEST = [  # (file, text, what the complaint must contain)
    ("src/halftone/base/a.h", "#pragma once\n#include \"halftone/nn/linear.h\"\n", "'base' may not include 'halftone/nn/linear.h'"),
    ("src/halftone/base/a.h", "#pragma once\n#include <ATen/core/Tensor.h>\n", "may not include torch"),
    ("src/halftone/base/a.h", "#include <vector>\n", "#pragma once"),
    ("src/halftone/base/CMakeLists.txt", "# may include: nn\n", "'nn' is not a layer below 'base'"),
    ("src/halftone/base/CMakeLists.txt", "# may include: std\nhalftone_library(base DEPS nn)\n", "links 'nn'"),
    ("src/halftone/base/CMakeLists.txt", "halftone_library(base DEPS fmt)\n", "first line must be"),
    ("src/halftone/nn/a.cpp", "void f() { kernel<<<1, 1>>>(); }\n", "kernels are not launched in 'nn'"),
    ("src/halftone/other/a.cpp", "int a;\n", "'other' is not among the layers"),
    ("src/halftone/nn/a.cpp", "const char* name = \"LlamaForCausalLM\";\n", "names the family 'llama3'"),
    ("docs/long.md", "a\n" * (MAX_LINES + 1), "at most 600"),
    ("docs/path.md", "see " + "/home" + "/somebody/x\n", "contains a path of one machine"),
    ("docs/link.md", "[a](https://x.y), [b](link.md#c), [d](nowhere.md)\n", "links to 'nowhere.md', which does not exist"),
]


def self_test():
    good = {
        "src/halftone/CMakeLists.txt": "foreach(layer base nn models)\nendforeach()\n",
        "src/halftone/base/CMakeLists.txt": "# may include: std\nhalftone_library(base DEPS fmt)\n",
        "src/halftone/base/a.h": "#pragma once\n#include <vector>\n",
        "src/halftone/nn/CMakeLists.txt": "# may include: base torch\nhalftone_library(nn DEPS base)\n",
        "src/halftone/nn/a.cpp": "#include \"halftone/base/a.h\"\n#include <ATen/core/Tensor.h>  // Llama\n",
        "src/halftone/models/CMakeLists.txt": "# may include: base nn\n",
        "src/halftone/models/registry.cpp": "#include \"halftone/models/llama3/model.h\"\n",
        "src/halftone/models/llama3/model.h": "#pragma once\nclass Llama;\n",
    }
    failures = 0
    for file, text, expected in [("", "", "")] + SELF_TEST:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {**good, **({file: text} if file else {})}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            found = check_tree(pathlib.Path(folder))
            if (not file and found) or (file and not any(expected in c for c in found)):
                failures += 1
                print(f"self-test: expected '{expected or 'no complaint'}' for '{file}', found {found}")
    print(f"check_layers: {len(SELF_TEST)} broken trees detected" if not failures else f"check_layers: {failures} failures")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--torch-free", metavar="FILE", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.self_test:
        return 1 if self_test() else 0
    if arguments.torch_free:
        print("\n".join(str(p) for p in torch_free(arguments.root, arguments.torch_free)))
        return 0
    complaints = check_tree(arguments.root)
    print("\n".join(complaints) if complaints else "check_layers: every rule holds")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
