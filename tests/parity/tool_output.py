#!/usr/bin/env python3
"""What tools/build and tools/test print into a pipe, and their exit status, with ninja and ctest played by scripts: a few lines of progress at
once, the output of what fails whole, skipped cases counted by reason."""
import os
import shutil
import subprocess
import tempfile

from _program import source


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


FAILURE = "FAILED: [code=1] x.o\nc++ -c x.cpp\nx.cpp:1: error\n\n  1 | int x = ;\nninja: build stopped: subcommand failed.\n"
LOG = 'Command: "/c/bin/a_test"\nno device\n[  SKIPPED ] A.One (0 ms)\nno device\n[  SKIPPED ] A.Two (1 ms)\nCommand: "python" "/c/some.py"\nskipped: no wheel\n'
RESULTS = """Internal ctest changing into directory: /c
Test project /c
      Start 1: a
1/2 Test #1: a ......   Passed    0.10 sec
      Start 2: some
2/2 Test #2: some ...***{}

{}% tests passed, {} tests failed out of 2

Total Test time (real) =   0.20 sec

The following tests did not run:
\t  2 - some (Skipped)
"""
OUTPUT = "Failed    0.10 sec\nexpected\n\n\nfound"

with tempfile.TemporaryDirectory() as work:
    for tool in ("build", "test"):
        os.makedirs(os.path.join(work, "tools"), exist_ok=True)
        shutil.copy(os.path.join(source, "tools", tool), os.path.join(work, "tools", tool))
    build, test = (os.path.join(work, "tools", tool) for tool in ("build", "test"))
    write(os.path.join(work, "build/dev/build.ninja"), "")

    ninja = os.path.join(work, ".venv/bin/ninja")
    steps = 'i=0; while [ $i -lt 412 ]; do i=$((i + 1)); echo "[$i/412] Building x$i.o"; done\n'
    write(ninja, "#!/bin/sh\n" + steps)
    whole = run(build, "dev")
    lines = whole.stdout.splitlines()
    assert whole.returncode == 0 and len(lines) == 10 and lines[-1].startswith("build: 412 of 412 steps"), whole.stdout
    write(ninja, f"#!/bin/sh\n{steps}cat <<'EOF'\n{FAILURE}EOF\nexit 3\n")
    broken = run(build, "dev")
    assert broken.returncode == 3 and broken.stdout.endswith(FAILURE) and len(broken.stdout.splitlines()) == 10 + 6, broken.stdout
    write(ninja, "#!/bin/sh\necho '[1/1] Building x.o'\nread -r line\necho \"$line\"\n")
    with subprocess.Popen([build, "dev"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout.readline().startswith("build: 1 of 1 steps"), "progress comes when the build ends"
        waiting.stdin.write("end\n")
        waiting.stdin.flush()
        assert waiting.stdout.readline() == "end\n"

    ctest = os.path.join(work, ".venv/bin/ctest")
    write(os.path.join(work, "build/release/Testing/Temporary/LastTest.log"), LOG)
    write(ctest, "#!/bin/sh\necho \"$@\" >options\ncat <<'EOF'\n" + RESULTS.format("Skipped   0.10 sec", 100, 0) + "EOF\n")
    green = run(test, "-R", "a")
    assert green.returncode == 0 and green.stdout.split("\n") == [
        "1/2 Test #1: a ......   Passed    0.10 sec", "2/2 Test #2: some ...***Skipped   0.10 sec", "",
        "Skipped here (tools/test -v names them):", "  2 cases: no device", "  1 case: no wheel", "",
        "100% tests passed, 0 tests failed out of 2", ""], green.stdout
    named = run(test, "-v", "-R", "a")
    assert "  A.One: no device\n  A.Two: no device\n" in named.stdout and "  some.py: no wheel\n" in named.stdout, named.stdout
    options = open(os.path.join(work, "options")).read().split()
    assert options[-2:] == ["-R", "a"] and "-v" not in options, options
    write(ctest, "#!/bin/sh\ncat <<'EOF'\n" + RESULTS.format(OUTPUT, 50, 1) + "EOF\nexit 8\n")
    red = run(test)
    assert red.returncode == 8 and OUTPUT + "\n" in red.stdout and red.stdout.endswith("\n\n50% tests passed, 1 tests failed out of 2\n"), red.stdout
print("tools/build and tools/test: progress, failures, skipped cases, exit status")
