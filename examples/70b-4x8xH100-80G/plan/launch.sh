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
  exec torchrun --nnodes=1 --nproc-per-node="$DSPLAN_SMOKE_RANKS" --rdzv-backend=c10d --rdzv-id=dsplan --rdzv-endpoint="127.0.0.1:$MASTER_PORT" "$DSPLAN_SMOKE_SCRIPT"
fi

if [[ -z "${MASTER_ADDR:-}" ]]; then
  echo "error: this plan runs on 4 nodes and MASTER_ADDR is not set" >&2
  echo "hint: run this script on each node with MASTER_ADDR=the name or address of the first node" >&2
  exit 2
fi
export MASTER_PORT="${MASTER_PORT:-28173}" # the same on every node

exec torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=dsplan --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" "${train[@]}"
