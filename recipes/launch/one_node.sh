#!/usr/bin/env bash
# All GPUs of one node: recipes/launch/one_node.sh --config recipes/llama3_8b.toml [--section.field value ...]
# GPUS=4 takes four of them. A process that dies is started again with the others, from the last checkpoint, up to RESTARTS times.
set -euo pipefail
exec torchrun --no-python --standalone --nproc_per_node "${GPUS:-gpu}" --max-restarts "${RESTARTS:-3}" halftone train "$@"
