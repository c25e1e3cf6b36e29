"""Export of a cell's metrics to TensorBoard."""

from __future__ import annotations

from pathlib import Path

from harness.base.errors import UserError
from harness.cells.log import MetricsLog


def write_tensorboard(folder: Path, logs: Path) -> None:
    """Write the metrics of a cell as an event file, replacing earlier event files in the folder `logs`."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ModuleNotFoundError as error:
        raise UserError("TensorBoard is not installed; run `pip install -e '.[tensorboard]'`") from error

    for old in logs.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(logs))
    for line in MetricsLog(folder).read():
        values = [Summary.Value(tag=name, simple_value=value) for name, value in line["metrics"].items()]
        writer.add_event(Event(wall_time=line["time"], step=line["step"], summary=Summary(value=values)))
    writer.close()
