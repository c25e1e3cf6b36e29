#!/usr/bin/env bash
# Everything that asks for a GPU, in under 20 minutes, on a machine that has torch and transformers:
#     benchmarks/gpu/run.sh WHEELS OUT [key=value ...]
# WHEELS is a folder filled by wheels.sh; OUT gets the gpu tests' output, the records of the matrix and its leaderboard.
set -euo pipefail
wheels=$(realpath "${1:?usage: run.sh WHEELS OUT [key=value ...]}")
mkdir -p "${2:?usage: run.sh WHEELS OUT [key=value ...]}"
out=$(realpath "$2")
shift 2
cd "$(dirname "$0")/../.."
site=$(mktemp -d)
python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
# What the machine has comes first: its torch and all that was built for it.
export PYTHONPATH="$PWD:$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'):$site" PYTHONUNBUFFERED=1
{
    date -u
    python3 -c 'import torch; print("torch", torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA")'
} | tee "$out/machine.txt"
python3 -m pytest -m gpu tests 2>&1 | tee "$out/tests.txt" || test "${PIPESTATUS[0]}" = 5
if python3 -c 'import vllm' 2> /dev/null; then
    python3 -m benchmarks.gpu.engine 2>&1 | tee "$out/engine.txt"
fi
python3 -m harness.cli run demo-gpu "results=$out/results" "$@" 2>&1 | tee "$out/run.txt"
python3 -m harness.cli leaderboard demo-gpu "results=$out/results" "$@" --format md | tee "$out/leaderboard.md"
python3 -m harness.cli leaderboard demo-gpu "results=$out/results" "$@" --format json > "$out/leaderboard.json"
tar -C "$out/results" -czf "$out/records.tar.gz" --exclude=checkpoints --exclude=model demo-gpu
