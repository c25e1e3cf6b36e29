"""The record that a cell's folder begins with: what the cell is, and all that its process needs to know."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from harness.base import files, seal
from harness.base.errors import Damaged
from harness.base.schema import typed
from harness.config import Config

FILE = "config.yaml"
KEY = re.compile(rb"cell: '?([0-9a-f]+)'?\n")  # its first line


@dataclass(frozen=True)
class CellSpec:
    cell: str  # its key: the hash of its identity
    matrix: str
    method: str
    task: str
    model: str
    seed: int
    identity: dict[str, Any]  # what defines its result
    settings: dict[str, Any]  # the configuration as plain values; `config` has it typed
    made_of: str | None = None  # its method with compositions written out; None where it names none

    @classmethod
    def read(cls, folder: Path) -> CellSpec:
        """Return the record in a cell's folder; refuse one that does not fit its sum."""
        path = folder / FILE
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise Damaged(path, "it is missing") from None
        return cls.parse(seal.open_yaml(content, path), path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> CellSpec:
        """Return the record that a text holds; `path` says where it was."""
        given = files.parse_yaml(content, path)
        keys = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(given, dict) or given.keys() != set(keys):
            raise Damaged(path, f"it must hold {', '.join(keys)}")
        spec = cls(**given)
        if not isinstance(spec.settings, dict) or not isinstance(spec.identity, dict):
            raise Damaged(path, "identity and settings must be mappings of keys")
        return spec

    def write(self, folder: Path) -> None:
        files.write_text(folder / FILE, seal.close_yaml(yaml.safe_dump(dataclasses.asdict(self), sort_keys=False)))

    @cached_property
    def config(self) -> Config:
        config: Config = typed(Config(), self.settings, "")
        return config


def key_in(folder: Path) -> str | None:
    """Return the key of the cell that a folder's record names, by its first line alone; None where it names none."""
    try:
        with open(f"{folder}/{FILE}", "rb") as file:  # a matrix has thousands: a Path for each would take longer
            match = KEY.match(file.read(80))
    except FileNotFoundError:
        return None
    return match[1].decode() if match else None
