#!/usr/bin/env bash
# Run everything that needs a GPU, on a machine without a network (docs/gpu.md lists its requirements):
#     benchmarks/gpu/run.sh WHEELS OUT [key=value ...]
# WHEELS is a folder filled by wheels.sh; OUT gets the gpu tests' output, the records of the matrix and its leaderboard.
# A failed step does not stop the others; failures are listed at the end.
set -euo pipefail
wheels=$(realpath "${1:?usage: run.sh WHEELS OUT [key=value ...]}")
mkdir -p "${2:?usage: run.sh WHEELS OUT [key=value ...]}"
out=$(realpath "$2")
shift 2
cd "$(dirname "$0")/../.."
site=$(mktemp -d)
python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
# The machine's own packages come first: its torch, and the packages built for it.
export PYTHONPATH="$PWD:$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'):$site" PYTHONUNBUFFERED=1
failed=()
step() { # a file in OUT, and the command whose output it gets
    local file=$1
    shift
    "$@" 2>&1 | tee "$out/$file" || failed+=("$file")
}
matrix=(demo-gpu "results=$out/results" "$@")
step machine.txt python3 -c 'import datetime, platform, torch; print(datetime.datetime.now(datetime.UTC), platform.platform(), "torch", torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA")'
step tests.txt python3 -m pytest -m gpu tests/test_gpu.py tests/rollout/test_embedded_engine.py
if python3 -c 'import vllm' 2> /dev/null; then
    step engine.txt python3 -m benchmarks.gpu.engine
fi
step run.txt python3 -m harness.cli run "${matrix[@]}"
step leaderboard.md python3 -m harness.cli leaderboard "${matrix[@]}" --format md
step leaderboard.json python3 -m harness.cli leaderboard "${matrix[@]}" --format json
tar -C "$out/results" -czf "$out/records.tar.gz" --exclude=checkpoints --exclude=model demo-gpu || failed+=(records.tar.gz)
if ((${#failed[@]})); then
    echo "failed, see in $out: ${failed[*]}"
    exit 1
fi
