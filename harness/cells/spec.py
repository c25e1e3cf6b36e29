"""The first record in a cell's folder: its key, its identity, and the settings that its process reads."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from harness.base import files, identities, seal
from harness.base.errors import Damaged
from harness.base.schema import typed
from harness.cells.source_digest import edited_components
from harness.config import Config

FACTORS = ("method", "task", "model", "seed")  # the axes of every matrix
FILE = "config.yaml"
# In the folder of a matrix: its name, and the answers that its cells share (train/base_answers.py).
MARKER, BASE_ANSWERS = "matrix.json", "base"
STORED = ("cell", "matrix", *FACTORS, "identity", "settings", "made_of")  # the keys of the record
ELSEWHERE = "trained_elsewhere"  # in the identity of an adopted cell: its trainer, and the digests of its checkpoints
ID = re.compile(rb"cell: '?([0-9a-f]+)'?\n")  # its first line; YAML quotes an id that could be read as a number
TRAINER = "trainer"  # a parameter and a tag that only MLflow runs of adopted cells have
MARK = "@"  # in the names of folders of adopted cells, and of no other cell


@dataclass(frozen=True)
class CellKey:
    """A method on a task with a model and a seed, in one setting of the further axes; unique within a matrix."""

    method: str
    task: str  # the task that is trained on
    model: str
    seed: int
    setting: tuple[tuple[str, Any], ...] = ()  # the keys of the configuration's further axes with their values

    def factors(self) -> dict[str, Any]:
        """Return the values at the axes that every matrix has."""
        return {name: getattr(self, name) for name in FACTORS}

    def columns(self) -> dict[str, Any]:
        """Return the values at all axes, in the order of a table's columns."""
        return {"method": self.method, "task": self.task, "model": self.model, **dict(self.setting), "seed": self.seed}

    def tags(self) -> dict[str, str]:
        """Return the factors as the tags of an MLflow run."""
        return {name: str(value) for name, value in self.factors().items()}

    @property
    def run_name(self) -> str:
        """The name of its run in MLflow and in Weights & Biases."""
        return f"{self.method} s{self.seed}"


class PlainDumper(yaml.SafeDumper):
    """Writes a value again where it is repeated, and no alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@dataclass(frozen=True)
class CellSpec:
    id: str  # the hash of its identity
    matrix: str
    key: CellKey
    identity: dict[str, Any]  # everything that defines its result
    settings: dict[str, Any]  # the configuration as plain values; `config` is the typed form
    made_of: str | None = None  # its method with compositions written out; None if it names none

    @classmethod
    def read(cls, folder: Path) -> CellSpec:
        """Return the record in a cell's folder; refuse one that differs from its checksum."""
        path = folder / FILE
        return cls.parse(seal.open_yaml(files.read_present(path), path), path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> CellSpec:
        """Parse a record; `path` is named in errors."""
        record = files.parse_yaml(content, path)
        if not isinstance(record, dict) or record.keys() != set(STORED):
            raise Damaged(path, f"it must hold {', '.join(STORED)}")
        identity, settings = record["identity"], record["settings"]
        if not isinstance(settings, dict) or not isinstance(identity, dict):
            raise Damaged(path, "identity and settings must be mappings of keys")
        setting = tuple((axis, value_in(settings, axis)) for axis in settings.get("axes", {}))
        key = CellKey(**{name: record[name] for name in FACTORS}, setting=setting)
        return cls(record["cell"], record["matrix"], key, identity, settings, record["made_of"])

    def write(self, folder: Path) -> None:
        record = {
            "cell": self.id,
            "matrix": self.matrix,
            **self.key.factors(),
            "identity": self.identity,
            "settings": self.settings,
            "made_of": self.made_of,
        }
        files.write_text(folder / FILE, seal.close_yaml(yaml.dump(record, Dumper=PlainDumper, sort_keys=False)))

    @property
    def trainer(self) -> str | None:
        """The trainer of an adopted cell; None for a cell that was trained here."""
        trainer: str | None = self.identity.get(ELSEWHERE, {}).get("trainer")
        return trainer

    @cached_property
    def config(self) -> Config:
        return copy.deepcopy(typed_settings(json.dumps(self.settings)))


# Cells of one matrix mostly have the same settings. Building the typed form for each of 21 finished cells took 1.0 of
# the 3.1 CPU seconds of a `run`.
@lru_cache(maxsize=16)
def typed_settings(settings: str) -> Config:
    """Return the typed form of a configuration as JSON, which no caller may change."""
    values = json.loads(settings)
    values.get("hardware", {}).pop("accelerate", None)  # of an earlier version; null in every cell but TRL's on GPUs
    values.get("tracking", {}).pop("patience_minutes", None)  # of an earlier version
    config: Config = typed(Config, values, "")
    return config


def value_in(settings: Mapping[str, Any], key: str) -> Any:
    """Return the value under a key such as train.lr; None if an earlier version had no such key."""
    value: Any = settings
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


# Versions of code and problems in an identity. A cell of before these parts has neither.
VERSION = ("source", "problems")


def training_key(identity: Mapping[str, Any]) -> str:
    """Return a hash that is equal for all versions of a cell."""
    # Earlier versions of entrobench also had the settings in it by which stored answers are judged and read.
    kept = {name: value for name, value in identity.items() if name not in (*VERSION, "verify")}
    if "eval" in kept:
        kept["eval"] = {name: value for name, value in kept["eval"].items() if name != "k"}
    return identities.hash_of(kept)


def changed_parts(recorded: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Return the names of the methods and tasks whose code or problems differ between two versions of a cell."""
    edited = [edited_components(recorded.get(part, {}), present.get(part, {})) for part in VERSION]
    return sorted(set().union(*edited))


def id_in(folder: Path) -> str | None:
    """Return the cell id in the first line of a folder's record; None without an id."""
    try:
        with files.open_record(f"{folder}/{FILE}") as file:  # a matrix has thousands: a Path for each would take longer
            match = ID.match(file.read(80))
    except (FileNotFoundError, Damaged):
        return None
    return match[1].decode() if match else None


# Adopted cells: trained by another trainer, evaluated here


def adopted_name(method: str, trainer: str) -> str:
    """Return the method of an adopted cell; it names the trainer, so that no table pools it with cells trained here."""
    return f"{method} (trained elsewhere: {trainer})"


def is_adopted(folder: Path) -> bool:
    """Return whether the folder is an adopted cell's, by its name."""
    return MARK in folder.name


def adopted_folders(matrix: Path) -> list[Path]:
    """Return the folders of adopted cells; a command that was killed at once may have left one without a record."""
    return [folder for folder in sorted(matrix.glob(f"*{MARK}*")) if any(map(Path.is_file, folder.glob("*")))]
