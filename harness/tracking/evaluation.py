"""Feed the MLflow run of an evaluation without training; nothing is sent twice, even after an interruption."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.locks import lock

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

from harness.cells.provenance import Made
from harness.tracking.artifacts import COMPLETE, Artifacts
from harness.tracking.store import store
from harness.tracking.sync import LONGEST_VALUE, experiment_of, metric_name

EXPERIMENT = "eval"  # no matrix may have this name, since results/eval holds the evaluations
NOTE = (
    "Models that `entrobench eval` evaluated: a run for each model, task and sampling. The metrics have the names that "
    "the runs of a matrix give them, with .low and .high for their 95 % intervals over problems."
)
TAG = "evaluation"  # of a run: the key of the evaluation
FILES = {"evaluation": ("result.json", "settings.json", "made.json"), "samples": (COMPLETE,)}  # by folder of the run


@dataclass(frozen=True)
class Evaluated:
    """One model on one task, and the folder with its result.json, settings.json, made.json and samples."""

    key: str  # the hash of model, task, sampling settings, problems, the task's source, and every verdict
    name: str  # of the run, for people
    folder: Path
    made: Made
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]


def sync_evaluation(evaluated: Evaluated, uri: str) -> None:
    """Bring the MLflow run of an evaluation up to date with its folder.

    Other numbers for the same settings, such as those of an edited task, have another key and so a run of their own.
    """
    with lock(evaluated.folder / "mlflow.lock"), store(uri, write=True) as client:
        run = run_of_evaluation(client, evaluated, uri)
        artifacts = Artifacts(run, uri)
        unsent = list(unsent_evaluation_files(evaluated.folder, artifacts))
        if run.info.status == "FINISHED" and not unsent:
            return
        send_values(client, run, evaluated)
        for path, folder_in_run in unsent:
            artifacts.send(path, folder_in_run)
        # Last, so that this status vouches for all the rest: an interrupted sync is repeated.
        client.set_terminated(run.info.run_id, "FINISHED")


def run_of_evaluation(client: MlflowClient, evaluated: Evaluated, uri: str) -> Run:
    """Return the run with the key of an evaluation; create it if there is none."""
    experiment = experiment_of(client, EXPERIMENT, uri)
    client.set_experiment_tag(experiment, "mlflow.note.content", NOTE)
    same_key = f"tags.{TAG} = '{evaluated.key}'"
    # The oldest: processes that have created one each at the same time agree on it afterward.
    runs = client.search_runs([experiment], same_key, order_by=["attributes.start_time ASC"])
    if runs:
        return runs[0]
    return client.create_run(experiment, tags={TAG: evaluated.key}, run_name=evaluated.name)


def unsent_evaluation_files(folder: Path, artifacts: Artifacts) -> Iterator[tuple[Path, str]]:
    """Yield the files of an evaluation that its run lacks or has in another size, each with its folder in the run."""
    for folder_in_run, patterns in FILES.items():
        source_folder = folder / "samples" if folder_in_run == "samples" else folder
        sizes = artifacts.sizes(folder_in_run)
        for pattern in patterns:
            for path in sorted(source_folder.glob(pattern)):
                if sizes.get(f"{folder_in_run}/{path.name}") != path.stat().st_size:
                    yield path, folder_in_run


def send_values(client: MlflowClient, run: Run, evaluated: Evaluated) -> None:
    """Send metrics, parameters and tags.

    An interrupted call may be made again: MLflow keeps equal metrics of one time once, and here it is the run's start.
    """
    from mlflow.entities import Metric, Param, RunTag

    start = run.info.start_time
    metrics = [Metric(metric_name(key), value, start, 0) for key, value in evaluated.metrics.items()]
    params = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in evaluated.params.items()]
    all_tags = {**evaluated.made.tags(), **evaluated.tags}
    tags = [RunTag(key, value[:LONGEST_VALUE]) for key, value in all_tags.items()]
    client.log_batch(run.info.run_id, metrics, params, tags)
