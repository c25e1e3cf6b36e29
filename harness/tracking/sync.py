"""Feed a cell's MLflow run from the cell's folder; nothing is sent twice, even after an interruption.

A step is sent as soon as it is in metrics.jsonl. If an interruption takes back steps that were sent, the run is deleted
in MLflow, which has no call that removes a point, and a new one gets all steps that are left. So the store has
each step once, with the value that counts.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from harness.base import files, identities
from harness.base.addresses import visible_address
from harness.base.errors import Damaged, UserError, shown
from harness.base.locks import lock

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

from harness.cells import checksums, lease
from harness.cells.evaluations import OUTCOME, OUTCOME_TAG, cell_outcome
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made, mark_tags
from harness.cells.spec import FILE, TRAINER, CellSpec
from harness.cells.state import STALE, STOPPED, State, is_stopped
from harness.config import PUBLISHED, without_k
from harness.tracking.artifacts import (
    COMPLETE,
    LocalFiles,
    ServerFiles,
    files_of_run,
    folder_for_files,
    home_of_experiment,
)
from harness.tracking.reader import DatabaseReader, reader
from harness.tracking.store import database, open_database, store

RUN_STATUS = {"running": "RUNNING", STALE: "KILLED", STOPPED: "KILLED", "done": "FINISHED", "failed": "FAILED"}
LINES = "lines"  # a tag: the number of lines of metrics.jsonl that the run holds in full
SENDING = "lines.sending"  # a tag: some or all lines up to this number may be in the run; with the time of that line
MLFLOW_RUN = "mlflow.json"  # a file in the folder of a cell: the id of its run
SOURCE = "mlflow.source.name"  # a tag, written after metrics and parameters: with it, the first sync was complete
METRICS_PER_CALL = 1000  # MLflow refuses more
# Not sent as parameters: the same run may be read with any K. Earlier versions sent them.
K, BY_TASK = "eval.k", "eval.by_task"
K_ALONE, K_OF_TASK = re.compile(r"""('[^']*'|"[^"]*"): {'k': \d+}(, )?"""), re.compile(r"'k': \d+, |, 'k': \d+")
LONGEST_VALUE = 500  # characters of a parameter or tag that every version of MLflow takes
FOLDERS = ("evals", "samples")  # folders of a cell that are sent when it has ended

# A tag of the experiment: its runs are trainings, not evaluations of apps. In MLflow 3.17 a switch on the page takes
# precedence over the tag; a link with ?workflowType=machine_learning sets that switch.
KIND = {"mlflow.experimentKind": "custom_model_development"}
NOTE_TAG = "mlflow.note.content"  # the tag that holds a description
NOTE = (
    "A matrix of entrobench: every method on every task with every model and every seed, one run each. "
    "The run named `leaderboard` holds the table: `leaderboard.json` (a table of MLflow) and `leaderboard.md`. "
    "The metrics `final/...` of the other runs are what it averages, so that this list can be sorted by them; "
    "`method.<name>.<option>` are the options of a method. Where MLflow opens the view of apps and "
    "agents, the switch at its upper left to model training shows the runs. From anywhere: "
    "`entrobench leaderboard --experiment NAME --uri URI`."
)

Lines = list[dict[str, Any]]  # of metrics.jsonl, the oldest first


@dataclass(frozen=True)
class CellRecords:
    """The records of a cell as one sync reads them."""

    folder: Path
    spec: CellSpec
    held: bool  # by a process that works on it
    state: State
    made: Made | None
    lines: Lines

    @classmethod
    def read(cls, folder: Path) -> CellRecords:
        held = lease.holder(folder) is not None  # before the state, which a process that ends leaves first
        spec, state, made = CellSpec.read(folder), State.read(folder), Made.read(folder)
        return cls(folder, spec, held, state, made, MetricsLog(folder).read())

    @property
    def attempt(self) -> str:
        """The id of the present attempt; empty before the first one."""
        return self.made.attempt if self.made else ""

    def belongs(self, tags: Mapping[str, str]) -> bool:
        """Return whether a run with these tags is that of the present attempt."""
        return (tags.get("cell"), tags.get("attempt")) == (self.spec.id, self.attempt)

    @cached_property
    def status(self) -> str:
        """The state of the cell; stopped or stale if it is not done, and no process works on it."""
        state = self.state.state
        if state == "done" or self.held:
            return state
        if is_stopped(self.folder):
            return STOPPED
        return STALE if state == "running" else state

    def taken_back(self, tags: Mapping[str, str]) -> bool:
        """Return whether a run with these tags may hold points of steps that an interruption has taken back."""
        _, _, time = tags.get(SENDING, "").partition(" ")
        sent = lines_by_tag(tags, SENDING if SENDING in tags else LINES)
        if sent > len(self.lines):
            return True
        return bool(time) and repr(self.lines[sent - 1]["time"]) != time  # stores of earlier versions have no time

    @cached_property
    def outcome(self) -> dict[str, Any] | None:
        if self.state.state != "done":
            return None
        return cell_outcome(self.folder, self.spec, self.lines)

    @property
    def outcome_text(self) -> str | None:
        return None if self.outcome is None else json.dumps(self.outcome)

    def tags(self) -> dict[str, str]:
        """Return the tags that vouch for the content of the cell's run."""
        tags = status_tags(self.spec, self.state) | mark_tags(self.folder) | {LINES: str(len(self.lines))}
        tags["status"] = self.status
        if self.status == STOPPED:
            last = self.lines[-1]["step"] if self.lines else 0
            tags["reason"] = f"stopped by hand at step {last}"
        if self.outcome is not None:
            tags[OUTCOME_TAG] = identities.hash_of(self.outcome)
        return tags


