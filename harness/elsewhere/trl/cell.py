"""The door of a cell's process to TRL, whose imports take seconds and read variables of accelerate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.cells.spec import CellSpec
from harness.elsewhere.portable import PortableMethod
from harness.elsewhere.trl.accelerate_variables import export_variables
from harness.train.checkpoint import Checkpoints
from harness.train.parts import Parts

if TYPE_CHECKING:
    from harness.elsewhere.trl.run import TrlTraining


def training_of(spec: CellSpec, parts: Parts, folder: Path, checkpoints: Checkpoints) -> TrlTraining:
    """Return the training of a cell by TRL."""
    export_variables(spec.identity.get("accelerate", {}), spec.config.hardware)  # before TRL is imported
    from harness.elsewhere.trl.run import TrlTraining

    method = PortableMethod(spec.key.method, spec.config.plugins, spec.config.method_options)
    return TrlTraining(parts, method, folder, checkpoints)
