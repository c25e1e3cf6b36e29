"""From a cell's folder to its MLflow run, once, whatever happened in between."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from harness.base import files, identities
from harness.base.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

from harness.record.log import MetricsLog
from harness.record.origin import KIND, NOTE, dataset, origin
from harness.record.outcome import FILE as OUTCOME
from harness.record.outcome import TAG as OUTCOME_TAG
from harness.record.outcome import outcome
from harness.record.spec import FILE, CellSpec
from harness.record.state import State
from harness.record.store import database, store

RUN_STATUS = {"running": "RUNNING", "done": "FINISHED", "failed": "FAILED"}
METRICS_PER_CALL = 1000  # MLflow takes no more
LONGEST_VALUE = 500  # of a parameter or tag, in every version of MLflow


def sync(folder: Path, uri: str) -> None:
    """Bring the cell's run up to what its folder holds for good.

    Before the cell has ended that is what a checkpoint covers: later steps may be run again. Steps that a failed cell
    has sent are not sent again when it is resumed. The tags are written last, so they vouch for all the rest.
    """
    spec, state = CellSpec.read(folder), State.read(folder)
    lines = [line for line in MetricsLog(folder).read() if state.ended or line["step"] <= state.durable_step]
    with FileLock(folder / "mlflow.lock"), store(uri, write=True) as client:
        run = run_of(client, folder, spec, uri, lines)
        sent = int(run.data.tags.get("lines", 0))
        tags = {
            "status": state.state,
            "reason": state.reason or "",
            "device": state.device,
            "baseline": spec.config.baseline,
            "lines": str(max(sent, len(lines))),
        }
        tags = {key: value[:LONGEST_VALUE] for key, value in tags.items()}
        if tags.items() <= run.data.tags.items():
            return
        send_metrics(client, run.info.run_id, lines[sent:])
        send_params(client, run.info.run_id, spec)
        send_origin(client, run, spec)
        client.log_artifact(run.info.run_id, str(folder / FILE))
        if state.ended:
            for name in ("evals", "samples"):
                if (folder / name).exists():
                    client.log_artifacts(run.info.run_id, str(folder / name), name)
            if state.state == "done":
                send_outcome(client, run.info.run_id, outcome(folder, spec, lines))
            end = int(lines[-1]["time"] * 1000) if lines else None
            client.set_terminated(run.info.run_id, RUN_STATUS[state.state], end)
        else:
            client.update_run(run.info.run_id, RUN_STATUS[state.state])
        send_tags(client, run.info.run_id, tags)


def run_of(client: MlflowClient, folder: Path, spec: CellSpec, uri: str, lines: list[dict[str, Any]]) -> Run:
    """Returns the one run of the cell: the one whose id the folder keeps, else the one with its tag, else a new one."""
    from mlflow.exceptions import MlflowException

    kept = folder / "mlflow.json"
    if kept.exists():
        try:
            run = client.get_run(files.read_json(kept)["run"])
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            if run.info.lifecycle_stage == "active" and run.data.tags.get("cell") == spec.cell:
                return run
    experiment = experiment_of(client, spec.matrix, uri)
    found = client.search_runs([experiment], f"tags.cell = '{spec.cell}'", order_by=["attributes.start_time ASC"])
    run = found[0] if found else new_run(client, experiment, spec, lines)
    files.write_json(kept, {"run": run.info.run_id})
    return run


def new_run(client: MlflowClient, experiment: str, spec: CellSpec, lines: list[dict[str, Any]]) -> Run:
    tags = {
        key: str(getattr(spec, key))[:LONGEST_VALUE] for key in ("cell", "matrix", "method", "task", "model", "seed")
    }
    start = int(lines[0]["time"] * 1000) if lines else None
    return client.create_run(experiment, start, tags, run_name=f"{spec.method} s{spec.seed}")


def experiment_of(client: MlflowClient, matrix: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(matrix)
    if experiment is None:
        # Beside the database: by itself MLflow would use ./mlruns, wherever the command happens to run.
        path = database(uri)
        beside = (path.resolve().parent / "mlartifacts" / matrix).as_uri() if path else None
        try:
            return client.create_experiment(matrix, beside, {**KIND, **NOTE})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another cell was quicker
                raise
            experiment = client.get_experiment_by_name(matrix)
    if experiment.lifecycle_stage != "active":
        raise UserError(
            f"the MLflow experiment {matrix!r} at {uri} was deleted; bring it back with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`, or choose another name="
        )
    return experiment.experiment_id


def send_metrics(client: MlflowClient, run_id: str, lines: list[dict[str, Any]]) -> None:
    """MLflow keeps one of several equal points (key, value, time, step), so an interrupted call may be repeated."""
    from mlflow.entities import Metric

    points = [
        Metric(name_of(key), value, int(line["time"] * 1000), line["step"])
        for line in lines
        for key, value in line["metrics"].items()
    ]
    for start in range(0, len(points), METRICS_PER_CALL):
        client.log_batch(run_id, points[start : start + METRICS_PER_CALL])


def name_of(key: str) -> str:
    """A metric's name in MLflow, which refuses most signs: pass@16 is pass_at_16."""
    return re.sub(r"[^\w/.: -]", "_", key.replace("@", "_at_"))


def send_params(client: MlflowClient, run_id: str, spec: CellSpec) -> None:
    """Sends the factors. MLflow takes the same value again and no other; a cell's never change."""
    from mlflow.entities import Param

    client.log_batch(run_id, params=[Param(key, value) for key, value in params_of(spec).items()])


def params_of(spec: CellSpec) -> dict[str, str]:
    """Returns the factors of a cell as MLflow keeps them; an option of a method is method.clip_b.share."""
    factors = {key: getattr(spec, key) for key in ("method", "task", "model", "seed")}
    for component in spec.identity.get("method", []):
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", component["component"]).lower()
        factors |= {f"method.{name}.{key}": value for key, value in component.items() if key != "component"}
    for part in ("train", "rollout", "correction", "eval"):
        factors |= {f"{part}.{key}": value for key, value in spec.settings[part].items()}
    return {key: str(value)[:LONGEST_VALUE] for key, value in factors.items()}


def send_outcome(client: MlflowClient, run_id: str, told: dict[str, Any]) -> None:
    """Sends what tables are made of; by its digest others know a copy of it for the same."""
    client.log_dict(run_id, told, OUTCOME)
    send_tags(client, run_id, {OUTCOME_TAG: identities.digest(told)})


def send_origin(client: MlflowClient, run: Run, spec: CellSpec) -> None:
    """Fills the columns that MLflow itself has for where a run comes from, once."""
    if "mlflow.source.name" in run.data.tags:
        return
    client.log_inputs(run.info.run_id, [dataset(spec.task, spec.identity.get("task"))])
    send_tags(client, run.info.run_id, origin())


def send_tags(client: MlflowClient, run_id: str, tags: dict[str, str]) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
