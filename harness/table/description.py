"""The table as MLflow's own pages show it: as Markdown in a description, and scores as metrics of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.statistics import Estimate
from harness.table.columns import sorted_rows, table_lines
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import LeaderboardRow, place_text
from harness.table.render import as_markdown
from harness.tracking.sync import METRICS_PER_CALL, metric_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOTE_TAG = "mlflow.note.content"  # the tag that holds a description
LONGEST_NOTE = 5000  # characters: MLflow before 2.21 takes no more
LONGEST_KEY = 250  # characters of a metric's name: MLflow takes no more
# The columns of a description, and those of one that would be too long with them.
WIDE = ("avg_at_k", "pass_at_k", "delta_to_baseline", "delta_pass_at_k", "entropy_final", "seeds_done")
NARROW = ("pass_at_k", "delta_to_baseline", "delta_pass_at_k")
OURS = "`entrobench leaderboard --experiment NAME"  # in each description that this program writes


def describe(rows: Sequence[LeaderboardRow], note: str) -> str:
    """Return a description: the table, and the note below it; rows and columns that have no room are left out."""
    room = LONGEST_NOTE - len(note) - 200  # for the sentence on the rows that are left out
    for columns in (WIDE, NARROW):
        text = tables_markdown(rows, columns)
        if len(text) <= room:
            return f"{text}\n{note}"
    shown = shortest_list(rows, room)
    left_out = f"{len(rows) - len(shown)} of {len(rows)} rows have no room here; `leaderboard.md` has all."
    return f"{tables_markdown(shown, NARROW)}\n{left_out}\n\n{note}"


def shortest_list(rows: Sequence[LeaderboardRow], room: int) -> list[LeaderboardRow]:
    """Return the base models, the baselines, and as many others as there is room for, the best Pass@K first."""
    shown: list[LeaderboardRow] = []
    others: list[LeaderboardRow] = []
    for row in rows:
        is_fixed = row.method in (BASE_MODEL, row.baseline)
        if is_fixed:
            shown.append(row)
        else:
            others.append(row)
    shown += sorted_rows(others, "pass_at_k")
    while len(shown) > 1 and len(tables_markdown(shown, NARROW)) > room:
        shown.pop()
    return shown


def tables_markdown(rows: Sequence[LeaderboardRow], columns: Sequence[str]) -> str:
    """Return a Markdown table for each task and model, with the ruleset in its title."""
    sections: dict[str, list[LeaderboardRow]] = {}
    for row in rows:
        ruleset = f"ruleset {row.ruleset}" if row.ruleset else ""
        sections.setdefault(place_text(row.task, row.model, ruleset), []).append(row)
    tables = [as_markdown(title, table_lines(section, columns)) for title, section in sections.items()]
    return "\n".join(tables)


def score_metrics(rows: Sequence[LeaderboardRow]) -> dict[str, float]:
    """Return the scores of all rows by the names of their metrics, as `pass_at_16/clip_b`."""
    several = len({(row.task, row.where) for row in rows}) > 1
    metrics = {}
    for row in rows:
        own_name = place_text(row.method, row.task, row.where) if several else row.method
        scores: dict[str, Estimate | None] = {
            "avg_at_k": row.avg_at_k,
            f"pass_at_{row.k}": row.pass_at_k.get(row.k),
            "delta_avg_at_k": row.delta_to_baseline,
            f"delta_pass_at_{row.k}": row.delta_pass_at_k.get(row.k),
            "entropy_final": row.entropy_final,
        }
        for score, estimate in scores.items():
            if estimate is not None and math.isfinite(estimate.mean):
                metrics[metric_name(f"{score}/{own_name}")[:LONGEST_KEY]] = estimate.mean
    return metrics


def write_description(client: MlflowClient, run: str, experiment: str, rows: Sequence[LeaderboardRow]) -> None:
    """Write the table into the descriptions of its run and of its experiment; one that a person wrote stays."""
    # A missing description counts as ours, so that it is written.
    of_experiment = client.get_experiment(experiment).tags.get(NOTE_TAG, OURS)
    if OURS in of_experiment:
        client.set_experiment_tag(experiment, NOTE_TAG, describe(rows, note_below(of_experiment)))
    of_run = client.get_run(run).data.tags.get(NOTE_TAG, OURS)
    if OURS in of_run:
        client.set_tag(run, NOTE_TAG, describe(rows, note_below(of_run)))


def note_below(description: str) -> str:
    """Return the last paragraph of a description, which says how to read it."""
    return description.rpartition("\n")[2]


def write_scores(client: MlflowClient, run: str, rows: Sequence[LeaderboardRow], now: int) -> None:
    """Send the scores as metrics of the run that holds the table; only changed values, so that nothing piles up.

    `now`: milliseconds since 1970.
    """
    from mlflow.entities import Metric

    present = client.get_run(run).data.metrics
    changed = []
    for name, value in score_metrics(rows).items():
        if present.get(name) != value:
            changed.append(Metric(name, value, now, 0))
    for start in range(0, len(changed), METRICS_PER_CALL):
        client.log_batch(run, changed[start : start + METRICS_PER_CALL])