def lines_by_tag(tags: Mapping[str, str], name: str) -> int:
    """Return the number of lines that a tag of a run states; 0 without it."""
    number = tags.get(name, "0").partition(" ")[0]
    if not re.fullmatch("[0-9]{1,9}", number):
        raise UserError(f"a run in MLflow has the tag {name} with {shown(number)}, which is no number of lines")
    return int(number)


def sync(folder: Path, uri: str) -> bool:
    """Bring a cell's run up to date with its folder, and return whether anything was missing."""
    with lock(folder / "mlflow.lock"):
        records = CellRecords.read(folder)
        if is_sent(records, uri):
            return False
        with store(uri, write=True) as client:
            return send_records(client, records, uri)


def is_sent(records: CellRecords, uri: str) -> bool:
    """Return whether an SQLite store holds all of a cell. This reads its tables, since loading MLflow takes seconds."""
    run_id = known_run(records.folder / MLFLOW_RUN)
    if database(uri) is None or run_id is None:
        return False
    try:
        with open_database(uri) as connection:
            run = DatabaseReader(connection, uri).run(run_id)
            if run is None or not records.belongs(run.tags) or records.taken_back(run.tags):
                return False
    except UserError:  # `send_records` creates the store, or reports the error
        return False
    folder = folder_for_files(run.artifacts, uri)
    if folder is None:  # the database is here, but a server has the files
        return False
    return holds_all(records, run.tags, LocalFiles(folder))


def send_records(client: MlflowClient, records: CellRecords, uri: str) -> bool:
    """Send all that a cell's run lacks, and return whether it lacked anything; the caller holds the cell's lock."""
    folder, spec, state, lines = records.folder, records.spec, records.state, records.lines
    run = run_of_cell(client, records, uri)
    if records.taken_back(run.data.tags):
        client.delete_run(run.info.run_id)
        run = run_of_cell(client, records, uri)
    run_id, present_tags = run.info.run_id, run.data.tags
    artifacts = files_of_run(run.info.artifact_uri, uri)
    artifacts.sweep()
    if holds_all(records, present_tags, artifacts):
        return False

    if state.state == "done":
        for damage, _ in checksums.changed_records(folder):
            raise damage
    confirmed = lines_by_tag(present_tags, LINES)
    # Before the points: after a kill while they are sent, the next sync must know which of them may be in the run.
    if lines[confirmed:]:
        client.set_tag(run_id, SENDING, f"{len(lines)} {lines[-1]['time']!r}")
        send_metrics(client, run_id, lines[confirmed:])
    tags = records.tags()
    if SOURCE not in present_tags:
        tags |= origin(records.made)
    artifacts.send(folder / FILE)
    for path in unsent_files(records, artifacts):
        artifacts.send(path, path.parent.name)
    if records.outcome_text is not None:
        artifacts.write(OUTCOME, records.outcome_text)
    if state.ended:
        end = int(lines[-1]["time"] * 1000) if lines else None
        client.set_terminated(run_id, RUN_STATUS[state.state], end)
    else:
        client.update_run(run_id, RUN_STATUS[records.status])
    # Last, so that these tags vouch for all the rest: an interrupted sync is repeated. MLflow writes the parameters of
    # a request before its tags, so that one request is enough for both.
    # MLflow refuses another value of a parameter, as an earlier version may have sent it.
    params = {key: value for key, value in params_of(spec).items() if key not in run.data.params}
    send_params_and_tags(client, run_id, params, tags)
    return True


