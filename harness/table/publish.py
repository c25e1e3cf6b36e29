"""The table in MLflow itself: a run of its own for each matrix, and final numbers at the runs of the cells."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.base import identities
from harness.config import Config, told
from harness.matrix import Cell
from harness.statistics import Estimate
from harness.table import board, leaderboard
from harness.table.board import Board
from harness.table.columns import COLUMNS, DEFAULT, cells_of, names_of
from harness.table.leaderboard import Entry, Row
from harness.table.read import Experiment
from harness.table.render import notes, render
from harness.terminal.layout import visible
from harness.tracking.artifacts import Artifacts
from harness.tracking.origin import origin
from harness.tracking.reader import reader
from harness.tracking.runs import FINAL
from harness.tracking.store import store
from harness.tracking.sync import experiment_of, name_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

TABLE = "leaderboard.json"
NOTE = (
    "How to read it: `leaderboard.json` is the table with its numbers, `leaderboard.html` and `leaderboard.md` are the "
    "same for people, `matrix.json` says which cells were expected and what they are compared with. "
    "`entrobench run` and `entrobench sync` replace them. The same table anywhere: "
    "`entrobench leaderboard --experiment NAME --uri URI`."
)
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;color:#222}table{border-collapse:collapse}"
    "td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}"
)


def write(config: Config, matrix: Sequence[Cell]) -> None:
    """Writes, or replaces, what MLflow holds of the matrix as a whole. Does nothing before the first cell is done."""
    plan = Board.of_config(config, matrix)
    uri = config.tracking_uri
    with store(uri, write=True) as client, reader(uri) as source:
        number = experiment_of(client, plan.experiment, uri)
        experiment = Experiment(source, plan.experiment, uri)
        results = experiment.results([each.cell for each in plan.expected])
        if not results:
            return
        entries = leaderboard.entries_of(results, plan.expected, plan.baseline)
        write_finals(client, experiment, plan, entries)
        write_summary(client, number, plan, experiment, leaderboard.rows_of(entries, plan.baseline, plan.ks))


def write_summary(client: MlflowClient, number: str, plan: Board, experiment: Experiment, rows: Sequence[Row]) -> None:
    found = [run.id for run in experiment.summaries if run.tags.get(board.KEY) == plan.key]
    tags = origin(None) | {board.KIND: board.SUMMARY, board.KEY: plan.key, "mlflow.note.content": NOTE}
    run = found[0] if found else client.create_run(number, tags=tags, run_name="leaderboard").info.run_id
    artifacts = Artifacts(client, client.get_run(run), experiment.uri)
    artifacts.bring_home()
    artifacts.write(board.FILE, plan.as_json())
    outcomes = experiment.read([each.cell for each in plan.expected])
    artifacts.write(board.OUTCOMES, json.dumps({identities.hash_of(each): each for each in outcomes.values()}))
    artifacts.write("leaderboard.md", render(rows, "md"))
    artifacts.write("leaderboard.html", as_html(plan.experiment, rows))
    artifacts.write(TABLE, as_mlflow_table(rows))
    client.set_tag(run, "mlflow.loggedArtifacts", json.dumps([{"path": TABLE, "type": "table"}]))
    client.set_terminated(run)


def as_mlflow_table(rows: Sequence[Row]) -> str:
    """Returns the table as MLflow keeps tables, which `log_table` would only make longer each time. An interval is
    three columns."""
    names = names_of(rows, "Pass@K")
    lines = []
    for row in rows:
        line: dict[str, object] = {
            "method": row.method,
            **row.setting,
            "task": row.task,
            "model": row.model,
            "K": row.k,
        }
        for column in (COLUMNS[name] for name in DEFAULT):
            header, value = column.header.format(**names), column.value(row)
            if isinstance(value, float | int | str):
                line[header] = value
            else:
                value = value or Estimate(float("nan"))
                ends = {header: value.mean, f"{header}, low": value.low, f"{header}, high": value.high}
                line |= {key: None if each is None or each != each else each for key, each in ends.items()}
        lines.append(line)
    table = {"columns": list(lines[0]), "data": [list(line.values()) for line in lines]}
    return json.dumps(table, allow_nan=False)


def as_html(title: str, rows: Sequence[Row]) -> str:
    header, *body = cells_of(rows)
    lines = [("th", header), *(("td", line) for line in body)]
    table = "".join(f"<tr>{''.join(f'<{tag}>{in_html(cell)}</{tag}>' for cell in line)}</tr>" for tag, line in lines)
    told = "".join(f"<p>{in_html(note)}</p>" for note in notes(rows))
    return (
        f"<!doctype html><meta charset=utf-8><title>{in_html(title)}</title><style>{STYLE}</style>"
        f"<h1>{in_html(title)}</h1><table>{table}</table>{told}"
    )


def in_html(text: str) -> str:
    """Return a text as a page shows it, with control characters written out."""
    return html.escape(visible(text))


def write_finals(client: MlflowClient, experiment: Experiment, plan: Board, entries: Sequence[Entry]) -> None:
    """Sends what the table averages, and the differences to the baseline's run of the same seed, as metrics of each
    cell's run; only what has changed, so that nothing piles up."""
    from mlflow.entities import Metric

    theirs = {entry.axes: entry for entry in entries if entry.method == plan.baseline}
    cells = {(e.method, e.task, e.model, told(e.setting), e.seed): e for e in plan.expected}
    finals: dict[str, dict[str, float]] = {}
    for entry in entries:
        baseline = theirs[entry.axes].results
        for seed, result in entry.results.items():
            cell = cells[entry.method, entry.trained_on, entry.model, told(entry.setting), seed]
            prefix = FINAL if len(cell.eval_tasks) == 1 else name_of(f"{FINAL}{entry.task}/")
            for name, k in (("avg_at_k", None), (f"pass_at_{plan.ks[entry.task]}", plan.ks[entry.task])):
                score = float(result.scores(k).mean())
                found = finals.setdefault(cell.cell, {})
                found[f"{prefix}{name}"] = score
                if seed in baseline:
                    found[f"{prefix}delta_{name}"] = score - float(baseline[seed].scores(k).mean())
    now = int(time.time() * 1000)
    for key, run in experiment.done.items():
        new = {name: value for name, value in finals.get(key, {}).items() if run.finals.get(name) != value}
        if new:
            client.log_batch(run.id, [Metric(name, value, now, 0) for name, value in new.items()])
