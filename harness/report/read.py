"""Reads from MLflow what the cells of a matrix have to say."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.base import files
from harness.base.errors import UserError
from harness.base.statistics import Floats, pass_at_k
from harness.record.artifacts import Artifacts
from harness.record.store import store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE = 1000  # runs that MLflow gives at a time, at most


@dataclass(frozen=True)
class Result:
    """The answers of one cell to the problems of one task."""

    problems: list[str]
    right_JN: np.ndarray
    entropy: tuple[float, float]  # at the first and at the last training step
    flags: list[str]
    sources: dict[str, str]  # hashes of the source that made them, by component

    def scores(self, k: int | None) -> Floats:
        """Returns the Avg@K of each problem over all samples (k is None), or its Pass@k."""
        if k is None:
            return self.right_JN.mean(axis=1)
        return pass_at_k(self.right_JN.shape[1], self.right_JN.sum(axis=1), k)


def done_runs(client: MlflowClient, matrix: str, uri: str) -> dict[str, Run]:
    """Returns the run of each cell: the newest complete attempt."""
    experiment = client.get_experiment_by_name(matrix)
    if experiment is None or experiment.lifecycle_stage != "active":
        raise UserError(
            f"the MLflow store at {uri} has no experiment {matrix!r}; `entrobench run` or `entrobench sync` makes it"
        )
    runs: dict[str, Run] = {}
    token = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id],
            "tags.status = 'done'",
            max_results=PAGE,
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        for run in page:
            runs.setdefault(run.data.tags["cell"], run)
        token = page.token
        if not token:
            return runs


def read(uri: str, matrix: str, cells: set[str]) -> dict[str, dict[str, Result]]:
    """Returns the results of these cells, by cell and task; runs of other cells are of other configurations."""
    with store(uri, write=False) as client, tempfile.TemporaryDirectory() as folder:
        runs = done_runs(client, matrix, uri)
        return {cell: results_of(client, runs[cell], uri, folder) for cell in cells & runs.keys()}


def results_of(client: MlflowClient, run: Run, uri: str, folder: str) -> dict[str, Result]:
    """Returns the results of the last step that was evaluated, by task."""
    points = sorted(client.get_metric_history(run.info.run_id, "entropy/mean"), key=lambda point: point.step)
    sources = {key.removeprefix("source."): tag for key, tag in run.data.tags.items() if key.startswith("source.")}
    artifacts = Artifacts(client, run, uri)
    paths: dict[str, str] = {}
    for path in sorted(artifacts.sizes("evals")):
        paths[path.rpartition("-")[0]] = path  # the step is the end of the name, with leading zeros
    results = {}
    for path in paths.values():
        record = files.read_json(artifacts.fetch(path, folder))
        entropy = (points[0].value, points[-1].value)
        results[record["task"]] = Result(
            record["problems"], np.array(record["right"]), entropy, record["flags"], sources
        )
    return results


def result_of(results: dict[str, Result], task: str, cell: str) -> Result:
    if task not in results:
        raise UserError(f"the MLflow run of cell {cell} has no evaluation of {task!r} among its artifacts")
    return results[task]
