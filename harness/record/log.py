"""metrics.jsonl, the truth of a cell: one line a step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from harness.base import files


class MetricsLog:
    """metrics.jsonl of a cell: one line a step."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"

    def append(self, step: int, time: float, metrics: dict[str, float]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": step, "time": time, "metrics": metrics}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint must not outlive the lines before it

    def read(self) -> list[dict[str, Any]]:
        """The whole lines; a process may have been killed in the middle of the last, or be writing it now."""
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def truncate(self, step: int) -> None:
        """Forget what came after a step."""
        kept = [json.dumps(line) + "\n" for line in self.read() if line["step"] <= step]
        files.write_text(self.path, "".join(kept))


def durable_step(folder: Path) -> int:
    """The last step that no interruption can undo; -1 before the first."""
    path = folder / "state.json"
    return files.read_json(path)["durable_step"] if path.exists() else -1


def last_metrics(folder: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - 2**16, 0))
        lines = file.read().split(b"\n")[:-1]
    return json.loads(lines[-1]) if lines else {}
