"""From a cell's folder to its MLflow run, once, whatever happened in between."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base import files, identities
from harness.base.addresses import visible_address
from harness.base.errors import Damaged, UserError
from harness.base.locks import lock

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

from harness.cells import checksums
from harness.cells.log import MetricsLog
from harness.cells.outcome import FILE as OUTCOME
from harness.cells.outcome import TAG as OUTCOME_TAG
from harness.cells.outcome import outcome
from harness.cells.provenance import Made
from harness.cells.spec import FILE, CellSpec
from harness.cells.state import State
from harness.config import PUBLISHED
from harness.tracking.artifacts import Artifacts, beside
from harness.tracking.origin import KIND, NOTE, commit, dataset, origin
from harness.tracking.store import database, foreign, store, unusable

RUN_STATUS = {"running": "RUNNING", "done": "FINISHED", "failed": "FAILED"}
SENDING = "lines.sending"  # a tag: up to this line steps were sent that no checkpoint covers, all or some of them
METRICS_PER_CALL = 1000  # MLflow takes no more
LONGEST_VALUE = 500  # of a parameter or tag, in every version of MLflow
SENT = ("evals", "samples")  # folders of a cell that has ended


def sync(folder: Path, uri: str) -> None:
    """Bring the cell's run up to what its folder holds for good.

    Before the cell has ended that is what a checkpoint covers: later steps may be run again. Steps that a failed cell
    has sent are not sent again when it is resumed. The tags are written last, so they vouch for all the rest.
    """
    with lock(folder / "mlflow.lock"), store(uri, write=True) as client:
        spec, state, made = CellSpec.read(folder), State.read(folder), Made.read(folder)
        lines = [line for line in MetricsLog(folder).read() if state.ended or line["step"] <= state.durable_step]
        run = run_of(client, folder, spec, made, uri, lines)
        artifacts = Artifacts(client, run, uri)
        artifacts.bring_home()
        artifacts.sweep()
        sent = int(run.data.tags.get("lines", 0))
        tags = {
            "status": state.state,
            "reason": state.reason or "",
            "device": state.device,
            "collapsed": "" if state.collapsed is None else str(state.collapsed),
            "baseline": spec.config.baseline,
            "lines": str(max(sent, len(lines))),
            **({"made_of": spec.made_of} if spec.made_of else {}),
        }
        tags = {key: value[:LONGEST_VALUE] for key, value in tags.items()}
        told = outcome(folder, spec, lines) if state.state == "done" else None
        if told is not None:
            tags[OUTCOME_TAG] = identities.hash_of(told)
        unsent = list(missing(folder, artifacts)) if state.ended else []
        lacking = unsent or (told is not None and not artifacts.holds(OUTCOME, json.dumps(told)))
        if not holds_records(run, spec, lines[:sent], uri):
            sent, unsure, lacking = 0, len(lines), True  # which the tags would say are there
        else:
            unsure = int(run.data.tags.get(SENDING, sent))  # some of these were sent, before they were run again
        if tags.items() <= run.data.tags.items() and not lacking:
            return
        for damage, _ in checksums.changed_records(folder) if state.state == "done" else ():
            raise damage
        repeated = held(client, run, lines[sent:unsure])
        if lines and lines[-1]["step"] > state.durable_step:
            client.set_tag(run.info.run_id, SENDING, str(max(unsure, len(lines))))
        send_metrics(client, run.info.run_id, lines[sent:], repeated)
        send_params(client, run.info.run_id, spec)
        send_origin(client, run, spec, made)
        artifacts.send(folder / FILE)
        for path in unsent:
            artifacts.send(path, path.parent.name)
        if told is not None:
            artifacts.write(OUTCOME, json.dumps(told))
        if state.ended:
            end = int(lines[-1]["time"] * 1000) if lines else None
            client.set_terminated(run.info.run_id, RUN_STATUS[state.state], end)
        else:
            client.update_run(run.info.run_id, RUN_STATUS[state.state])
        send_tags(client, run.info.run_id, tags)


def holds_records(run: Run, spec: CellSpec, lines: list[dict[str, Any]], uri: str) -> bool:
    """Return whether a run has the factors of its cell, and as many points of each metric as its tags vouch for.

    A server is asked for no single point, which would take a call for each metric: there the newest must be there.
    """
    if "mlflow.source.name" not in run.data.tags:  # nothing was sent to its end yet
        return True
    points = {(name_of(key), line["step"]) for line in lines for key in line["metrics"]}
    wanted = Counter(name for name, _ in points)
    if not (params_of(spec).keys() <= run.data.params.keys() and wanted.keys() <= run.data.metrics.keys()):
        return False
    path = database(uri)
    if path is None:
        return True
    # Beside the client's own connection, since the client has no call that counts.
    query = "SELECT key, COUNT(DISTINCT step) FROM metrics WHERE run_uuid = ? GROUP BY key"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            present = dict(connection.execute(query, (run.info.run_id,)))
    except sqlite3.Error as error:
        raise unusable(uri, error) from error
    return all(present.get(name, 0) >= number for name, number in wanted.items())


def missing(folder: Path, artifacts: Artifacts) -> Iterator[Path]:
    """Yields the files of a cell that its run does not have, or has another size of."""
    for name in SENT:
        sizes = artifacts.sizes(name)
        for path in sorted((folder / name).glob("[!.]*")):
            if sizes.get(f"{name}/{path.name}") != path.stat().st_size:
                yield path


def run_of(
    client: MlflowClient, folder: Path, spec: CellSpec, made: Made | None, uri: str, lines: list[dict[str, Any]]
) -> Run:
    """Returns the one run of this attempt at the cell: the one whose id the folder keeps, else the one with its tags,
    else the one of a cell that failed before this attempt began, which has no attempt; else a new one."""
    from mlflow.exceptions import MlflowException

    kept, attempt = folder / "mlflow.json", made.attempt if made else ""
    if (known := known_run(kept)) is not None:
        try:
            run = client.get_run(known)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            theirs = run.data.tags.get("cell"), run.data.tags.get("attempt")
            if run.info.lifecycle_stage == "active" and theirs == (spec.id, attempt):
                return run
    experiment = experiment_of(client, spec.matrix, uri)
    found: list[Run] = []
    for each in dict.fromkeys((attempt, "")):
        same = f"tags.cell = '{spec.id}' and tags.attempt = '{each}'"
        found += client.search_runs([experiment], same, order_by=["attributes.start_time ASC"])
    run = found[0] if found else new_run(client, experiment, spec, made, lines)
    if made is not None and run.data.tags["attempt"] != attempt:
        send_tags(client, run.info.run_id, made.tags() | commit(made))
        run = client.get_run(run.info.run_id)
    files.write_json(kept, {"run": run.info.run_id})
    return run


def known_run(kept: Path) -> str | None:
    """Returns the id that a cell's folder keeps; None where it keeps none that can be read."""
    try:
        found = files.read_json(kept)
    except (FileNotFoundError, Damaged):
        return None
    run = found.get("run") if isinstance(found, dict) else None
    return run if isinstance(run, str) and run else None


