"""Seconds and memory of preparing DAPO-Math-17k, from a local copy and from the Hub's 1.79 million rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import show
from tasks.data.clean import WRAPPER

REPEATS = 100  # the Hub's copy repeats its block of 17,917 rows this often

STEP = """
import json, re, sys, time
import pyarrow.parquet
from tasks.data.check import check_overlaps
from tasks.data.prepare import prepare_sets
def peak():  # not getrusage, which includes the parent's memory before exec
    return int(re.search("VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1]) / 1024
before, start = peak(), time.perf_counter()
check_overlaps() if sys.argv[1] == "check" else prepare_sets(sys.argv[2:], sys.argv[1])
print(json.dumps([time.perf_counter() - start, time.process_time(), before, peak()]))
"""


def write_as_published(copy: Path, path: Path) -> Path:
    """Write a local copy in the Hub's form: each problem within the prompt, the whole block repeated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for line in copy.read_text().split("\n"):
        if line:
            row = json.loads(line)
            rows.append(
                {
                    "data_source": "math_dapo",
                    "prompt": [{"content": WRAPPER[0] + row["problem"] + WRAPPER[1], "role": "user"}],
                    "ability": "MATH",
                    "reward_model": {"ground_truth": row["answer"], "style": "rule-lighteval/MATH_v2"},
                    "extra_info": {"index": row["id"]},
                }
            )
    block = pa.Table.from_pylist(rows)
    with pq.ParquetWriter(path, block.schema) as writer:
        for _ in range(REPEATS):
            writer.write_table(block)
    return path


def run_step(cache: Path, *arguments: str) -> list[str]:
    """Run a step in a process of its own; return its seconds and its memory."""
    environment = {**os.environ, "ENTROBENCH_CACHE": str(cache)}
    result = subprocess.run(
        [sys.executable, "-c", STEP, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    seconds, cpu_seconds, before, peak = json.loads(result.stdout)
    return [f"{seconds:.1f}", f"{cpu_seconds:.1f}", f"{before:.0f}", f"{peak:.0f}"]


def main() -> None:
    folder = Path(os.environ.get("ENTROBENCH_DATA") or Path(__file__).parents[2] / "shared" / "data")
    copy = folder / "dapo_math_17k.jsonl"
    if not copy.is_file():
        print("no local copy of DAPO-Math-17k here: set ENTROBENCH_DATA to a folder with dapo_math_17k.jsonl\n")
        return
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        published = write_as_published(copy, work / "dapo-math-17k.parquet")
        sets = ("dapo_math", "dapo500")
        steps: dict[str, tuple[Path, Sequence[str]]] = {
            f"prepare, {copy.name} ({copy.stat().st_size / 1e6:.0f} MB)": (work / "a", [str(copy), *sets]),
            f"prepare, the hub's rows ({published.stat().st_size / 1e6:.0f} MB)": (work / "b", [str(published), *sets]),
            "prepare, the other sets": (work / "a", [str(folder)]),
            "check": (work / "a", ["check"]),
        }
        rows = [[label, *run_step(cache, *arguments)] for label, (cache, arguments) in steps.items()]
    show("The problem sets", ["", "seconds", "CPU s", "MiB before", "MiB at most"], rows)


if __name__ == "__main__":
    main()
