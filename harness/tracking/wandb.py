"""From a cell's folder to an offline run that `wandb sync` uploads; nothing is sent from here."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.base.errors import UserError
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec


def write(folder: Path, logs: Path) -> None:
    """Writes the metrics of a cell as an offline run, in place of the one that the folder held of it before."""
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise UserError("W&B is not installed; `pip install 'entrobench[wandb]'` does it") from error

    spec = CellSpec.read(folder)
    for old in (logs / "wandb").glob(f"offline-run-*-{spec.id}"):
        shutil.rmtree(old)
    factors = spec.key.factors()
    logs.mkdir(parents=True, exist_ok=True)  # without it wandb would write into a temporary folder
    with wandb.init(
        mode="offline",
        dir=logs,
        project=spec.matrix,
        id=spec.id,  # of which there is one on the server, however often it is uploaded
        name=spec.key.run_name,
        group=spec.key.method,
        config=factors | {part: spec.settings[part] for part in ("train", "rollout", "correction", "eval")},
        settings=wandb.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
        ),
    ) as run:
        for line in MetricsLog(folder).read():
            run.log({**line["metrics"], "_timestamp": line["time"]}, step=line["step"])
