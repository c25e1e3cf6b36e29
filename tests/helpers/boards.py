"""Matrices with made-up results, and the output of `entrobench leaderboard` on them."""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from harness import cli
from harness.cells import checksums, evaluation_files, provenance
from harness.cells.log import MetricsLog
from harness.cells.state import State
from harness.config import Config, load_config
from harness.matrix import Cell, cells
from harness.table.frames import AFTER, DONE, NO_RUN, Frames, answers_frame, cells_frame
from harness.table.publish import publish
from harness.tracking import sync

PROBLEMS = [f"p{i}" for i in range(6)]
MOST_DISTINCT = 3  # the most distinct right answers to a problem


class Made:
    """A matrix with made-up results, sent to MLflow as by `run`."""

    def __init__(self, root: Path, uri: str, *overrides: str, name: str = "made") -> None:
        given = [f"name={name}", f"results={root}", f"tracking.uri={uri}", "methods=[grpo,clip_b,ppo]", "seeds=[0,1]"]
        self.config: Config = load_config("smoke", [*given, *overrides])
        self.cells: list[Cell] = cells(self.config)
        self.clock = itertools.count(1000.0, 10.0)

    def end(self, cell: Cell, state: str = "done", last: float = 1.0, **fields: Any) -> None:
        """Write the records of a cell that has ended, and send them to MLflow; the arguments are those of `write`."""
        self.write(cell, state, last, **fields)
        sync.sync(cell.folder, self.config.tracking_uri)

    def write(self, cell: Cell, state: str = "done", last: float = 1.0, **fields: Any) -> None:
        """Write a cell's records, with the entropy of its last step; `fields`: of its provenance record."""
        cell.spec.write(cell.folder)
        log, start = MetricsLog(cell.folder), next(self.clock)
        attempt = provenance.Made(cell.id, start, "0.1.0", "c" * 40, False, cell.sources, {}, "a processor", "cpu")
        dataclasses.replace(attempt, **fields).write(cell.folder)
        evaluated = {"eval/countdown/distinct_answers": 0.25, "eval/countdown/after_answer": 0.125}
        for step, value in enumerate((2.0, last)):
            metrics = {"entropy/mean": value, "weights/dropped": step / 4, "tokens/generated": 100.0}
            log.append(step, start + step, {**metrics, **evaluated, "eval/countdown/length": 7.0 + step})
        for step in (0, 1):
            for task in cell.config.eval.tasks or [cell.task]:
                drawn = np.random.default_rng([cell.seed, *(cell.method.encode() if step else [])])
                right = (drawn.random((6, 16)) < 0.3).astype(int).tolist()
                distinct = [min(sum(row), MOST_DISTINCT) for row in right]
                told = {"task": task, "step": step, "problems": PROBLEMS, "right": right, "flags": []}
                told |= {"right_distinct": distinct, "solutions": [2 * MOST_DISTINCT] * len(PROBLEMS)}
                evaluation_files.write_evaluation(cell.folder, told)
        checksums.write_checksums(cell.folder)
        State(state, durable_step=1, seconds=1800, device="cpu").write(cell.folder)

    def write_all(self) -> "Made":
        """Write the records of all cells, and send none to MLflow, which takes longer."""
        for cell in self.cells:
            self.write(cell)
        return self

    def end_all(self) -> "Made":
        for cell in self.cells:
            self.end(cell)
        publish(self.config, self.cells)
        return self


def made_up_frames(
    right: Mapping[str, Mapping[int, np.ndarray]],
    task: str = "countdown",
    trained_on: str = "countdown",
    model: str = "tiny",
    *,
    problems: Sequence[str] | None = None,
    **columns: Mapping[tuple[str, int], Any],
) -> Frames:
    """Return frames of answers by method, seed, problem and sample; a method without seeds has one that is not done.

    `columns`: further columns of cells and of answers by method and seed, as `right_distinct` and `distinct`.
    """
    rows, answers = [], []
    for method, by_seed in right.items():
        for seed in by_seed or (0,):
            cell = f"{method}-{seed}-{trained_on}-{model}"
            row = {"method": method, "task": trained_on, "model": model, "setting": (), "seed": seed}
            row |= {"evaluated": task, "cell": cell, "moment": AFTER, "state": DONE if by_seed else NO_RUN}
            row |= {"entropy_first": 2.0, "entropy_last": 1.0}
            rows.append(row | {name: values.get((method, seed)) for name, values in columns.items()})
        for seed, right_JN in by_seed.items():
            names = problems or [f"{task} {i}" for i in range(len(right_JN))]
            unknown = [np.nan] * len(names)
            counts = {"right": right_JN.sum(axis=1), "samples": [right_JN.shape[1]] * len(names)}
            for name in ("right_distinct", "solutions"):
                counts[name] = columns.get(name, {}).get((method, seed), unknown)
            answers.append(((f"{method}-{seed}-{trained_on}-{model}", task, AFTER), {"problem": names, **counts}))
    return Frames(cells_frame(rows), answers_frame(answers))


def joined_frames(*parts: Frames) -> Frames:
    answers = pandas.concat([part.answers.assign(problem=part.answers["problem"].astype("object")) for part in parts])
    answers = answers.assign(problem=answers["problem"].astype("category"))
    return Frames(pandas.concat([part.cells for part in parts], ignore_index=True), answers)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of `entrobench leaderboard`, or its error message if it fails."""
    capsys.readouterr()  # drops the output of MLflow while the test made its records
    with pytest.raises(SystemExit) as end:
        cli.main(["leaderboard", *arguments])
    out, err = capsys.readouterr()
    assert end.value.code == (2 if err else 0), (end.value.code, err)
    return err or out


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(told(capsys, *arguments, "--format", "json"))
    return found


def trained(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of methods, without those of base models."""
    return [row for row in rows if row["method"] != "base model"]
