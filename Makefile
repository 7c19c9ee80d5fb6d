# make train and make test are all that a newcomer needs; each installs what is missing first (tools/setup.sh).
# HALFTONE_CUDA=auto|ON|OFF chooses the build (auto: ON only where an NVIDIA device is present), PYTHON the interpreter.
.PHONY: help setup train test test-distributed build bundle fuzz bench format tidy clean
.DEFAULT_GOAL := help

export HALFTONE_CUDA ?= auto
BIN := build/release/bin

help:  ## this text
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

train: setup  ## install, build, train the demo model in INT8 for about five minutes and let it write
	@tools/build release halftone
	@$(BIN)/halftone train --config recipes/demo.toml

test: setup  ## install, build everything, run every test
	@tools/build release
	@tools/test

test-distributed: setup  ## train on meshes of up to 8 processes, in every recipe
	@tools/build release parallel_test halftone
	@tools/test -L distributed $(TEST_OPTIONS)

setup:  ## install system packages and the pinned wheels in .venv
	@tools/setup.sh

build: setup  ## build the programs and the tests
	@tools/build release

bundle: setup  ## a relocatable folder bundle/ with programs, op library and tests (needs the same torch wheel there)
	@tools/build release bundle

fuzz: setup  ## run every fuzz target under the sanitizers, for FUZZ_SECONDS (60) each
	@tools/build release fuzz_programs
	@HALFTONE_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) tools/test -L fuzz

bench: setup  ## measure the training step on this machine, bfloat16 and INT8
	@tools/build release halftone
	@$(BIN)/halftone bench train --config recipes/bench_cpu.toml
	@$(BIN)/halftone bench train --config recipes/bench_cpu.toml --quantize.scheme int8

format:  ## clang-format every source file in place
	@command -v clang-format >/dev/null || { echo "make format: clang-format is missing (apt-get install clang-format)"; exit 2; }
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

tidy: setup  ## clang-tidy over the sources
	@command -v clang-tidy >/dev/null || { echo "make tidy: clang-tidy is missing (apt-get install clang-tidy)"; exit 2; }
	@.venv/bin/cmake --preset tidy >build/configure-tidy.log || { cat build/configure-tidy.log; exit 1; }
	@git ls-files 'src/*.cpp' | xargs -P "$$(nproc)" -n 1 clang-tidy -p build/tidy --quiet

clean:  ## remove what was built (.venv and outputs stay)
	rm -rf build bundle
