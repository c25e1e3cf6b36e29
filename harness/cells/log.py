"""metrics.jsonl, the authoritative record of a cell, one sealed line for each step; how training ends by it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard

from harness.base import files, seal
from harness.base.errors import Damaged
from harness.base.schema import LARGEST
from harness.config import Config
from harness.config.sections import Stop

FILE = "metrics.jsonl"
NUMBERS = {int, float}  # exact types: True is an instance of int too
LATEST = 2**37  # seconds since 1970, of a step: Python has no date beyond the year 9999
TAIL = 2**16  # bytes at the end of the file that are read for the last lines


class MetricsLog:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def append(self, step: int, time: float, metrics: dict[str, float]) -> None:
        # On disk when this returns: a checkpoint must not outlive the lines before it.
        files.append_text(self.path, sealed_line({"step": step, "time": time, "metrics": metrics}))

    def lines(self) -> list[bytes]:
        """Return the complete lines; the last one may be half written, by a killed process or at this moment."""
        return files.read_bytes(self.path).split(b"\n")[:-1] if self.path.exists() else []

    def read(self) -> list[dict[str, Any]]:
        return [parsed(line, self.path) for line in self.lines()]

    def whole(self) -> tuple[list[dict[str, Any]], Damaged | None]:
        """Return the steps before the first line that is damaged or out of order, and the damage to that line."""
        whole_lines: list[dict[str, Any]] = []
        try:
            for line in self.lines():
                record = parsed(line, self.path)
                if record["step"] != len(whole_lines):
                    raise Damaged(self.path, f"step {record['step']} is in the place of step {len(whole_lines)}")
                whole_lines.append(record)
        except Damaged as damage:
            return whole_lines, damage
        return whole_lines, None

    def truncate(self, step: int) -> None:
        """Remove the lines after a step."""
        self.write(line for line in self.read() if line["step"] <= step)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        files.write_text(self.path, "".join(map(sealed_line, lines)))


def collapse(lines: Iterable[Mapping[str, Any]], below: float | None) -> int | None:
    """Return the first step whose entropy before its update lies below the bound; None without such a step."""
    if below is None:
        return None
    # False for a step without entropy.
    return next((line["step"] for line in lines if line["metrics"].get("entropy/mean", below) < below), None)


@dataclass
class Ending:
    """The step after which `stop` ends a cell, as far as the lines tell that were added."""

    stop: Stop
    step: int | None = None  # None: training goes on
    silent: int = 0  # steps in a row without a signal, up to the last line

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]], stop: Stop) -> Ending:
        ending = cls(stop)
        for line in lines:
            ending.add(line)
        return ending

    def add(self, line: Mapping[str, Any]) -> None:
        """Look at the next line; the first one that ends the cell counts."""
        if self.step is not None:
            return
        stop, metrics = self.stop, line["metrics"]
        if SHARE in metrics:
            self.silent = self.silent + 1 if metrics[SHARE] == 1 else 0
        collapsed = collapse([line], stop.entropy_below) is not None
        spent = stop.tokens is not None and metrics.get("tokens/generated_total", 0) >= stop.tokens
        if collapsed or spent or self.is_silent:
            self.step = line["step"]

    @property
    def is_silent(self) -> bool:
        """Whether the last steps had no signal for as long as `stop` allows."""
        return self.stop.without_signal is not None and self.silent >= self.stop.without_signal


def last_step(lines: Iterable[Mapping[str, Any]], config: Config) -> int:
    """Return the step at which the training of a cell ends, as far as its lines tell."""
    end = Ending.of(lines, config.stop).step
    return config.train.steps if end is None else end


def sealed_line(record: Mapping[str, Any]) -> str:
    return seal.close_json(json.dumps(record)) + "\n"


def is_step(value: Any) -> TypeGuard[int]:
    """Return whether a value is the number of a step that every store can hold."""
    return type(value) is int and 0 <= value <= LARGEST


def parsed(line: bytes, path: Path) -> dict[str, Any]:
    """Return the record of a step that a line holds; refuse a line that was changed since it was written."""
    record = files.parse_line(line, path)
    if not isinstance(record, dict) or record.keys() != {"step", "time", "metrics"}:
        raise Damaged(path, "one of its lines is not the record of a step")
    step, time, metrics = record["step"], record["time"], record["metrics"]
    is_record = is_step(step) and isinstance(metrics, dict)
    if not is_record or not NUMBERS.issuperset(map(type, (time, *metrics.values()))) or not 0 <= time < LATEST:
        raise Damaged(path, "one of its lines is not the record of a step: a number is missing")
    return record


def last_lines(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return at most `count` complete lines from the end of metrics.jsonl, without reading all of the file."""
    path = folder / FILE
    if not path.exists():
        return []
    with files.open_record(path) as file:
        start = max(path.stat().st_size - TAIL, 0)
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]
    if start and len(lines) > 1:  # the first line may be cut off at its start
        lines = lines[1:]
    return [parsed(line, path) for line in lines[-count:]]


