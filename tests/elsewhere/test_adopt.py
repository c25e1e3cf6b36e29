"""Models that others have trained enter a leaderboard: same numbers, rows of their own, sentences for mistakes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_command
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from harness import config as configs
from harness.base.errors import UserError
from harness.cells import evaluations
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec, adopted_folders
from harness.cells.state import State
from harness.config import Config
from harness.elsewhere import checkpoints
from harness.launch import cell
from harness.matrix import cells, claim
from harness.rollout import models
from harness.tracking import store
from tasks.countdown import Countdown

SMALL = ["methods=[grpo]", "train.steps=2", "train.prompts=4", "train.group=4", "train.updates=2", "seeds=[0,1]"]
SMALL += ["eval.problems=6", "eval.samples=4", "eval.k=2", "rollout.max_new_tokens=12", "dynamics.every=0"]


class Place:
    """A results folder with its MLflow store, and the command on it."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.overrides = [*SMALL, f"results={folder / 'results'}", f"tracking.uri={uri}"]
        self.uri = uri

    @property
    def config(self) -> Config:
        return configs.load_config("smoke", self.overrides)

    @property
    def folders(self) -> list[Path]:
        return adopted_folders(self.config.folder)

    def call(self, *words: str, code: int = 0) -> str:
        return run_command(*words, *self.overrides, code=code)

    def adopt(self, folder: Path, *words: str, code: int = 0) -> str:
        given = list(words)
        for name, value in {"--method": "grpo", "--seed": "0"}.items():
            if name not in words:
                given += [name, value]
        return self.call("adopt", str(folder), "smoke", *given, code=code)

    def rows(self) -> dict[str, dict[str, Any]]:
        lines = json.loads(self.call("leaderboard", "smoke", "--format", "json"))
        return {row["method"]: row for row in lines}


@pytest.fixture
def place(tmp_path: Path, mlflow_uri: str) -> Place:
    return Place(tmp_path, mlflow_uri)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The base model as a trainer would leave it after five steps without any effect."""
    base = models.resolve("countdown-tiny").folder()
    return Path(shutil.copytree(base, tmp_path / "theirs" / "checkpoint-5"))


def right(folder: Path, step: int) -> Any:
    return evaluations.read_evaluation(evaluations.evaluation_path(folder, "countdown", step))["right"]


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    save_file({**tensors, name: tensors[name] + 0.5}, path, metadata={"format": "pt"})


# The numbers


@pytest.mark.slow
def test_adopt_a_model_of_our_own(place: Place, tmp_path: Path) -> None:
    claim(place.config)
    ours = cells(place.config)[0]
    ours.spec.write(ours.folder)
    cell.work(ours.folder)
    theirs = Path(shutil.copytree(ours.folder / "model", tmp_path / "theirs" / "checkpoint-2"))
    printed = place.adopt(theirs.parent, "--trainer", "other")
    assert "evaluating checkpoint-2 as step 2" in printed

    [folder] = place.folders
    assert [right(folder, step) for step in (0, 2)] == [right(ours.folder, step) for step in (0, 2)]
    rows = place.rows()
    assert list(rows) == ["base model", "grpo", "grpo (trained elsewhere: other)"]
    adopted, own = rows["grpo (trained elsewhere: other)"], rows["grpo"]
    assert adopted["avg_at_k"] == own["avg_at_k"]
    assert adopted["delta_to_baseline"]["mean"] == 0
    assert adopted["seeds_done"] == 1
    assert [adopted[name] for name in ("hours", "tokens", "entropy_final")] == [None, None, None]
    assert (own["seeds_done"], own["seeds_expected"]) == (1, 2)
    place.call("report", "smoke")
    page = (place.config.folder / "report/report.html").read_text()
    assert "grpo (trained elsewhere: other)" in page
    assert "(none)" not in page  # the settings of its training are unknown, which is no difference to show


# TRL


def trained_by_trl(folder: Path, method: str | None) -> Path:
    """Return the folder of two steps of EntrobenchTrainer, or without a method of TRL's own trainer."""
    from trl_trainers import door, trainer_of  # here, since other tests of this file do without trl

    base = models.resolve("countdown-tiny").folder()
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-3}
    trainer = trainer_of(
        method or "",
        folder,
        str(base),
        kind=door.GRPOTrainer if method is None else None,
        max_steps=2,
        max_completion_length=12,
        train_dataset=Dataset.from_list([{"prompt": problem.prompt} for problem in Countdown().problems("train")[:64]]),
        processing_class=AutoTokenizer.from_pretrained(base),
        rollout_func=None,
        **options,
    )
    trainer.train()
    return folder