def holds_all(records: CellRecords, tags: Mapping[str, str], run_files: LocalFiles | ServerFiles) -> bool:
    """Return whether a run has everything of its cell: its tags vouch for parameters and points."""
    if not records.tags().items() <= tags.items() or any(unsent_files(records, run_files)):
        return False
    return records.outcome_text is None or run_files.holds(OUTCOME, records.outcome_text)


def status_tags(spec: CellSpec, state: State) -> dict[str, str]:
    """Return the tags of a run that change while its cell is trained."""
    tags = {
        "status": state.state,
        "reason": state.reason or "",
        "device": state.device,
        "collapsed": "" if state.collapsed is None else str(state.collapsed),
        "baseline": spec.config.baseline,
    }
    if spec.made_of:
        tags["made_of"] = spec.made_of
    if spec.trainer is not None:
        tags[TRAINER] = spec.trainer
    return cut_for_mlflow(tags)


def cut_for_mlflow(values: Mapping[str, object]) -> dict[str, str]:
    """Return values as texts that MLflow does not refuse as too long."""
    return {key: str(value)[:LONGEST_VALUE] for key, value in values.items()}


def unsent_files(records: CellRecords, run_files: LocalFiles | ServerFiles) -> Iterator[Path]:
    """Yield the files of a cell that has ended which are missing in its run, or have another size there."""
    if not records.state.ended:
        return
    for name in FOLDERS:
        sizes = run_files.sizes(name)
        for path in sorted((records.folder / name).glob(COMPLETE)):
            if sizes.get(f"{name}/{path.name}") != path.stat().st_size:
                yield path


def run_of_cell(client: MlflowClient, records: CellRecords, uri: str) -> Run:
    """Return the run of the present attempt at a cell; create it if there is none.

    First choice: the run whose id the cell's folder keeps. Then the oldest run with the tags of this attempt; then one
    without an attempt, of a cell that failed before its first attempt began.
    """
    spec, made, attempt = records.spec, records.made, records.attempt
    kept = records.folder / MLFLOW_RUN
    run_id = known_run(kept)
    if run_id is not None:
        run = run_by_id(client, run_id)
        if run is not None and run.info.lifecycle_stage == "active" and records.belongs(run.data.tags):
            return run
    experiment = experiment_of(client, spec.matrix, uri)
    same_cell = client.search_runs([experiment], f"tags.cell = '{spec.id}'", order_by=["attributes.start_time ASC"])
    candidates = [run for tag in (attempt, "") for run in same_cell if run.data.tags.get("attempt") == tag]
    run = candidates[0] if candidates else new_run(client, experiment, spec, made, records.lines)
    if made is not None and run.data.tags.get("attempt") != attempt:
        send_params_and_tags(client, run.info.run_id, {}, made.tags() | commit_tags(made))
        run = client.get_run(run.info.run_id)
    # After a kill before this line, the run is found by its tags.
    files.write_json(kept, {"run": run.info.run_id})
    return run


def known_run(kept: Path) -> str | None:
    """Return the run id that a cell's folder keeps; None if it has no readable one."""
    try:
        record = files.read_json(kept)
    except (FileNotFoundError, Damaged):
        return None
    run_id = record.get("run") if isinstance(record, dict) else None
    return run_id if isinstance(run_id, str) and run_id else None


def run_by_id(client: MlflowClient, run_id: str) -> Run | None:
    """Return the run with an id; None if the store does not have it."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def new_run(client: MlflowClient, experiment: str, spec: CellSpec, made: Made | None, lines: Lines) -> Run:
    """Create the run of a cell; its start is that of the attempt, or else the time of the first line."""
    tags = {"cell": spec.id, "matrix": spec.matrix, **spec.key.tags(), **(made.tags() if made else {"attempt": ""})}
    began = made.started if made else next((line["time"] for line in lines), None)
    start = None if began is None else int(began * 1000)
    return client.create_run(experiment, start, cut_for_mlflow(tags), run_name=spec.key.run_name)


def experiment_of(client: MlflowClient, matrix: str, uri: str) -> str:
    """Return the id of a matrix's experiment; create it if there is none."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(matrix)
    if experiment is None:
        # Given explicitly, since MLflow's default is ./mlruns in the working directory of the command.
        folder = home_of_experiment(uri, matrix)
        location = None if folder is None else folder.as_uri()
        try:
            return client.create_experiment(matrix, location, {**KIND, NOTE_TAG: NOTE})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # created by another process in the meantime
                raise
            experiment = client.get_experiment_by_name(matrix)
    if experiment.lifecycle_stage != "active":
        raise UserError(
            f"the MLflow experiment {matrix!r} was deleted; bring it back with "
            f"`MLFLOW_TRACKING_URI={quote(visible_address(uri))} mlflow experiments restore --experiment-id "
            f"{experiment.experiment_id}`, or choose another name="
        )
    return experiment.experiment_id


