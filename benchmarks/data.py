"""DAPO-Math-17k prepared from a local copy and from the hub's 1.79 million rows; and the check: seconds and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import console, show
from harness.data.clean import WRAPPER

REPEATS = 100  # of its block of 17,917 rows, in the hub's copy

STEP = """
import json, re, sys, time
import pyarrow.parquet
from harness.data.check import check_overlaps
from harness.data.prepare import prepare_sets
def peak():  # not by getrusage, which counts the parent's memory before exec
    return int(re.search("VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1]) / 1024
before, start = peak(), time.perf_counter()
check_overlaps() if sys.argv[1] == "check" else prepare_sets(sys.argv[2:], sys.argv[1])
print(json.dumps([time.perf_counter() - start, time.process_time(), before, peak()]))
"""


def as_published(copy: Path, path: Path) -> Path:
    """The hub's form, rebuilt: each problem within the prompt, the whole block repeated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [json.loads(line) for line in copy.read_text().split("\n") if line]
    block = pa.Table.from_pylist(
        [
            {
                "data_source": "math_dapo",
                "prompt": [{"content": WRAPPER[0] + row["problem"] + WRAPPER[1], "role": "user"}],
                "ability": "MATH",
                "reward_model": {"ground_truth": row["answer"], "style": "rule-lighteval/MATH_v2"},
                "extra_info": {"index": row["id"]},
            }
            for row in rows
        ]
    )
    with pq.ParquetWriter(path, block.schema) as writer:
        for _ in range(REPEATS):
            writer.write_table(block)
    return path


def measured(cache: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "ENTROBENCH_CACHE": str(cache)}
    result = subprocess.run(
        [sys.executable, "-c", STEP, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    seconds, processor, before, peak = json.loads(result.stdout)
    return [f"{seconds:.1f}", f"{processor:.1f}", f"{before:.0f}", f"{peak:.0f}"]


def main() -> None:
    folder = Path(os.environ.get("ENTROBENCH_DATA") or Path(__file__).parents[2] / "shared" / "data")
    copy = folder / "dapo_math_17k.jsonl"
    if not copy.is_file():
        console.print("no local copy of DAPO-Math-17k here: set ENTROBENCH_DATA to a folder with dapo_math_17k.jsonl\n")
        return
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        published = as_published(copy, work / "dapo-math-17k.parquet")
        sets = ("dapo_math", "dapo500")
        steps = {
            f"prepare, {copy.name} ({copy.stat().st_size / 1e6:.0f} MB)": (work / "a", str(copy), *sets),
            f"prepare, the hub's rows ({published.stat().st_size / 1e6:.0f} MB)": (work / "b", str(published), *sets),
            "prepare, the other sets": (work / "a", str(folder)),
            "check": (work / "a", "check"),
        }
        rows = [[label, *measured(*arguments)] for label, arguments in steps.items()]
    show("The problem sets", ["", "seconds", "CPU s", "MiB before", "MiB at most"], rows)


if __name__ == "__main__":
    main()