# Training without a signal: each group of responses had one reward, so no response was better than another

SHARE = "reward/groups_without_signal"
NO_SIGNAL = "no step had a signal, so nothing was learned"
HALF = 0.5  # share of responses from which on a sign is named

# Remedies; `diagnose` names all but the first as well.
NEVER_ENDED = "raise rollout.max_new_tokens, or correct the model's chat template or end_tokens"
UNREADABLE = "read some responses; teach the format before training, or stop while answers can still be read"
TRUNCATED = "raise the limit of tokens, or leave truncated responses out of the loss (overlong)"
SATURATED = "train on harder problems (train.filter), or stop here"
CONSTANT = (
    "check by hand how answers are read and judged; if they are judged correctly, the problems are too hard or too "
    "easy for this model"
)
FEW_SIGNALS = "draw groups until enough of them have a signal (train.resample), or filter problems by their pass rate"


def silent_end(lines: Sequence[Mapping[str, Any]], stop: Stop) -> str | None:
    """Return a sentence on training that had a signal and ended because its last steps had none; None for others."""
    ending = Ending.of(lines, stop)
    if ending.step is None or not ending.is_silent or why_no_signal(lines):
        return None
    why = why_no_signal(lines[-ending.silent :])
    return f"training ended at step {ending.step}, since its last {ending.silent} steps had no signal: {why}"


def why_no_signal(lines: Sequence[Mapping[str, Any]], responses: int = 0) -> str | None:
    """Return the likely cause and its remedy if no training step in some lines of metrics.jsonl had a signal.

    None if one had, or if there is no training step among them. `responses`: of a step, to state how many rewards
    were 0.
    """
    steps = [line["metrics"] for line in lines if SHARE in line["metrics"]]
    if not steps or any(metrics[SHARE] < 1 for metrics in steps):
        return None
    unparsed, truncated, right = (
        fmean(metrics.get(key, 0.0) for metrics in steps)
        for key in ("verdicts/unparsed", "responses/truncated", "reward/mean")
    )
    remedies: dict[str, str] = {}  # by the facts that call for them
    if unparsed >= HALF:
        remedies[f"{portion(unparsed)} answers unparsed"] = UNREADABLE
    if truncated == 1:
        remedies["no response ended within rollout.max_new_tokens"] = NEVER_ENDED
    elif truncated >= HALF:
        remedies[f"{portion(truncated)} responses cut off by rollout.max_new_tokens"] = TRUNCATED
    if right == 1:
        remedies["all answers right"] = SATURATED
    elif right != 0:
        remedies["equal rewards in each group"] = FEW_SIGNALS
    elif not remedies:
        remedies["all answers wrong"] = CONSTANT
    facts = [*remedies]
    if responses and right == 0:
        facts.insert(0, f"all {len(steps) * responses:,} training rewards were 0")
    return f"{', '.join(facts)}; {'; '.join(remedies.values())}"


def portion(share: float) -> str:
    return "all" if share == 1 else f"{share:.0%} of the"
