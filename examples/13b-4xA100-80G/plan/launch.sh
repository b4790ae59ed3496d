#!/usr/bin/env bash
# Starts the training run of this plan; README.md beside it says what was chosen and why.
# Arguments of this script go to the training script. Paths in them are relative to this folder.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }

# Less fragmentation, as the memory estimate assumes. Two names: torch 2.9 renamed the variable, but its CUDA
# allocator did not read the new name before 2.11.
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export PYTORCH_ALLOC_CONF=expandable_segments:True

train=(train.py "$@")

# `dsplan smoke` runs its own script on this machine's CPU, with the same files and environment.
if [[ -n "${DSPLAN_SMOKE_SCRIPT:-}" ]]; then
  export MASTER_PORT="${MASTER_PORT:-$(free_port)}"
  exec accelerate launch --config_file accelerate.yaml --num_processes "$DSPLAN_SMOKE_RANKS" --num_machines 1 --machine_rank 0 --main_process_port "$MASTER_PORT" "$DSPLAN_SMOKE_SCRIPT"
fi

# Set MASTER_PORT to choose the port.
export MASTER_PORT="${MASTER_PORT:-$(free_port)}"

exec accelerate launch --config_file accelerate.yaml --main_process_port "$MASTER_PORT" "${train[@]}"
