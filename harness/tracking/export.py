"""Export of a cell's metrics to TensorBoard, and as an offline run of Weights & Biases, which `wandb sync` uploads."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from harness.base.errors import UserError
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec


def check_installed(package: str) -> None:
    """Raise UserError if a package of the extra of its name is missing."""
    if find_spec(package) is None:
        raise UserError(f"{package} is not installed; run `pip install -e '.[{package}]'`")


def write_tensorboard(folder: Path, logs: Path) -> None:
    """Write the metrics of a cell as an event file, replacing earlier event files in the folder `logs`."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for old in logs.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(logs))
    for line in MetricsLog(folder).read():
        values = [Summary.Value(tag=name, simple_value=value) for name, value in line["metrics"].items()]
        writer.add_event(Event(wall_time=line["time"], step=line["step"], summary=Summary(value=values)))
    writer.close()


def write_wandb_run(folder: Path, logs: Path) -> None:
    """Write the metrics of a cell as an offline run, replacing the cell's earlier one in the folder `logs`."""
    import wandb

    spec = CellSpec.read(folder)
    for old in (logs / "wandb").glob(f"offline-run-*-{spec.id}"):
        shutil.rmtree(old)
    settings = {part: spec.settings[part] for part in ("train", "rollout", "correction", "eval")}
    logs.mkdir(parents=True, exist_ok=True)  # wandb writes to a temporary folder if this one does not exist
    with wandb.init(
        mode="offline",
        dir=logs,
        project=spec.matrix,
        id=spec.id,  # always the same, so that a second upload updates the run on the server
        name=spec.key.run_name,
        group=spec.key.method,
        config=spec.key.factors() | settings,
        settings=wandb.Settings(
            console="off", disable_git=True, save_code=False, silent=True, x_disable_meta=True, x_disable_stats=True
        ),
    ) as run:
        for line in MetricsLog(folder).read():
            run.log({**line["metrics"], "_timestamp": line["time"]}, step=line["step"])
