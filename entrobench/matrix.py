"""A matrix as an object, for scripts and notebooks; its methods do the same as the commands of their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

import harness.config
import harness.matrix
from harness.base import files
from harness.base.errors import UserError, nearest
from harness.base.units import plural
from harness.cells.log import MetricsLog
from harness.config import Config
from harness.matrix import Cell

if TYPE_CHECKING:
    from pandas import DataFrame

    from harness.plan.estimate import Plan


class CellsFailed(RuntimeError):
    """Some cells of a matrix are not done; the message names them, the reasons and their logs. The others are kept."""


class Matrix:
    """The cells of a configuration: every method on every task with every model and every seed.

    `load` creates one. Nothing is run or written before `run` is called.

    config: the settings, with all defaults filled in; `config.train.steps` is one of them.
    cells: in the order in which they run. Each has its `method`, `task`, `model`, `seed`, `id` and `folder`.
    """

    def __init__(self, config: Config) -> None:
        self.config: Config = config
        self.cells: list[Cell] = harness.matrix.cells(config)

    def __repr__(self) -> str:
        return f"<matrix {self.config.name}: {plural(len(self.cells), 'cell')} in {self.config.folder}>"

    def plan(self) -> list[Plan]:
        """Print cells by state, tokens, estimated time and memory, and the missing resources; run nothing.

        The same is returned as one object for each setting of `axes`, with `states`, `missing`, `seconds`, `measured`
        (by finished cells of the same size), `lacks` and others.
        """
        from harness.plan.show import show_plans

        return show_plans(self.config)

    def run(self, jobs: int | None = None, launcher: str = "local") -> DataFrame:
        """Run the missing cells, `jobs` of them at a time, and return the leaderboard.

        Progress is printed, and the table at the end. Without `jobs`, as many cells run at once as fit on this machine,
        or on the cluster of the `launcher` (ray, slurm).

        Finished cells are not run again, and interrupted cells continue from their last checkpoint. An edit of a method
        or a task makes other cells, which are missing. Raises CellsFailed if cells are not done at the end.
        """
        from harness import runs

        if runs.run_matrix(self.config, jobs, launcher):
            reasons = []
            for cell in self.cells:
                progress = cell.progress()
                if progress.state != "done":
                    log = cell.folder / "log.txt"
                    reasons.append(f"{cell.label} is {progress.state} ({progress.reason}), see {log}")
            if reasons:  # the other reason of a code is a cell that learned nothing, which the table says
                raise CellsFailed(f"{len(reasons)} of {len(self.cells)} cells are not done: {'; '.join(reasons)}")
        return self.leaderboard()

    def status(self) -> DataFrame:
        """Return the progress of each cell, one row per cell.

        Columns: method, task, model, each key of `axes`, seed; state (planned, running, done, failed, stale or
        stopped); step and steps (the last step, and the number of all steps); entropy and reward of that step; reason
        (of a failure or an early end); folder (of the cell's records).
        """
        import pandas

        rows = []
        for cell in self.cells:
            progress = cell.progress()
            rows.append(
                {
                    **cell.key.columns(),
                    "state": progress.state,
                    "step": progress.step,
                    "steps": cell.config.train.steps,
                    "entropy": progress.metrics.get("entropy/mean", float("nan")),
                    "reward": progress.metrics.get("reward/mean", float("nan")),
                    "reason": progress.reason,
                    "folder": str(cell.folder),
                }
            )
        return pandas.DataFrame(rows)

    def leaderboard(self) -> DataFrame:
        """Return the table, read from MLflow: one row for each method, evaluation task and model.

        The first row of each table is the base model, whose method is "base model". The columns are those of
        `entrobench leaderboard --format csv`:

        - method, task, model, setting.KEY for each further axis; k of the headline Pass@k; baseline, the method that
          the others are compared with
        - avg_at_k.mean, .low and .high: the share of right responses and its 95 % interval over seeds and problems
        - pass_at_k.K.mean, .low and .high: Pass@K for powers of two and for the headline's k
        - entropy_initial.*, entropy_final.*: the entropy at the first and at the last training step, in nats per token
        - delta_to_baseline.*, delta_pass_at_k.K.*: differences to the baseline, paired by seed and problem
        - seeds_done, seeds_expected; flags, remarks on the task's problems
        - base_model, the first digits of the digest of the model that training started from; mixed, the differences in
          code or base model among the row's cells and the baseline's

        Missing values are NaN: the interval of a single seed, and every number of a method without a finished cell.
        """
        from harness import runs
        from harness.table.formats import leaderboard_frame

        return leaderboard_frame(runs.matrix_rows(self.config, self.cells))

    def curves(self, *metrics: str) -> DataFrame:
        """Return training metrics, one row for each value: `curves("entropy/mean", "reward/mean")`.

        Columns: cell (its id), method, task, model, seed, step, metric, value. The values are read from the cells' own
        records: running cells are included as far as they got, cells without a record are not. Step 0 is before
        training; `eval/...` exists only at evaluated steps. Raises UserError if no cell has such a metric.
        """
        import pandas

        if not metrics:
            raise UserError("curves() names no metric; write for example curves('entropy/mean')")
        logs = [(cell_columns(cell), MetricsLog(cell.folder).read()) for cell in self.cells]
        known = {name for _, lines in logs for line in lines for name in line["metrics"]}
        if not known:
            raise UserError(f"no cell of the matrix {self.config.name} in {self.config.folder} has run yet")
        for metric in metrics:
            if metric not in known:
                raise UserError(f"no cell has the metric {metric!r}; {nearest(metric, known)}")
        rows = []
        for metric in metrics:
            for columns, lines in logs:
                for line in lines:
                    if metric in line["metrics"]:
                        value = line["metrics"][metric]
                        rows.append({**columns, "step": line["step"], "metric": metric, "value": value})
        return pandas.DataFrame(rows)

    @overload
    def samples(self) -> list[str]: ...

    @overload
    def samples(self, problem: str) -> DataFrame: ...

    def samples(self, problem: str | None = None) -> list[str] | DataFrame:
        """Return all responses to one problem in all evaluations; without a problem, the ids of evaluated problems.

        Columns: cell (its id), method, task, model, seed; evaluated (the task of the problem); step (after which the
        cell was evaluated; 0 is before training); response, verdict; answer (in the task's normal form). Raises
        UserError if nothing has been evaluated.
        """
        import pandas

        ids: dict[str, None] = {}
        rows = []
        for cell in self.cells:
            for path in sorted(cell.folder.glob("samples/evaluate-*.jsonl")):
                evaluated, _, step = path.stem.removeprefix("evaluate-").rpartition("-")
                for record in files.read_lines(path):
                    ids[record["problem"]] = None
                    if record["problem"] != problem:
                        continue
                    evaluation = {**cell_columns(cell), "evaluated": evaluated, "step": int(step)}
                    samples = zip(record["responses"], record["verdicts"], record["answers"], strict=True)
                    for response, verdict, answer in samples:
                        rows.append({**evaluation, "response": response, "verdict": verdict, "answer": answer})
        if not ids:
            raise UserError(f"no cell of the matrix {self.config.name} in {self.config.folder} has been evaluated yet")
        if problem is None:
            return list(ids)
        if not rows:
            raise UserError(f"no cell has answered the problem {problem!r}; {nearest(problem, ids)}")
        return pandas.DataFrame(rows)

    def report(self) -> Path:
        """Write one self-contained HTML page with the table and the curves, and return its path."""
        from harness.page import page

        return page.write_report(self.config, self.cells)


def cell_columns(cell: Cell) -> dict[str, str | int]:
    """Return the columns that identify a cell."""
    return {"cell": cell.id, **cell.key.columns()}


def load(config: str | Path, *overrides: str) -> Matrix:
    """Return the matrix of a configuration: the path of a YAML file, or a name of `entrobench list configs`.

    Overrides are `key=value` as on the command line: `load("demo", "train.steps=10", "seeds=[0,1]")`. Raises UserError
    if a key or a value is wrong.
    """
    return Matrix(harness.config.load_config(str(config), overrides))


def plan(config: str | Path, *overrides: str) -> list[Plan]:
    """Print and return the cost of a matrix; see Matrix.plan."""
    return load(config, *overrides).plan()


def run(
    config: str | Path,
    *overrides: str,
    jobs: int | None = None,
    launcher: str = "local",
) -> DataFrame:
    """Run the missing cells of a matrix, and return its leaderboard; see Matrix.run."""
    return load(config, *overrides).run(jobs, launcher)


def leaderboard(config: str | Path, *overrides: str) -> DataFrame:
    """Return the leaderboard of a matrix; see Matrix.leaderboard."""
    return load(config, *overrides).leaderboard()


def report(config: str | Path, *overrides: str) -> Path:
    """Write the HTML page of a matrix, and return its path; see Matrix.report."""
    return load(config, *overrides).report()
