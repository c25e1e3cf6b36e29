"""Short cells that TRL trains in this process, and the numbers that they record."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trainers
from mortal import Killed

from harness import config
from harness.cells.checksums import CHECKPOINTS
from harness.launch.cell import trainer_of
from harness.matrix import Cell
from harness.train import parts
from harness.train.checkpoint import Checkpoints
from harness.verify.pool import VerifierPool

METHOD = "grpo+clip_b(share=0.05)+adaptive_entropy(target=9,delta=0.01,highest=1)"  # batch statistics, and a memory
CLOCK = ("time/", "trl/step_time")


def cell_trainer() -> Any:
    """Return the module with TRL's trainer of cells; skip the test where TRL is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)  # trl would take the folder tests/vllm for it
        pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
        return importlib.import_module("harness.elsewhere.trl.cell")


def built(folder: Path, *overrides: str, method: str = METHOD) -> Any:
    """Return the training of a short cell by TRL in this process."""
    cell_trainer()
    settings = config.load_config("demo", [*trainers.SHORT, "train.backend=trl", *overrides])
    spec = Cell.of(settings, method, "countdown", "countdown-tiny", seed=0).spec
    folder.mkdir(exist_ok=True)
    built_parts = parts.build_parts(spec, VerifierPool())  # Countdown does not use it
    return trainer_of(built_parts, folder, Checkpoints(folder / CHECKPOINTS, spec.id))


def kill_after(steps: int, folder: Path, *overrides: str) -> None:
    """Train up to a step, which is then logged and not in the newest checkpoint."""
    training = built(folder, *overrides)

    def leaving() -> bool:
        if training.done_steps == steps:
            raise Killed
        return False

    with pytest.raises(Killed):
        training.run(lambda step: None, leaving)


def without_clock(folder: Path) -> list[dict[str, Any]]:
    kept = []
    for record in trainers.records(folder):
        kept.append({key: value for key, value in record.items() if not key.startswith(CLOCK)})
    return kept


def same_weights(one: Any, other: Any) -> bool:
    ours, theirs = (training.policy.module.state_dict() for training in (one, other))
    return all(weight.equal(theirs[name]) for name, weight in ours.items())


def become_rank(rank: int) -> None:
    """Give this process the variables of a launcher."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # trl would take the folder tests/vllm for it
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(number) for name, number in numbers.items()})
