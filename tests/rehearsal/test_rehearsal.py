"""Code for GPUs without one: on a device that pretends to be one, and without the values of tensors.

Each rehearsal is a process of its own, since it changes torch for good.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.long]
HERE = Path(__file__).parent


def results_of(program: str, folder: Path) -> dict[str, Any]:
    places = [HERE.parent / "helpers", HERE.parents[1]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    subprocess.run([sys.executable, str(HERE / program), str(folder / "results.json")], env=environment, check=True)
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


def test_cells_on_a_device_that_pretends_to_be_a_gpu(tmp_path: Path) -> None:
    results = results_of("rehearse.py", tmp_path)
    assert results["cells"] == dict.fromkeys(results["cells"], "passed")
    for defect, (ended, words) in results["defects"].items():
        assert words in ended, defect


def test_shards_and_memory_of_eight_ranks(tmp_path: Path) -> None:
    """`plan` must not be below what the update takes, and not far above; of four layers, what counts once is much."""
    results = results_of("sharded_memory.py", tmp_path)
    assert results["shards"] == [results["parameters"] / 8] * 8
    for case, figures in results["updates"].items():
        assert 1 <= figures["plan"] / figures["peak"] < 1.45, case
