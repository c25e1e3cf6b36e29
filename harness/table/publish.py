"""The table in MLflow itself: a run of its own for each matrix, and final numbers at the runs of the cells."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from harness.base import identities
from harness.config import Config
from harness.matrix import Cell
from harness.table import board
from harness.table.board import Board, Experiment, opened_experiment
from harness.table.formats import as_mlflow_table
from harness.table.frames import Frames, done_cells, read_frames
from harness.table.leaderboard import LeaderboardRow, leaderboard_rows
from harness.table.render import render_rows
from harness.tracking.artifacts import LocalFiles, files_of_run, folder_for_files
from harness.tracking.reader import FINAL, Run
from harness.tracking.store import database, store
from harness.tracking.sync import NOTE_TAG, ensure_experiment, metric_name, origin

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from pandas import DataFrame

TABLE = "leaderboard.json"
WRITTEN = "entrobench.written"  # a tag: the digest of what the run was last written from, set when it was complete
NOTE = (
    "How to read it: `leaderboard.json` is the table with its numbers, `leaderboard.md` is the same for people, "
    "`matrix.json` says which cells were expected and what they are compared with. "
    "`entrobench run` and `entrobench sync` replace them. The same table anywhere: "
    "`entrobench leaderboard --experiment NAME --uri URI`."
)


def publish(config: Config, matrix: Sequence[Cell]) -> list[LeaderboardRow]:
    """Write, or replace, the table that MLflow holds of the matrix, and return its rows.

    Nothing is written before the first cell is done. The table is computed each time, and an SQLite store that holds
    the same one is only read: loading MLflow takes longer than all the rest.
    """
    uri = config.tracking_uri
    ensure_experiment(config.name, uri)
    with opened_experiment(config.name, uri) as experiment:
        plan = experiment.board_of(config, matrix)
        frames = read_frames(experiment, plan.expected, plan.baseline)
        rows = leaderboard_rows(frames, plan.baseline, plan.ks)
        if not frames.any_done():
            return rows
        finals = changed_finals(experiment, final_metrics(plan, frames))
        texts = summary_texts(plan, experiment, rows)
        present = next((run for run in experiment.summaries if run.tags.get(board.KEY) == plan.key), None)
        if finals or not is_written(present, texts, uri):
            with store(uri, write=True) as client:
                write_finals(client, finals)
                write_summary(client, experiment, plan.key, present, texts)
    return rows


def summary_texts(plan: Board, experiment: Experiment, rows: Sequence[LeaderboardRow]) -> dict[str, str]:
    """Return the files of the run that holds the table of a matrix, by name."""
    outcomes = experiment.outcomes_of([cell.cell for cell in plan.expected])
    return {
        board.FILE: plan.as_json(),
        board.OUTCOMES: json.dumps({identities.hash_of(outcome): outcome for outcome in outcomes.values()}),
        "leaderboard.md": render_rows(rows, "md"),
        TABLE: as_mlflow_table(rows),
    }


def is_written(run: Run | None, texts: Mapping[str, str], uri: str) -> bool:
    """Return whether a run in an SQLite store holds exactly this; False elsewhere, where looking costs as much."""
    if run is None or run.tags.get(WRITTEN) != identities.hash_of(texts) or database(uri) is None:
        return False
    folder = folder_for_files(run.artifacts, uri)
    return folder is not None and all(LocalFiles(folder).holds(name, text) for name, text in texts.items())


def write_summary(
    client: MlflowClient, experiment: Experiment, key: str, present: Run | None, texts: Mapping[str, str]
) -> None:
    """Write the run with the table of a matrix; `key`: that of the matrix, `present`: the run so far."""
    if present is not None:
        run = present.id
    else:
        tags = origin(None) | {board.KIND: board.SUMMARY, board.KEY: key, NOTE_TAG: NOTE}
        run = client.create_run(experiment.id, tags=tags, run_name="leaderboard").info.run_id
    artifacts = files_of_run(client.get_run(run).info.artifact_uri, experiment.uri)
    for name, text in texts.items():
        artifacts.write(name, text)
    client.set_tag(run, "mlflow.loggedArtifacts", json.dumps([{"path": TABLE, "type": "table"}]))
    client.set_terminated(run)
    client.set_tag(run, WRITTEN, identities.hash_of(texts))  # last, so that it vouches for all the rest


def changed_finals(experiment: Experiment, finals: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the final metrics, given by cell, that MLflow lacks or has with another value, by the id of the run.

    Only these are sent, since MLflow keeps the history of each metric.
    """
    changed = {}
    for cell, run in experiment.done.items():
        of_run = {name: value for name, value in finals.get(cell, {}).items() if run.finals.get(name) != value}
        if of_run:
            changed[run.id] = of_run
    return changed


def write_finals(client: MlflowClient, finals: Mapping[str, Mapping[str, float]]) -> None:
    """Send final metrics: the scores of each cell, and the differences from the baseline's cell of the same seed."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    for run, metrics in finals.items():
        client.log_batch(run, [Metric(name, value, now, 0) for name, value in metrics.items()])


def final_metrics(plan: Board, frames: Frames) -> dict[str, dict[str, float]]:
    """Return the final metrics of each cell, by its hash."""
    evaluations = {cell.cell: len(cell.eval_tasks) for cell in plan.expected}
    finals: dict[str, dict[str, float]] = {}
    for axes, methods in frames.tables.items():
        evaluated = axes[1]
        k = plan.ks[evaluated]
        for name, score_k in (("avg_at_k", None), (f"pass_at_{k}", k)):
            scores = {method: cell_scores(frames, cells, score_k) for method, cells in methods.items()}
            of_baseline = {seed: score for seed, _, score in scores.get(plan.baseline, [])}
            for seed, cell, score in chain(*scores.values()):
                # With several evaluation tasks, one metric cannot hold the scores of all.
                prefix = FINAL if evaluations[cell] == 1 else metric_name(f"{FINAL}{evaluated}/")
                metrics = finals.setdefault(cell, {})
                metrics[f"{prefix}{name}"] = score
                if seed in of_baseline:
                    metrics[f"{prefix}delta_{name}"] = score - of_baseline[seed]
    return finals


def cell_scores(frames: Frames, cells: DataFrame, k: int | None) -> list[tuple[int, str, float]]:
    """Return the seed, the hash and the mean score of each cell that is done."""
    done = done_cells(cells)
    if done.empty:
        return []
    means = [float(x_J.mean()) for x_J in frames.scores(done, k)]
    return list(zip(done["seed"].tolist(), done["cell"], means, strict=True))
