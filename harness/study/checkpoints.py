"""The checkpoints that another trainer has left in a folder, and its records of the training; imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import UserError, shown
from harness.rollout import digests, models

# The names that transformers' Trainer, and so TRL, and verl give to the folders of checkpoints.
NAME = re.compile(r"(checkpoint-|global_step_)(\d+)")
TRAINERS = {"checkpoint-": "trl", "global_step_": "verl"}
# Where a checkpoint has its config.json; verl keeps its own shards in `actor`.
INSIDE = (".", "actor/huggingface", "huggingface")
HISTORY = "trainer_state.json"  # of transformers' Trainer: the steps, and all that it logged
DOOR = "entrobench.json"  # of EntrobenchTrainer and of verl with our plugin: the method
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
        checksums = {}
        for path in digests.model_files(self.weights):
            # Not the other files: optimizers, logs and tokenizers of the same weights may differ.
            if path.suffix == ".safetensors" or path.name == "config.json":
                checksums[path.name] = files.sha256_of(path)
        return digests.digest_of_files(self.weights, checksums)

    def method(self) -> str | None:
        """Return the method that our part in the other trainer has recorded; None without a record."""
        path = self.place / DOOR
        if not path.is_file():
            return None
        recorded: str = files.read_json(path)["method"]
        return recorded


def find_checkpoints(folder: Path) -> list[TrainedCheckpoint]:
    """Return the checkpoints in a folder by their steps, or the folder itself as the only one."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the one in which a trainer has saved its checkpoints")
    places: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = NAME.fullmatch(path.name)
        if match and path.is_dir() and int(match[2]):  # step 0 is the base model
            places[int(match[2])] = path
    if not places:
        places = {step_of_folder(folder): folder}
    checkpoints = []
    for step, place in sorted(places.items()):
        weights = place
        for inside in INSIDE:
            if (place / inside / "config.json").is_file():
                weights = place / inside
                break
        check_weights(place, weights)
        checkpoints.append(TrainedCheckpoint(step, place, weights))
    return checkpoints


def step_of_folder(folder: Path) -> int:
    """Return the step of a single folder."""
    match = NAME.fullmatch(folder.resolve().name)
    if match:
        return max(int(match[2]), ONLY_STEP)
    if (folder / HISTORY).is_file():
        return max(int(files.read_json(folder / HISTORY)["global_step"]), ONLY_STEP)
    return ONLY_STEP


def check_weights(place: Path, weights: Path) -> None:
    """Refuse a checkpoint without weights in the format of Hugging Face, and name the remedy if there is one."""
    if any(weights.glob("*.safetensors")) and (weights / "config.json").is_file():
        models.check_model_folder(weights, str(place))
        return
    if (place / "adapter_config.json").is_file():
        raise UserError(
            f"{place} holds an adapter and no whole model; merge it into its base with merge_and_unload of peft, and "
            "save that with its tokenizer"
        )
    if any(place.rglob("model_world_size_*_rank_*.pt")):
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
    path = checkpoints[-1].place / HISTORY
    if not path.is_file():
        return {}
    state: dict[str, Any] = files.read_json(path)
    each_step = state.get("logging_steps") == 1
    by_step: dict[int, dict[str, float]] = {}
    for record in state.get("log_history", []):
        metrics = by_step.setdefault(int(record["step"]), {})
        for key, value in record.items():
            # Not isinstance, by which True is a number too.
            if key in ("step", "epoch") or type(value) not in (int, float):
                continue
            name = key.removeprefix(LOGGED) if each_step and key.startswith(LOGGED) else f"trl/{key}"
            metrics[name] = value
    return by_step
