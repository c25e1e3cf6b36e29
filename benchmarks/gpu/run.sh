#!/usr/bin/env bash
# Run everything that needs a GPU, in ten minutes, on a machine without a network (docs/gpu.md lists its requirements):
#     benchmarks/gpu/run.sh WHEELS OUT [key=value ...]
# WHEELS is a folder filled by wheels.sh; keys change the cells, for a rehearsal without a GPU. OUT gets eight small
# files: each has its results as soon as they are there, and the records of all cells follow in records.tar.gz, even if
# this script is stopped. Each row has a limit of seconds; a row that fails or takes longer does not stop the others,
# and is named at the end.
set -euo pipefail
set -m # a group for each row, which interrupts reach
wheels=$(realpath "${1:?usage: run.sh WHEELS OUT [key=value ...]}")
mkdir -p "${2:?usage: run.sh WHEELS OUT [key=value ...]}"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."
begun=$SECONDS
work=$(mktemp -d)
running=
pack() {
    tar -C "$work" -czf "$out/records.tar.gz" --exclude=checkpoints --exclude=model results
}
end() {
    [[ -z $running ]] || kill "$running" 2>"$work/kill" || true
    pack
}
trap end EXIT
trap 'exit 143' INT TERM
mkdir "$work/results"
python3 -m pip install -q --no-index --no-deps --no-compile --target "$work/site" "$wheels"/*.whl
# The machine's own packages come first: its torch, and the packages built for it.
export PYTHONPATH="$PWD:$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'):$work/site"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
failed=()
row() { # the limit, a file in OUT, and the command whose output it gets
    local limit=$1 file=$2
    shift 2
    echo "== $((SECONDS - begun)) s: $file"
    # In the background, since bash finishes a command in the foreground before it heeds a signal.
    timeout -s INT -k 15 "$limit" "$@" >>"$out/$file" 2>&1 &
    running=$!
    wait "$running" || failed+=("$file")
    running=
}
bench=(python3 -m entrobench)
# One of the demo's seeds, so that its kept curves can be compared; four cells share the GPU.
demo=(demo "results=$work/results" "seeds=[10]" "methods=[grpo,clip_b,ppo,entropy_bonus]" hardware.share=0.12 "${@:3}")
# A cell that is stopped at its first checkpoint, and continues.
resumed=(demo "results=$work/results" name=resumed "seeds=[12]" "methods=[ppo]" baseline=ppo
    train.steps=8 checkpoint.every=4 eval.problems=16 "${@:3}")
at_checkpoint=(bash -c '"$@" & trap "kill $!" INT; until compgen -G "$0" >/dev/null; do sleep 0.1; done; kill $!; wait'
    "$work/results/resumed/*/checkpoints/step-*")
row 35 machine.txt python3 -m benchmarks.gpu.machine
row 125 tests.txt python3 -m pytest -q -n 6 -m gpu --timeout=100 tests/test_gpu.py tests/rollout/test_embedded_engine.py
row 145 step.md python3 -m benchmarks.gpu.step "$out/profile.txt"
row 40 engine.md python3 -m benchmarks.gpu.engine
row 140 run.txt "${bench[@]}" run "${demo[@]}"
pack # the trap does not see every end
row 15 run.txt "${bench[@]}" leaderboard "${demo[@]}" --format md
row 35 resumed.txt "${at_checkpoint[@]}" "${bench[@]}" run "${resumed[@]}"
row 35 resumed.txt "${bench[@]}" run "${resumed[@]}"
echo "$((SECONDS - begun)) s"
if ((${#failed[@]})); then
    echo "failed or over the limit, see in $out: ${failed[*]}"
    exit 1
fi
