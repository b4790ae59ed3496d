#!/usr/bin/env bash
# Runs every check of dsplan in environments of its own:  bash tests/run.sh [pytest arguments]
#   1. lint, types and all tests on one Python (PYTHON, else python3.11, else python3) with torch and the real engine;
#   2. the planning tests, without torch, on every other Python from 3.10 to 3.13 that is installed.
# DSPLAN_TORCH names the torch requirement (default torch==2.13.0), DSPLAN_TEST_ENV the folder of the environments.
set -euo pipefail
cd "$(dirname "$0")/.."

python_for_all=${PYTHON:-$(command -v python3.11 || command -v python3)}
envs=${DSPLAN_TEST_ENV:-$(mktemp -d "${TMPDIR:-/tmp}/dsplan-tests-XXXXXX")}
[ -n "${DSPLAN_TEST_ENV:-}" ] || trap 'rm -rf "$envs"' EXIT

export TORCH_EXTENSIONS_DIR="$envs/extensions" # a lock that an ended build has left elsewhere would stop these runs

if ! command -v g++ >/dev/null; then # DeepSpeed compiles its CPU optimizers
  apt-get update -qq && apt-get install -y -qq g++
fi

echo "== all tests: $("$python_for_all" --version)"
"$python_for_all" -m venv "$envs/all"
"$envs/all/bin/pip" install --quiet "${DSPLAN_TORCH:-torch==2.13.0}"
"$envs/all/bin/pip" install --quiet ".[launch,qlora,test]"
"$envs/all/bin/ruff" check .
"$envs/all/bin/ruff" format --check .
"$envs/all/bin/mypy"
PATH="$envs/all/bin:$PATH" "$envs/all/bin/python" -m pytest -rs "$@"

tested=$("$python_for_all" -c 'import sys; print(sys.version_info.minor)')
for minor in 10 11 12 13; do
  [ "$minor" != "$tested" ] || continue
  candidates=("$(command -v "python3.$minor" || true)" "$HOME"/.pyenv/versions/3."$minor".*/bin/python)
  for python in "${candidates[@]}"; do
    [ -x "$python" ] && "$python" -c "import sys; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null || continue
    echo "== planning tests: $("$python" --version)"
    "$python" -m venv "$envs/3.$minor"
    "$envs/3.$minor/bin/pip" install --quiet . pytest hypothesis
    PATH="$envs/3.$minor/bin:$PATH" "$envs/3.$minor/bin/python" -m pytest -m "not transformers and not deepspeed and not accelerate"
    break
  done
done
