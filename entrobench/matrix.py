"""A matrix as an object: what the commands of the same names do, for scripts and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

import harness.config
import harness.matrix
from harness.base import files
from harness.base.errors import UserError, nearest
from harness.cells.log import MetricsLog
from harness.cells.state import OUTDATED
from harness.config import Config
from harness.matrix import Cell

if TYPE_CHECKING:
    from pandas import DataFrame

    from harness.plan.estimate import Plan


class CellsFailed(RuntimeError):
    """Some cells of a matrix are not done; says which, why, and where their logs are. The others are kept."""


class Matrix:
    """The cells that a configuration means: every method on every task with every model and every seed.

    `load` makes one. Nothing runs and nothing is written before `run`.

    config: the settings, with all defaults filled in; `config.train.steps` is one of them.
    cells: in the order in which they run. Each has its `method`, `task`, `model`, `seed`, `id` and `folder`.
    """

    def __init__(self, config: Config) -> None:
        self.config: Config = config
        self.cells: list[Cell] = harness.matrix.cells(config)

    def __repr__(self) -> str:
        return f"<matrix {self.config.name}: {len(self.cells)} cells in {self.config.folder}>"

    def plan(self) -> list[Plan]:
        """Prints cells by state, tokens, estimated time and memory, and what this machine lacks; runs nothing.

        Returns the same as an object for each setting of `axes`: `states`, `missing`, `seconds`, `measured` (by
        finished cells of the same size), `assumed`, `lacks` and others.
        """
        from harness.commands import plan

        return plan.plan_settings(self.config)

    def run(self, jobs: int | None = None, launcher: str = "local", *, rerun_edited: bool = False) -> DataFrame:
        """Runs the cells that are missing, `jobs` of them side by side, and returns the leaderboard.

        Prints progress, and the table at the end. Without `jobs` there are as many cells as there is room for, on this
        machine or where the `launcher` finds it: ray or slurm.
        Cells that were done before by the present source are not run again, and cells that were interrupted resume from
        their last checkpoint. Cells that are done by an earlier version of their method or task are trained again only
        with `rerun_edited`, or if you agree on the terminal. Raises CellsFailed if cells are not done in the end.
        """
        from harness.commands import run

        if run.run_matrix(self.config, jobs, launcher, rerun_edited=rerun_edited):
            found = [(cell, cell.progress()) for cell in self.cells]
            ends = [(cell, now) for cell, now in found if now.state != "done"]
            reasons = [
                f"{cell.label} is {now.state} ({now.reason}), see {cell.folder / 'log.txt'}" for cell, now in ends
            ]
            raise CellsFailed(f"{len(ends)} of {len(found)} cells are not done: {'; '.join(reasons)}")
        return self.leaderboard()

    def status(self) -> DataFrame:
        """Returns how far each cell has come, one row each.

        Columns: method, task, model, each key of `axes`, seed; state (planned, running, done, failed, stale or
        outdated), step of steps;
        entropy and reward of that step; reason, why a cell failed or ended early; folder, where its records are.
        """
        import pandas

        rows = []
        for cell in self.cells:
            now = cell.progress()
            rows.append(
                {
                    **cell.key.columns(),
                    "state": now.state,
                    "step": now.step,
                    "steps": cell.config.train.steps,
                    "entropy": now.metrics.get("entropy/mean", float("nan")),
                    "reward": now.metrics.get("reward/mean", float("nan")),
                    "reason": now.reason,
                    "folder": str(cell.folder),
                }
            )
        return pandas.DataFrame(rows)

    def leaderboard(self) -> DataFrame:
        """Return the table, read from MLflow: one row for each method, evaluation task and model, and before them one
        for the base model, whose method is "base model".

        Printed, or shown in a notebook, it is the table of `entrobench leaderboard`. Its columns are those of
        `entrobench leaderboard --format csv`:

        - method, task, model, setting.KEY of each further axis; k of the headline Pass@k; baseline, the method that
          the others are compared with
        - avg_at_k.mean, .low and .high: the share of right responses and its 95 % interval over seeds and problems
        - pass_at_k.K.mean, .low and .high: Pass@K for powers of two and for the headline's k
        - entropy_initial.*, entropy_final.*: the entropy at the first and at the last training step, in nats a token
        - delta_to_baseline.*, delta_pass_at_k.K.*: differences to the baseline, paired by seed and problem
        - seeds_done, seeds_expected; flags, warnings about the task's problems, and that another source than the
          present one made a cell, as `--keep-stale` keeps them
        - base_model, the first digits of the digest of the model that its cells began from; mixed, how its cells or
          the baseline's are of different code or base models

        Missing values are NaN: an interval from one seed, a number of a method of which no cell is done.
        """
        from harness.commands import leaderboard
        from harness.table.notebook import leaderboard_frame

        return leaderboard_frame(leaderboard.matrix_rows(self.config, self.cells))

    def curves(self, *metrics: str) -> DataFrame:
        """Returns metrics of training, one row for each value: `curves("entropy/mean", "reward/mean")`.

        Columns: cell (its id), method, task, model, seed, outdated, step, metric, value. `outdated` says of a cell
        that another source of its method or task made it, as `--keep-stale` keeps them, and is NaN of all others. It
        is read from the cells' own records, so cells that are still running are there as far as they have come, and
        cells without a record are not. Step 0 is before training; `eval/...` stands only at the steps that were
        evaluated. Raises UserError where no cell has such a metric.
        """
        import pandas

        if not metrics:
            raise UserError("curves() names no metric; write for example curves('entropy/mean')")
        logs = [(axes(cell), MetricsLog(cell.folder).read()) for cell in self.cells]
        known = {name for _, lines in logs for line in lines for name in line["metrics"]}
        if not known:
            raise UserError(f"no cell of the matrix {self.config.name} in {self.config.folder} has run yet")
        for metric in metrics:
            if metric not in known:
                raise UserError(f"no cell has the metric {metric!r}; {nearest(metric, known)}")
        rows = [
            {**of_cell, "step": line["step"], "metric": metric, "value": line["metrics"][metric]}
            for metric in metrics
            for of_cell, lines in logs
            for line in lines
            if metric in line["metrics"]
        ]
        return pandas.DataFrame(rows)

    @overload
    def samples(self) -> list[str]: ...

    @overload
    def samples(self, problem: str) -> DataFrame: ...

    def samples(self, problem: str | None = None) -> list[str] | DataFrame:
        """Returns all responses to one problem in all evaluations; without a problem, the ids of those evaluated.

        Columns: cell (its id), method, task, model, seed, and outdated as in `curves`; evaluated, the task of the
        problem; step, after which the cell was evaluated, 0 before training; response, verdict; answer, in the task's
        normal form. Raises UserError where nothing was evaluated.
        """
        import pandas

        found = [(cell, path) for cell in self.cells for path in sorted(cell.folder.glob("samples/evaluate-*.jsonl"))]
        ids: dict[str, None] = {}
        rows = []
        for cell, path in found:
            evaluated, _, step = path.stem.removeprefix("evaluate-").rpartition("-")
            for record in files.read_lines(path):
                ids[record["problem"]] = None
                if record["problem"] == problem:
                    where = {**axes(cell), "evaluated": evaluated, "step": int(step)}
                    for kept in zip(record["responses"], record["verdicts"], record["answers"], strict=True):
                        rows.append({**where, **dict(zip(("response", "verdict", "answer"), kept, strict=True))})
        if not ids:
            raise UserError(f"no cell of the matrix {self.config.name} in {self.config.folder} has been evaluated yet")
        if problem is None:
            return list(ids)
        if not rows:
            raise UserError(f"no cell was asked the problem {problem!r}; {nearest(problem, ids)}")
        return pandas.DataFrame(rows)

    def report(self) -> Path:
        """Writes one self-contained HTML page with the table and the curves, and returns its path."""
        from harness.commands import report

        return report.write_report(self.config)


def axes(cell: Cell) -> dict[str, str | int | float]:
    now = cell.progress()
    return {
        "cell": cell.id,
        **cell.key.columns(),
        "outdated": str(now.reason) if now.state == OUTDATED else float("nan"),
    }


def load(config: str | Path, *overrides: str) -> Matrix:
    """Returns the matrix of a configuration: the path of a YAML file, or the name of one that is shipped.

    Overrides are `key=value` as on the command line: `load("demo", "train.steps=10", "seeds=[0,1]")`. The names of
    the shipped ones are what `entrobench list configs` shows. Raises UserError where a key or a value is wrong.
    """
    return Matrix(harness.config.load_config(str(config), overrides))


def plan(config: str | Path, *overrides: str) -> list[Plan]:
    """Prints and returns what a matrix would cost; see Matrix.plan."""
    return load(config, *overrides).plan()


def run(
    config: str | Path,
    *overrides: str,
    jobs: int | None = None,
    launcher: str = "local",
    rerun_edited: bool = False,
) -> DataFrame:
    """Run the missing cells of a matrix, and return its leaderboard; see Matrix.run."""
    return load(config, *overrides).run(jobs, launcher, rerun_edited=rerun_edited)


def leaderboard(config: str | Path, *overrides: str) -> DataFrame:
    """Returns the leaderboard of a matrix; see Matrix.leaderboard."""
    return load(config, *overrides).leaderboard()


def report(config: str | Path, *overrides: str) -> Path:
    """Writes the HTML page of a matrix, and returns its path; see Matrix.report."""
    return load(config, *overrides).report()
