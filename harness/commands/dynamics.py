"""entrobench dynamics: the theory of entropy dynamics, measured on a model and a task."""

from __future__ import annotations

import argparse
import json

from harness.base import files
from harness.base.terminal import console
from harness.commands.common import Commands, command, config_of_arguments, with_config
from harness.matrix import DYNAMICS, cells

EXAMPLES = ("entrobench dynamics demo", "entrobench dynamics my.yaml train.lr=1e-4 --plugin my_tasks --steps 10")


def add(commands: Commands) -> None:
    text = "the theory of entropy dynamics, measured on the first model and task of a configuration"
    parser = with_config(command(commands, "dynamics", text, EXAMPLES))
    parser.add_argument(
        "--steps", type=int, default=30, help="training steps on each quadrant of the tokens (default: 30)"
    )


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    cells(config)  # checks the configuration
    from harness.theory import theory

    measurements = theory.measure(config, arguments.steps)
    theory.print_measurements(console, measurements)
    path = config.folder / DYNAMICS / "dynamics.json"
    files.write_text(path, json.dumps(measurements, indent=1))
    console.print(f"wrote {path}")
    return 0
