"""Checkpoints: any number of ranks reads what any other wrote, and damaged or unfinished ones are not used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from companions import on_ranks
from full_disk import files_of_at_most
from patience import HANG
from torch import Tensor
from trainers import build, records, same, train_until_killed, trained, weights
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness import ranks
from harness.base.errors import CellFailure, Unwritten
from harness.cells import checksums
from harness.config import Hardware, Train
from harness.train import checkpoint
from harness.train.checkpoint import Checkpoints
from harness.train.policy import Critic, Policy

CELL = "0123456789ab"
STATE: dict[str, Any] = {
    "method": {
        "servo": {"share": 0.1, "count": 3, "none": float("inf")},
        "named as references to tensors": {"rows": {"rows": [{"rows": "0"}]}},
    },
    "rollouts": {"in_flight": {"7": {"tokens": torch.tensor([5, 6], dtype=torch.int32), "lengths": [2], "lag": 1}}},
}


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, {"policy.x": torch.full((3, 2), step / 3), "policy.step": torch.tensor(step / 7)}, STATE)


def saved(folder: Path, *steps: int, kept: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, CELL, kept)
    for step in steps:
        save(checkpoints, step)
        assert checkpoints.written(wait=True) == step
        assert checkpoints.written(wait=True) is None, "it is told once"
    return checkpoints


def check(folder: Path, step: int) -> None:
    """Check that the newest checkpoint that is whole is the one of a step, with all that was saved."""
    newest = Checkpoints(folder, CELL).latest()
    assert newest is not None
    assert (newest.step, newest.of("policy"), newest.of("critic")) == (step, {"x", "step"}, set())
    tensors = {"x": torch.zeros(3, 2), "step": torch.zeros(())}
    newest.fill("policy", tensors)
    assert torch.equal(tensors["x"], torch.full((3, 2), step / 3))
    assert torch.equal(tensors["step"], torch.tensor(step / 7))
    assert newest.rest["method"] == STATE["method"]
    ((number, flight),) = newest.rest["rollouts"]["in_flight"].items()
    assert torch.equal(flight.pop("tokens"), STATE["rollouts"]["in_flight"]["7"]["tokens"])
    assert (number, flight) == ("7", {"lengths": [2], "lag": 1})


def test_checkpoints_keep_two_and_nothing_unfinished(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", CELL).latest() is None
    saved(tmp_path, 2, 999_999, 1_000_000)
    (tmp_path / ".step-000008.12").mkdir()
    (tmp_path / ".step-000008.12" / "shard").write_text("half")
    check(tmp_path, 1_000_000)
    assert {path.name for path in tmp_path.iterdir()} == {"step-999999", "step-1000000"}


def test_checkpoints_keep_as_many_as_they_are_told(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2, 4, kept=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004"]
    check(tmp_path, 4)
    checkpoints.keep(0)
    assert not list(tmp_path.iterdir())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [flip, lambda path: os.truncate(path, 9), Path.unlink])
@pytest.mark.parametrize("name", ["shard-*", "rest.json", "rest.safetensors", "sums.json"])
def test_latest_passes_over_a_damaged_checkpoint(
    name: str, harm: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 2, 4)
    for step in (4, 2):
        assert capsys.readouterr().out == ""
        check(tmp_path, step)
        (file,) = (tmp_path / f"step-{step:06d}").glob(name)
        harm(file)
        if step == 4:
            check(tmp_path, 2)
            output = f"warning: the checkpoint {tmp_path / 'step-000004'} is damaged"
            assert capsys.readouterr().out.startswith(output)
            assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]
    with pytest.raises(CellFailure, match=r"no checkpoint in .* is whole; remove that folder"):
        Checkpoints(tmp_path, CELL).latest()


WITHOUT_OWNER: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: (path / "sums.json").write_text("{}"),
    "null": lambda path: (path / "sums.json").write_text("null"),
    "of another cell": lambda path: checksums.write_seal(path, "another", 4, checksums.read_seal(path, CELL)),
    "an unsealed file": lambda path: (path / "shard-00001-of-00009.safetensors").write_text(""),
    "another name": lambda path: path.rename(path.with_name("step-000009")),
}


@pytest.mark.parametrize("harm", WITHOUT_OWNER)
def test_latest_passes_over_a_checkpoint_without_an_owner(harm: str, tmp_path: Path) -> None:
    saved(tmp_path, 2, 4)
    WITHOUT_OWNER[harm](tmp_path / "step-000004")
    check(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def test_save_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, complete, x = threading.Event(), checkpoint.Checkpoints.publish, torch.ones(3)

    def slow(self: Checkpoints, *given: Any) -> None:
        assert go.wait(HANG)
        complete(self, *given)

    monkeypatch.setattr(checkpoint.Checkpoints, "publish", slow)
    checkpoints = Checkpoints(tmp_path, CELL)
    checkpoints.save(2, {"policy.x": x}, {})
    x.zero_()
    assert checkpoints.written(wait=False) is None
    assert not (tmp_path / "step-000002").exists()
    go.set()
    assert checkpoints.written(wait=True) == 2
    newest = checkpoints.latest()
    assert newest is not None
    newest.fill("policy", {"x": x})
    assert torch.equal(x, torch.ones(3))


def test_large_tensors_go_to_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 16)
    saved(tmp_path, 2)
    assert len(list((tmp_path / "step-000002").glob("shard-*"))) == 2
    check(tmp_path, 2)


@pytest.mark.slow
def test_run_resumed_with_a_damaged_checkpoint(tmp_path: Path) -> None:
    settings = ("rollout.lag=1", "train.resample.multiplier=1.5", "checkpoint.every=1")
    whole = trained(tmp_path / "whole", "ppo", *settings)
    assert [path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()] == ["step-000004"], "the last one"
    train_until_killed(tmp_path / "killed", "ppo", *settings, at=2)
    (file,) = (tmp_path / "killed" / "checkpoints" / "step-000002").glob("shard-*")
    flip(file)
    again, durable = build(tmp_path / "killed", "ppo", *settings), list[int]()
    again.run(durable.append)
    assert durable == [1, 2, 3, 4]
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    assert same(weights(again), weights(whole))


@pytest.mark.slow
def test_moments_in_the_memory_of_the_machine_change_no_bit(tmp_path: Path) -> None:
    runs = []
    for name, first, then in (("one", False, False), ("other", True, True), ("mixed", True, False)):
        for steps, offload in ((2, first), (4, then)):
            overrides = (f"train.steps={steps}", f"hardware.offload={offload}")
            trainer = build(tmp_path / name, "ppo", *overrides)
            trainer.checkpoints.cell = CELL  # one cell, though its number of steps differs here
            trainer.run(lambda step: None)
            assert (trainer.policy.masters is not trainer.policy.weights) == offload
        runs.append((records(tmp_path / name), weights(trainer)))
    for lines, theirs in runs[1:]:
        assert lines == runs[0][0]
        assert same(theirs, runs[0][1])


Found = dict[str, Tensor]


def hand_over(folder: Path, source: str | None, target: str) -> Found:
    """Read the checkpoint of a policy and a critic, or make a first one, and write it again; return it whole."""
    hardware = Hardware(offload=source is not None)
    policy = Policy(folder / "model", Train(), 1.0, "cpu", torch.float32, hardware)
    critic = Critic(folder / "model", Train(), 1e-3, "cpu", torch.float32, hardware)
    learners: dict[str, Policy | Critic] = {"policy": policy, "critic": critic}
    if source is None:
        for learner in learners.values():
            for name, weight in learner.weights.items():
                weight.grad = None if name == "model.norm.weight" else torch.randn_like(weight)
            learner.apply(1e-2)
    else:
        newest = Checkpoints(folder / source, CELL).latest()
        assert newest is not None
        for who, learner in learners.items():
            learner.load_state(newest.of(who), partial(newest.fill, who))
    tensors = {f"{who}.{name}": x for who, learner in learners.items() for name, x in learner.state().items()}
    checkpoints = Checkpoints(folder / target, CELL)
    checkpoints.save(1, tensors, {})
    checkpoints.written(wait=True)
    return {name: ranks.whole_weight(x) for name, x in tensors.items()} | {
        f"{who} {name}": ranks.whole_weight(x)
        for who, learner in learners.items()
        for name, x in learner.module.state_dict().items()
    }


def hand_over_on_rank(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    return hand_over(folder, "of one", "of three")


@pytest.mark.processes
@pytest.mark.slow
def test_three_ranks_and_one_read_each_other_bit_for_bit(tmp_path: Path) -> None:
    """Of a head with one row, two ranks hold nothing; a weight without gradient has no moments."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 83, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)).save_pretrained(tmp_path / "model")
    one = hand_over(tmp_path, None, "of one")
    by_rank = on_ranks(hand_over_on_rank, tmp_path, 3)
    again = hand_over(tmp_path, "of three", "of one again")
    for tensors in (*by_rank, again):
        assert tensors.keys() == one.keys()
        assert all(torch.equal(tensors[name], x) for name, x in one.items())
    assert "policy.exp_avg.model.embed_tokens.weight" in one
    assert "policy.exp_avg.model.norm.weight" not in one
    assert "policy.weight.lm_head.weight" not in one, "it is the embedding"
    files = list((tmp_path / "of three" / "step-000001").glob("shard-0000[123]-*"))
    assert len(files) == 3


def test_save_on_a_full_disk(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2)
    with files_of_at_most(10):
        save(checkpoints, 4)
        with pytest.raises(Unwritten, match=r"step-000004 cannot be written: File too large"):
            checkpoints.written(wait=True)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]
