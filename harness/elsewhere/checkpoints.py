"""The checkpoints of another trainer in a folder, and the records in them of its training; imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import UserError, shown
from harness.base.schema import LARGEST
from harness.cells.log import is_step
from harness.rollout import digests, models

# The names that transformers' Trainer, and so TRL, and verl give to the folders of checkpoints.
NAME = re.compile(r"(checkpoint-|global_step_)([0-9]+)")
TRAINERS = {"checkpoint-": "trl", "global_step_": "verl"}
# Where a checkpoint has its config.json; verl keeps its own shards in `actor`.
INSIDE = (".", "actor/huggingface", "huggingface")
HISTORY = "trainer_state.json"  # of transformers' Trainer: the steps, and all that it logged
MEMORY = "entrobench.json"  # of EntrobenchTrainer and of verl with our plugin: the method, and its controls' memory
LOGGED = "entrobench/"  # before the metrics that EntrobenchTrainer logs by our definitions
ONLY_STEP = 1  # of a folder that does not show after which step it was written


@dataclass(frozen=True)
class TrainedCheckpoint:
    """Weights in the format of Hugging Face, after some steps of another trainer."""

    step: int
    place: Path  # the folder of the checkpoint
    weights: Path  # the same, or a folder in it

    def digest(self) -> str:
        """Return the digest of its weights, with the settings by which they are read."""
        names = [path.name for path in digests.model_files(self.weights)]
        # Not the other files: optimizers, logs and tokenizers of the same weights may differ.
        weights = [name for name in names if name.endswith(".safetensors") or name == "config.json"]
        return digests.digest_of_files(self.weights, files.sums_of(self.weights, weights))

    def method(self) -> str | None:
        """Return the method that our part in the other trainer has recorded; None without a record."""
        path = self.place / MEMORY
        return files.read_record(Memory, path).method if path.is_file() else None


@dataclass(frozen=True)
class Memory:
    """The content of MEMORY."""

    method: str
    state: dict[str, dict[str, float]]  # of each control


def write_memory(checkpoint: Path, method: str, state: Mapping[str, Mapping[str, float]]) -> None:
    """Write a method and the memory of its controls into the folder of a checkpoint."""
    (checkpoint / MEMORY).write_text(json.dumps({"method": method, "state": state}, indent=1), "utf-8")


def read_memory(checkpoint: Path, method: str) -> dict[str, dict[str, float]]:
    """Return the memory of the controls in a checkpoint; refuse a checkpoint of another method."""
    path = checkpoint.absolute() / MEMORY
    if not path.exists():
        raise UserError(f"the checkpoint {checkpoint} has no {MEMORY}; no method of entrobench trained it")
    kept = files.read_record(Memory, path)
    if kept.method != method:
        raise UserError(f"the checkpoint {checkpoint} is of method {kept.method}, not of {method}")
    return kept.state


def find_checkpoints(folder: Path) -> list[TrainedCheckpoint]:
    """Return the checkpoints in a folder by their steps, or the folder itself as the only one."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the one in which a trainer has saved its checkpoints")
    # Step 0 is the base model.
    places = {step: path for path in sorted(folder.iterdir()) if (step := step_in_name(path)) and path.is_dir()}
    if not places:
        places = {step_of_folder(folder): folder}
    checkpoints = []
    for step, place in sorted(places.items()):
        folders = [place / inside for inside in INSIDE]
        weights = next((folder for folder in folders if (folder / "config.json").is_file()), place)
        check_weights(place, weights)
        trainer_state(place)  # refused here, and not after an evaluation of hours
        checkpoints.append(TrainedCheckpoint(step, place, weights))
    return checkpoints


def step_of_folder(folder: Path) -> int:
    step = step_in_name(folder.resolve())
    if step is None:
        state = trainer_state(folder)
        step = state["global_step"] if state else ONLY_STEP
    return max(step, ONLY_STEP)


def step_in_name(folder: Path) -> int | None:
    """Return the step that the name of a checkpoint's folder states; None for other names."""
    match = NAME.fullmatch(folder.name)
    if match is None:
        return None
    step = int(match[2])
    if step > LARGEST:
        raise UserError(f"{folder} names a step that no store can hold; allowed: up to {LARGEST}")
    return step


def trainer_state(folder: Path) -> dict[str, Any] | None:
    """Return the state that transformers' Trainer saved with a checkpoint; None without one."""
    path = folder / HISTORY
    if not path.is_file():
        return None
    read = files.read_json(path)
    state: dict[str, Any] = read if isinstance(read, dict) else {}
    history = state.get("log_history")
    records = history if isinstance(history, list) else [None]
    steps = [record.get("step") if isinstance(record, dict) else None for record in records]
    if not all(map(is_step, [*steps, state.get("global_step")])):
        raise UserError(
            f"{path} is not the state of transformers' Trainer: it must have global_step, and log_history, a list of "
            f"records with a step of 0 to {LARGEST} each"
        )
    return state


def check_weights(place: Path, weights: Path) -> None:
    """Refuse a checkpoint without weights in the format of Hugging Face, and name the remedy if there is one."""
    has_weights = (weights / "config.json").is_file() and any(weights.glob("*.safetensors"))
    if not has_weights and any(place.rglob("model_world_size_*_rank_*.pt")):
        raise UserError(
            f"{place} holds verl's own shards, which may run code when they are read; write the model with `python -m "
            "verl.model_merger merge`, or train with hf_model in actor.checkpoint.save_contents"
        )
    models.check_model_folder(weights, str(place))


def trainer_of_folder(checkpoints: list[TrainedCheckpoint]) -> str:
    """Return the trainer that names its checkpoints so; refuse a folder that does not show it."""
    last = checkpoints[-1].place
    match = NAME.fullmatch(last.resolve().name)
    if match:
        return TRAINERS[match[1]]
    if (last / HISTORY).is_file():
        return "trl"
    raise UserError(f"{last} does not show which trainer made it; name it, for example --trainer trl")


def check_recorded_method(checkpoints: list[TrainedCheckpoint], method: str) -> None:
    """Refuse a method that differs from the one that a checkpoint records."""
    for checkpoint in checkpoints:
        recorded = checkpoint.method()
        if recorded is not None and recorded.replace(" ", "") != method.replace(" ", ""):
            raise UserError(
                f"--method is {shown(method)}, but {checkpoint.place} was trained by {shown(recorded)}; give that"
            )


def logged_metrics(checkpoints: list[TrainedCheckpoint]) -> dict[int, dict[str, float]]:
    """Return the numbers that the trainer logged, by step; none of a trainer other than transformers'.

    EntrobenchTrainer's have their own names here, since they are computed by the same definitions. A logged mean over
    several steps is of no single one, so it keeps the trainer's name, as all other numbers do: trl/entropy.
    """
    state = trainer_state(checkpoints[-1].place)
    if state is None:
        return {}
    each_step = state.get("logging_steps") == 1
    by_step: dict[int, dict[str, float]] = {}
    for record in state["log_history"]:
        metrics = by_step.setdefault(record["step"], {})
        for key, value in record.items():
            # Not isinstance, by which True is a number too.
            is_number = type(value) is float or (type(value) is int and abs(value) <= LARGEST)
            if key in ("step", "epoch") or not is_number:
                continue
            name = key.removeprefix(LOGGED) if each_step and key.startswith(LOGGED) else f"trl/{key}"
            metrics[name] = value
    return by_step