def ensure_experiment(matrix: str, uri: str) -> None:
    """Create a matrix's experiment if there is none; an SQLite store that has it is only read."""
    if database(uri) is not None:
        # Opening the store for writing creates it, or reports the error.
        with suppress(UserError), reader(uri) as source:
            if matrix in source.experiments():
                return
    with store(uri, write=True) as client:
        experiment_of(client, matrix, uri)


def send_metrics(client: MlflowClient, run_id: str, lines: Lines) -> None:
    """Send the points of some lines.

    An interrupted call may be made again: MLflow keeps one of several equal points (key, value, time, step).
    """
    from mlflow.entities import Metric

    points = []
    for line in lines:
        milliseconds = int(line["time"] * 1000)
        for key, value in line["metrics"].items():
            points.append(Metric(metric_name(key), value, milliseconds, line["step"]))
    # Metric by metric, the last step first: MLflow keeps the latest point of each metric in a table of its own, which
    # then has to change only once for each metric, and in few rows for each call.
    points.sort(key=lambda point: (point.key, -point.step))
    for start in range(0, len(points), METRICS_PER_CALL):
        client.log_batch(run_id, points[start : start + METRICS_PER_CALL])


def metric_name(key: str) -> str:
    """Return a metric's name in MLflow, which refuses most punctuation: pass@16 is pass_at_16."""
    return re.sub(r"[^\w/.: -]", "_", key.replace("@", "_at_"))


def params_of(spec: CellSpec) -> dict[str, str]:
    """Return the factors of a cell as MLflow's parameters; an option of a method is method.clip_b.share.

    They never change, as the cell's id.
    """
    factors = spec.key.factors()
    for component in spec.identity.get("method", []):
        # The name of a class in lower case, such as entropy_bonus for EntropyBonus.
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", component["component"]).lower()
        for key, value in component.items():
            if key != "component":
                factors[f"method.{name}.{key}"] = value
    sections = spec.settings
    if spec.trainer is not None:
        factors[TRAINER] = spec.trainer
        sections = spec.identity  # without the settings of a training that did not happen here
    for part in ("train", "rollout", "correction", "eval", "stop"):
        section = sections.get(part, {})
        values = without_k(section) if part == "eval" else section
        factors |= {f"{part}.{key}": value for key, value in values.items()}
    if setting := dict(spec.key.setting):
        factors["axes"] = ", ".join(setting)
        for axis, value in setting.items():
            factors[axis] = value
            section, _, name = axis.rpartition(".")
            if section in factors:  # an inner section is one parameter, and its axis has one of its own
                factors[section] = {key: own for key, own in factors[section].items() if key != name}
    if (ruleset := spec.settings.get("ruleset", PUBLISHED)) != PUBLISHED:  # of which older runs have no parameter
        factors["ruleset"] = ruleset
    return cut_for_mlflow(factors)


def params_without_k(params: Mapping[str, str]) -> dict[str, str]:
    """Return parameters as `params_of` makes them; those of an earlier version may have K, which changes nothing."""
    kept = {key: value for key, value in params.items() if key != K}
    if BY_TASK in kept:
        kept[BY_TASK] = K_OF_TASK.sub("", K_ALONE.sub("", kept[BY_TASK])).replace("}, }", "}}")
    return kept


def send_params_and_tags(client: MlflowClient, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
    from mlflow.entities import Param, RunTag

    as_params = [Param(key, value) for key, value in params.items()]
    as_tags = [RunTag(key, value) for key, value in cut_for_mlflow(tags).items()]
    client.log_batch(run_id, params=as_params, tags=as_tags)


# The source of a run, as MLflow's own pages show it


def origin(made: Made | None) -> dict[str, str]:
    """Return the tags of a run's source: entrobench, this user, and the commit of the code that made the numbers."""
    tags = {"mlflow.source.name": "entrobench", "mlflow.source.type": "LOCAL", "mlflow.user": user_name()}
    return tags | commit_tags(made)


def commit_tags(made: Made | None) -> dict[str, str]:
    return {"mlflow.source.git.commit": made.commit} if made and made.commit else {}


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # in a container, the user's id may have no name
        return "unknown"
