"""From one evaluation without training to its MLflow run, once, whatever happened in between."""

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
from harness.tracking.artifacts import Artifacts
from harness.tracking.store import store
from harness.tracking.sync import LONGEST_VALUE, experiment_of, name_of

EXPERIMENT = "eval"  # no matrix has this name: its folder would be the one where evaluations are kept
NOTE = (
    "Models that `entrobench eval` evaluated: a run for each model, task and sampling. The metrics have the names that "
    "the runs of a matrix give them, beside .low and .high of their 95 % intervals over problems."
)
TAG = "evaluation"  # whose value is the key
FILES = {"evaluation": ("result.json", "settings.json", "made.json"), "samples": ("[!.]*",)}  # by their folder there


@dataclass(frozen=True)
class Evaluated:
    """One model on one task, as it stands in a folder: result.json, settings.json, made.json and samples."""

    key: str  # the hash of who was asked what and how, of the source that judged, and of every verdict
    name: str  # for people
    folder: Path
    made: Made
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]


def sync(each: Evaluated, uri: str) -> None:
    """Has MLflow hold the evaluation in one run. The same numbers are never sent as a second one; others, such as those
    of an edited task, have a run of their own. That the run is finished is said last, so it vouches for all the rest.
    """
    with lock(each.folder / "mlflow.lock"), store(uri, write=True) as client:
        run = run_of(client, each, uri)
        artifacts = Artifacts(client, run, uri)
        artifacts.bring_home()
        unsent = list(missing(each.folder, artifacts))
        if run.info.status == "FINISHED" and not unsent:
            return
        send(client, run, each)
        for path, there in unsent:
            artifacts.send(path, there)
        client.set_terminated(run.info.run_id, "FINISHED")


def run_of(client: MlflowClient, each: Evaluated, uri: str) -> Run:
    experiment = experiment_of(client, EXPERIMENT, uri)
    client.set_experiment_tag(experiment, "mlflow.note.content", NOTE)
    found = client.search_runs([experiment], f"tags.{TAG} = '{each.key}'", order_by=["attributes.start_time ASC"])
    return found[0] if found else client.create_run(experiment, tags={TAG: each.key}, run_name=each.name)


def missing(folder: Path, artifacts: Artifacts) -> Iterator[tuple[Path, str]]:
    """Yields the files of an evaluation that its run does not have, or has another size of, with their folder there."""
    for there, patterns in FILES.items():
        here, sizes = folder / there if there == "samples" else folder, artifacts.sizes(there)
        for path in (path for pattern in patterns for path in sorted(here.glob(pattern))):
            if sizes.get(f"{there}/{path.name}") != path.stat().st_size:
                yield path, there


def send(client: MlflowClient, run: Run, each: Evaluated) -> None:
    """Sends numbers and words; MLflow takes the same ones again, of the same moment, and keeps them once."""
    from mlflow.entities import Metric, Param, RunTag

    tags = {key: value[:LONGEST_VALUE] for key, value in {**each.made.tags(), **each.tags}.items()}
    client.log_batch(
        run.info.run_id,
        [Metric(name_of(key), value, run.info.start_time, 0) for key, value in each.metrics.items()],
        [Param(key, str(value)[:LONGEST_VALUE]) for key, value in each.params.items()],
        [RunTag(key, value) for key, value in tags.items()],
    )
