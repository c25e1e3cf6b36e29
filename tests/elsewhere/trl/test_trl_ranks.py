"""Cells that TRL trains on two ranks: one record of all responses, and the numbers of one rank."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trl_cells
from companions import on_ranks
from trl_cells import without_clock

from harness import ranks
from harness.cells import checksums

pytestmark = [pytest.mark.slow, pytest.mark.processes]

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
FSDP = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
FSDP_FILE = {"distributed_type": "FSDP", "fsdp_config": {**FSDP, "fsdp_state_dict_type": "SHARDED_STATE_DICT"}}
ZERO_FILE = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2, "zero3_init_flag": False}}
RESPONSES = "responses.json"


def record_responses(folder: Path) -> None:
    """Train on one rank, and write the responses of each step."""
    from harness.elsewhere.trl.cell_trainer import RecordedTrainer

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
    become_rank(rank)
    train_on_given(rank, folder)
    whole = trl_cells.built(folder / "whole", *RESUMED)
    whole.run(lambda step: None)
    trl_cells.kill_after(3, folder / "cut", *RESUMED)
    resumed = trl_cells.built(folder / "cut", *RESUMED)
    resumed.run(lambda step: None)
    assert trl_cells.same_weights(resumed, whole)
    if find_spec("deepspeed"):
        train_with_deepspeed(folder)


def become_rank(rank: int) -> None:
    """Give this process the variables of a launcher."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # trl would take the folder tests/vllm for it
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(number) for name, number in numbers.items()})


def train_on_given(rank: int, folder: Path) -> None:
    """Train on this rank's part of the recorded responses."""
    from harness.elsewhere.trl.cell_trainer import RecordedTrainer

    steps = json.loads((folder / RESPONSES).read_text())

    def given(trainer: Any, prompts: Any, *_: Any) -> Any:
        number = len(prompts)
        return steps[trainer.step - 1][rank * number : (rank + 1) * number], None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedTrainer, "_generate_single_turn", given)
        trl_cells.built(folder / "two", *TWO, *GIVEN).run(lambda step: None)


def train_sharded(rank: int, folder: Path) -> None:
    """Train with FSDP2, which accelerate ignores on CPUs unless it takes them for GPUs; and save what it resumes."""
    become_rank(rank)
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    from harness.elsewhere.trl.accelerate_variables import accelerate_variables

    AcceleratorState._reset_state(reset_partial_state=True)
    initialize = PartialState.__init__

    def as_gpus(state: Any, *given: Any, **named: Any) -> None:
        initialize(state, *given, **named)
        if state.distributed_type == DistributedType.MULTI_CPU:  # later it is FSDP
            state.distributed_type = DistributedType.MULTI_GPU

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialState, "__init__", as_gpus)
        for name, value in accelerate_variables(FSDP_FILE, world=2).items():
            patch.setenv(name, value)
        trl_cells.kill_after(3, folder / "sharded", *RESUMED)
        trained = trl_cells.built(folder / "sharded", *RESUMED)
        trained.run(lambda step: None)
        assert trained.trainer.accelerator.is_fsdp2
        trained.policy.save(folder / "sharded" / "model")
        again = trl_cells.built(folder / "sharded", *RESUMED)  # as after a kill before it saved the model
        again.run(lambda step: None)
        again.policy.save(folder / "sharded" / "again")
        ranks.meet()


def train_with_deepspeed(folder: Path) -> None:
    """Train with ZeRO-2, which also works on CPUs, and resume."""
    from accelerate.state import AcceleratorState

    from harness.elsewhere.trl.accelerate_variables import accelerate_variables

    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in accelerate_variables(ZERO_FILE, world=2).items():
            patch.setenv(name, value)
        trl_cells.kill_after(3, folder / "zero", *RESUMED)
        trained = trl_cells.built(folder / "zero", *RESUMED)
        trained.run(lambda step: None)
        assert trained.trainer.is_deepspeed_enabled


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


def test_two_ranks_do_what_one_does_on_the_same_responses(folder: Path) -> None:
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


def test_samples_and_evaluations_are_of_all_ranks(folder: Path) -> None:
    for name in ("samples/train-000001.jsonl", "samples/evaluate-countdown-000000.jsonl"):
        assert (folder / "two" / name).read_text() == (folder / "one" / name).read_text()
    [*evaluations] = sorted(path.name for path in (folder / "one" / "evals").iterdir())
    assert sorted(path.name for path in (folder / "two" / "evals").iterdir()) == evaluations


def test_a_resumed_training_on_two_ranks_ends_with_the_same_numbers(folder: Path) -> None:
    whole = without_clock(folder / "whole")
    assert [record["step"] for record in whole] == [0, 1, 2, 3]
    assert without_clock(folder / "cut") == whole
    [checkpoint] = (folder / "cut" / checksums.CHECKPOINTS).iterdir()
    assert checkpoint.name == "step-000003"
    sealed = json.loads((checkpoint / checksums.FILE).read_text().splitlines()[0])["files"]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= sealed.keys()


def test_deepspeed_gives_the_numbers_of_plain_ranks(folder: Path) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    for ours, theirs in zip(without_clock(folder / "whole"), without_clock(folder / "zero"), strict=True):
        assert_same_numbers(ours, theirs)
    [checkpoint] = (folder / "zero" / checksums.CHECKPOINTS).iterdir()
    assert {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)} <= {
        path.name for path in checkpoint.rglob("*")
    }


@pytest.mark.long  # PyTorch does not promise FSDP with gloo: in one of some ten runs it ended with SIGSEGV
def test_sharded_weights_give_the_numbers_of_whole_ones(folder: Path) -> None:
    (folder / "meeting").unlink(missing_ok=True)
    on_ranks(train_sharded, folder)
    whole, sharded = without_clock(folder / "whole"), without_clock(folder / "sharded")
    for ours, theirs in zip(whole, sharded, strict=True):
        assert_same_numbers(ours, theirs)
    [checkpoint] = (folder / "sharded" / checksums.CHECKPOINTS).iterdir()
    assert (checkpoint / "pytorch_model_fsdp_0").is_dir()
    saved, again = (folder / "sharded" / name / "model.safetensors" for name in ("model", "again"))
    assert saved.read_bytes() == again.read_bytes()


def use_folder_longer_than_the_first(rank: int, folder: Path) -> None:
    """Leave a folder that both ranks share, on the second one half a second later."""
    become_rank(rank)
    from harness.elsewhere.trl.run import temporary_folder

    with temporary_folder(folder / "trl") as place:
        if rank == 0:
            place.mkdir()
        else:
            time.sleep(0.5)
            (folder / "found").write_text(str(place.is_dir()))
    if rank == 0:
        assert not place.exists()


def test_the_folder_of_all_ranks_is_there_until_the_last_has_left_it(tmp_path: Path) -> None:
    on_ranks(use_folder_longer_than_the_first, tmp_path)
    assert (tmp_path / "found").read_text() == "True"
    assert [path.name for path in tmp_path.glob("*trl*")] == []
