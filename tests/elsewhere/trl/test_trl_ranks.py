"""Cells that TRL trains on two ranks: one record of all responses, and the numbers of one rank."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trl_cells
from companions import on_ranks
from trl_cells import without_clock

from harness.cells import checksums

pytestmark = [pytest.mark.processes, pytest.mark.long]

TWO = ["hardware.ranks=2"]
RESUMED = [*TWO, "train.steps=3", "train.epochs=2", "eval.every=2", "dynamics.every=2"]
# One update in a pass, since every rank shuffles its own responses over several; each in several micro-batches.
GIVEN = [
    "train.steps=3",
    "train.updates=1",
    "train.epochs=2",
    "train.warmup_steps=3",
    "dynamics.every=2",
    "hardware.micro_tokens=600",
]
RESPONSES = "responses.json"


def record_responses(folder: Path) -> None:
    """Train on one rank, and write the responses of each step."""
    from harness.elsewhere.trl.cell import RecordedTrainer

    sample = RecordedTrainer._generate_single_turn
    steps: list[Any] = []

    def recorded(trainer: Any, *inputs: Any) -> Any:
        responses, _ = sample(trainer, *inputs)
        steps.append(responses)
        return responses, None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedTrainer, "_generate_single_turn", recorded)
        trl_cells.built(folder / "one", *GIVEN).run(lambda step: None)
    (folder / RESPONSES).write_text(json.dumps(steps))


def train_on_two(rank: int, folder: Path) -> None:
    """Train several cells as one of two ranks."""
    trl_cells.become_rank(rank)
    train_on_given(rank, folder)
    whole = trl_cells.built(folder / "whole", *RESUMED)
    whole.run(lambda step: None)
    trl_cells.kill_after(3, folder / "cut", *RESUMED)
    resumed = trl_cells.built(folder / "cut", *RESUMED)
    resumed.run(lambda step: None)
    assert trl_cells.same_weights(resumed, whole)
    use_folder_longer_than_the_first(rank, folder)


def train_on_given(rank: int, folder: Path) -> None:
    """Train on this rank's part of the recorded responses."""
    from harness.elsewhere.trl.cell import RecordedTrainer

    steps = json.loads((folder / RESPONSES).read_text())

    def given(trainer: Any, prompts: Any, *_: Any) -> Any:
        number = len(prompts)
        return steps[trainer.step - 1][rank * number : (rank + 1) * number], None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedTrainer, "_generate_single_turn", given)
        trl_cells.built(folder / "two", *TWO, *GIVEN).run(lambda step: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all cells: with one rank and with two."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)
        pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
        record_responses(folder)
    on_ranks(train_on_two, folder)
    return folder


def test_run_on_two_ranks(folder: Path) -> None:
    one, two = without_clock(folder / "one"), without_clock(folder / "two")
    assert one[0] == two[0]  # the evaluation before training
    assert [record["step"] for record in two] == [record["step"] for record in one] == [0, 1, 2, 3]
    for ours, theirs in zip(one[1:], two[1:], strict=True):
        assert ours.keys() == theirs.keys()
        assert_same_numbers(ours, theirs)


def assert_same_numbers(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Compare the numbers of a step that do not depend on further random draws."""
    for key, value in ours.items():
        if not key.startswith("eval/"):
            assert theirs[key] == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True), (ours["step"], key)


def test_run_records_the_samples_of_all_ranks(folder: Path) -> None:
    for name in ("samples/train-000001.jsonl", "samples/evaluate-countdown-000000.jsonl"):
        assert (folder / "two" / name).read_text() == (folder / "one" / name).read_text()
    [*evaluations] = sorted(path.name for path in (folder / "one" / "evals").iterdir())
    assert sorted(path.name for path in (folder / "two" / "evals").iterdir()) == evaluations


def test_run_resumed_on_two_ranks(folder: Path) -> None:
    whole = without_clock(folder / "whole")
    assert [record["step"] for record in whole] == [0, 1, 2, 3]
    assert without_clock(folder / "cut") == whole
    [checkpoint] = (folder / "cut" / checksums.CHECKPOINTS).iterdir()
    assert checkpoint.name == "step-000003"
    sealed = json.loads((checkpoint / checksums.FILE).read_text().splitlines()[0])["files"]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= sealed.keys()


def use_folder_longer_than_the_first(rank: int, folder: Path) -> None:
    """Leave a folder that both ranks share, on the second one half a second later."""
    from harness.elsewhere.trl.cell import temporary_folder

    with temporary_folder(folder / "trl") as place:
        if rank == 0:
            place.mkdir()
        else:
            time.sleep(0.5)
            (folder / "found").write_text(str(place.is_dir()))
    if rank == 0:
        assert not place.exists()


def test_temporary_folder_of_two_ranks(folder: Path) -> None:
    assert (folder / "found").read_text() == "True"
    assert [path.name for path in folder.glob("*trl*")] == []