@pytest.mark.slow
def test_adopt_a_model_of_trl(place: Place, tmp_path: Path) -> None:
    trl_folder = trained_by_trl(tmp_path / "trl", None)
    printed = place.adopt(trl_folder)
    assert "grpo (trained elsewhere: trl)" in printed
    [folder] = place.folders
    assert folder.name.startswith("grpo-countdown-countdown-tiny-s0@trl-")
    spec = CellSpec.read(folder)
    trained = spec.identity["trained_elsewhere"]
    assert (trained["trainer"], list(trained["checkpoints"])) == ("trl", ["1", "2"])
    assert State.read(folder).state == "done"
    assert [right(folder, step) for step in (0, 1, 2)]
    lines = {line["step"]: line["metrics"] for line in MetricsLog(folder).read()}
    assert lines[2]["trl/entropy"] > 0
    assert "entropy/mean" not in lines[2]  # TRL's is another number
    row = place.rows()["grpo (trained elsewhere: trl)"]
    assert (row["seeds_done"], row["seeds_expected"], row["entropy_final"]) == (1, 1, None)
    with store.store(place.uri, write=False) as client:
        experiment = client.get_experiment_by_name("smoke").experiment_id
        [run] = client.search_runs([experiment], "tags.trainer = 'trl'")
    assert run.data.tags["cell"] == spec.id
    assert run.data.params["eval.samples"] == "4"
    assert not [name for name in run.data.params if name in ("train.lr", "train.steps", "stop.entropy_below")]

    before = (folder / "metrics.jsonl").read_bytes()
    assert "was evaluated before" in place.adopt(trl_folder)
    assert before == (folder / "metrics.jsonl").read_bytes()
    assert "grpo (trained elsewhere: trl) seed 0" in place.call("status", "smoke")
    assert "nothing to clean" in place.call("clean", "smoke")
    assert "holds the records of 1 cell" in place.call("sync", "smoke")
    place.adopt(trl_folder, "--seed", "1")  # the same weights under another seed are another cell
    assert place.rows()["grpo (trained elsewhere: trl)"]["seeds_done"] == 2
    assert "grpo (trained elsewhere: trl)" in run_command("leaderboard", "--experiment", "smoke", "--uri", place.uri)


@pytest.mark.slow
def test_adopt_with_the_records_of_our_trl_trainer(place: Place, tmp_path: Path) -> None:
    door_folder = trained_by_trl(tmp_path / "door", "clip_b(share=0.1)")
    refused = place.adopt(door_folder, "--method", "clip_b", code=2)
    assert "--method is 'clip_b', but" in refused
    assert "was trained by 'clip_b(share=0.1)'; give that" in refused
    place.adopt(door_folder, "--method", "clip_b(share=0.1)")
    [folder] = place.folders
    lines = {line["step"]: line["metrics"] for line in MetricsLog(folder).read()}
    assert lines[1]["entropy/mean"] > 0
    row = place.rows()["clip_b(share=0.1) (trained elsewhere: trl)"]
    assert row["entropy_initial"]["mean"] == pytest.approx(lines[1]["entropy/mean"])


# Other folders