def new_run(
    client: MlflowClient, experiment: str, spec: CellSpec, made: Made | None, lines: list[dict[str, Any]]
) -> Run:
    tags = {"cell": spec.id, "matrix": spec.matrix, **spec.key.tags()}
    tags |= made.tags() if made else {"attempt": ""}
    tags = {key: value[:LONGEST_VALUE] for key, value in tags.items()}
    start = int((made.started if made else lines[0]["time"]) * 1000) if made or lines else None
    return client.create_run(experiment, start, tags, run_name=spec.key.run_name)


def experiment_of(client: MlflowClient, matrix: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(matrix)
    if experiment is None:
        # Beside the database: by itself MLflow would use ./mlruns, wherever the command happens to run.
        place = beside(uri, matrix)
        try:
            return client.create_experiment(matrix, place and place.as_uri(), {**KIND, **NOTE})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another cell was quicker
                raise
            experiment = client.get_experiment_by_name(matrix)
    if experiment.name != matrix or experiment.lifecycle_stage not in ("active", "deleted"):
        raise foreign(uri, f"asked for the experiment {matrix!r}, it gives {experiment.name!r}")
    if experiment.lifecycle_stage != "active":
        raise UserError(
            f"the MLflow experiment {matrix!r} at {visible_address(uri)} was deleted; bring it back with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`, or choose another name="
        )
    return experiment.experiment_id


def held(client: MlflowClient, run: Run, lines: list[dict[str, Any]]) -> set[tuple[str, int]]:
    """Returns which points of these steps a run has, by name and step."""
    names, steps = {name_of(key) for line in lines for key in line["metrics"]}, {line["step"] for line in lines}
    points = (point for name in sorted(names) for point in client.get_metric_history(run.info.run_id, name))
    return {(point.key, point.step) for point in points if point.step in steps}


def send_metrics(
    client: MlflowClient, run_id: str, lines: list[dict[str, Any]], repeated: Container[tuple[str, int]]
) -> None:
    """Sends all points but those that are there from steps that have been run again. MLflow keeps one of several equal
    points (key, value, time, step), so an interrupted call may be repeated."""
    from mlflow.entities import Metric

    points = [
        Metric(name_of(key), value, int(line["time"] * 1000), line["step"])
        for line in lines
        for key, value in line["metrics"].items()
        if (name_of(key), line["step"]) not in repeated
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
    factors = spec.key.factors()
    for component in spec.identity.get("method", []):
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", component["component"]).lower()
        factors |= {f"method.{name}.{key}": value for key, value in component.items() if key != "component"}
    for part in ("train", "rollout", "correction", "eval", "stop"):
        factors |= {f"{part}.{key}": value for key, value in spec.settings[part].items()}
    if axes := spec.settings.get("axes"):  # as plain values: the typed configuration takes longer than all else here
        factors["axes"] = ", ".join(axes)
    if (ruleset := spec.settings.get("ruleset", PUBLISHED)) != PUBLISHED:  # of which older runs have no parameter
        factors["ruleset"] = ruleset
    return {key: str(value)[:LONGEST_VALUE] for key, value in factors.items()}


def send_origin(client: MlflowClient, run: Run, spec: CellSpec, made: Made | None) -> None:
    """Fills the columns that MLflow itself has for where a run comes from, once."""
    if "mlflow.source.name" in run.data.tags:
        return
    from mlflow.exceptions import MlflowException

    given = [dataset(spec.key.task, spec.identity.get("task"))]
    try:
        client.log_inputs(run.info.run_id, given)
    except MlflowException:  # as where somebody else sends the same problems at the same time: now they are there
        client.log_inputs(run.info.run_id, given)
    send_tags(client, run.info.run_id, origin(made))


def send_tags(client: MlflowClient, run_id: str, tags: dict[str, str]) -> None:
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(key, value[:LONGEST_VALUE]) for key, value in tags.items()])
