"""The one checkpoint of a cell: saved atomically, the older one deleted only when the newer one is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from harness.base import ranks
from harness.base.files import atomic


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    path = folder / f"step-{step:06d}.pt"
    with atomic(path) as file:
        torch.save({"step": step, **state}, file)
    for older in folder.glob("step-*.pt"):
        if older != path:
            older.unlink()


def latest(folder: Path) -> dict[str, Any] | None:
    """Reads the newest checkpoint; of several ranks, each reads only the part that it uses."""
    paths = sorted(folder.glob("step-*.pt"))
    return torch.load(paths[-1], map_location="cpu", mmap=ranks.several(), weights_only=True) if paths else None