def test_find_checkpoints_in_every_folder(tmp_path: Path, checkpoint: Path) -> None:
    [only] = checkpoints.find_checkpoints(checkpoint)
    assert (only.step, checkpoints.trainer_of_folder([only])) == (5, "trl")
    for step in (0, 20, 100):
        shutil.copytree(checkpoint, tmp_path / "verl" / f"global_step_{step}" / "actor" / "huggingface")
    several = checkpoints.find_checkpoints(tmp_path / "verl")
    assert [checkpoint.step for checkpoint in several] == [20, 100]
    assert checkpoints.trainer_of_folder(several) == "verl"
    assert several[0].digest() == only.digest()
    plain = Path(shutil.copytree(checkpoint, tmp_path / "plain"))
    [only] = checkpoints.find_checkpoints(plain)
    assert only.step == 1
    with pytest.raises(ValueError, match="does not show which trainer made it; name it, for example --trainer trl"):
        checkpoints.trainer_of_folder([only])
    change_weights(plain)
    assert only.digest() != several[0].digest()


def test_means_over_several_steps_keep_the_names_of_the_trainer(checkpoint: Path) -> None:
    history: dict[str, Any] = {"global_step": 5, "logging_steps": 5}
    history["log_history"] = [{"step": 5, "epoch": 1.0, "entrobench/entropy/mean": 0.5, "note": "x"}]
    (checkpoint / "trainer_state.json").write_text(json.dumps(history))
    saved = checkpoints.find_checkpoints(checkpoint)
    assert checkpoints.logged_metrics(saved) == {5: {"trl/entrobench/entropy/mean": 0.5}}


# Mistakes


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def weights_that_diverged(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: tensor * torch.nan for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})


def shards(folder: Path) -> None:
    no_weights(folder)
    (folder / "model_world_size_8_rank_0.pt").touch()


def swapped_tokens(folder: Path) -> None:
    def swap(content: Any) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]

    edit_json(folder / "tokenizer.json", swap)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: shutil.rmtree(folder.parent), "theirs is not a folder"),
        (no_weights, "is not a Hugging Face model, it has no weights"),
        (weights_that_diverged, "has NaN or infinite weights (model.embed_tokens.weight): its training diverged"),
        (lambda folder: folder.rename(folder.with_name(f"checkpoint-{'9' * 23}")), "a step that no store can hold"),
        (shards, "holds verl's own shards"),
        (swapped_tokens, "does not fit the model countdown-tiny: token '1' is"),
        (
            lambda folder: edit_json(folder / "config.json", lambda content: content.update(num_hidden_layers=1)),
            "differs in shape from the model countdown-tiny",
        ),
    ],
)
def test_adopt_refuses_other_folders(
    spoil: Callable[[Path], None], sentence: str, place: Place, checkpoint: Path
) -> None:
    spoil(checkpoint)
    assert sentence in place.adopt(checkpoint.parent, code=2)
    assert not list(place.config.folder.glob("*/metrics.jsonl"))


LOGGED: dict[str, Any] = {"global_step": 5, "log_history": [{"step": 5, "loss": 0.5}]}
ODD_STATES: list[Any] = [
    *([], {}, "x", {**LOGGED, "log_history": 7}),
    *({**LOGGED, "log_history": [record]} for record in (7, {}, {"step": "5"})),
    *({**LOGGED, "global_step": step} for step in (True, -1, 2**63)),
]
ODD_MARKS: list[Any] = [[], {}, "x", {"method": 5}]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("trainer_state.json", content) for content in ODD_STATES),
        *(("entrobench.json", content) for content in (*ODD_MARKS, {"method": "grpo", "state": [1]})),
    ],
)
def test_other_records_are_refused(file: str, content: Any, checkpoint: Path) -> None:
    (checkpoint / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"^{re.escape(str(checkpoint / file))} .*\Z"):
        checkpoints.check_recorded_method(checkpoints.find_checkpoints(checkpoint), "grpo")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "gpro"], "unknown method 'gpro'"),
        (["--method", "gpro"], "--unregistered accepts"),
        (["--unregistered"], "--unregistered is for methods that entrobench does not have, but it has 'grpo'"),
        (["--unregistered", "--method", "a b"], "--method is 'a b'; allowed with --unregistered"),
        (["--unregistered", "--method", "gr\N{CYRILLIC SMALL LETTER ER}o"], "allowed with --unregistered"),
        (["--seed", "7"], "--seed is 7; allowed: the seeds of the matrix smoke, 0, 1"),
        (["--model", "tiny"], "--model is 'tiny'; allowed: countdown-tiny"),
        (["--trainer", "a/b"], "--trainer is 'a/b'; allowed: up to 100 of a-z"),
        (["axes={train.lr: [0.1, 0.2]}"], "has further axes (train.lr)"),
    ],
)
def test_adopt_command_mistakes(words: list[str], sentence: str, place: Place, checkpoint: Path) -> None:
    assert sentence in place.adopt(checkpoint, *words, code=2)
    assert not place.folders


@pytest.mark.slow
def test_adopt_refuses_a_second_model(place: Place, checkpoint: Path) -> None:
    place.adopt(checkpoint, "--method", "my_idea", "--unregistered", "--trainer", "my_loop")
    assert "my_idea (trained elsewhere: my_loop)" in place.rows()
    change_weights(checkpoint)
    again = ["--method", "my_idea", "--unregistered", "--trainer"]
    sentence = "seed 0 of my_idea (trained elsewhere: my_loop) was adopted with different weights"
    assert sentence in place.adopt(checkpoint, *again, "my_loop", code=2)
    place.adopt(checkpoint, *again, "other")  # of another trainer it is another row
    assert len(place.folders) == 2


@pytest.mark.slow
def test_adopt_continues_an_evaluation(place: Place, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.elsewhere import adopt

    evaluate = adopt.evaluate_cell

    def stopped(*given: Any, step: int, **named: Any) -> Any:
        if step:
            raise KeyboardInterrupt(2)
        return evaluate(*given, step=step, **named)

    monkeypatch.setattr(adopt, "evaluate_cell", stopped)
    place.adopt(checkpoint, code=130)
    [folder] = place.folders
    assert State.read(folder).state == "running"
    monkeypatch.setattr(adopt, "evaluate_cell", evaluate)
    printed = place.adopt(checkpoint)
    assert "the base model" not in printed
    assert State.read(folder).state == "done"


@pytest.mark.slow
def test_adopt_again_after_a_stop_before_the_first_record(
    place: Place, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.elsewhere import adopt

    def stopped(cell: adopt.AdoptedCell) -> bool:
        raise KeyboardInterrupt(2)

    with monkeypatch.context() as patch:
        patch.setattr(adopt, "begin_evaluation", stopped)
        place.adopt(checkpoint, code=130)
    assert "trained elsewhere" not in place.call("status", "smoke")
    place.adopt(checkpoint)
    [folder] = place.folders
    assert State.read(folder).state == "done"


@pytest.mark.slow
def test_adopt_repairs_a_damaged_record(place: Place, checkpoint: Path) -> None:
    place.adopt(checkpoint)
    [folder] = place.folders
    before = right(folder, 5)
    path = evaluations.evaluation_path(folder, "countdown", 5)
    path.write_text(path.read_text().replace("1", "0", 1))
    assert "`entrobench adopt` repairs the cell" in place.call("sync", "smoke", code=1)
    assert "was evaluated before" not in place.adopt(checkpoint)
    assert right(folder, 5) == before
    assert place.rows()["grpo (trained elsewhere: trl)"]["seeds_done"] == 1


@pytest.mark.slow
def test_adopt_with_another_evaluation(place: Place, checkpoint: Path) -> None:
    place.adopt(checkpoint)
    place.overrides.append("eval.samples=8")
    place.adopt(checkpoint)
    assert len(place.folders) == 2
    row = place.rows()["grpo (trained elsewhere: trl)"]
    assert (row["seeds_done"], row["seeds_expected"]) == (1, 1)
