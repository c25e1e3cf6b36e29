"""entrobench run: runs the missing cells of a matrix, and ends with its leaderboard."""

from __future__ import annotations

import argparse

from harness.base.addresses import visible_address
from harness.commands.common import Commands, command, config_of_arguments, with_config
from harness.runs import LAUNCHERS, run_matrix
from harness.terminal.layout import console

EXAMPLES = (
    "entrobench run demo",
    "entrobench run demo train.lr=3e-4 'seeds=[0,1]' --jobs 2",
    "entrobench run demo --only clip_b --only clip_v --retry-failed",
    "entrobench run paper --launcher slurm --plugin my_methods",
)


def add(commands: Commands) -> None:
    text = "run the missing cells of a matrix, and end with its leaderboard"
    parser = with_config(command(commands, "run", text, EXAMPLES))
    parser.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="most cells side by side (default: as many as GPUs, or cores, allow)",
    )
    parser.add_argument(
        "--launcher", choices=LAUNCHERS, default="local", help="where cells run: on this machine, by Ray or by SLURM"
    )
    parser.add_argument("--retry-failed", action="store_true", help="run only the cells that failed")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="METHOD",
        help="run only the cells of this method; may be repeated",
    )


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    code = run_matrix(
        config,
        arguments.jobs,
        arguments.launcher,
        only=arguments.only,
        retry_failed=arguments.retry_failed,
    )
    console.print(f"curves: entrobench report {arguments.config}, or {mlflow_hint(config.tracking_uri)}")
    return code


def mlflow_hint(uri: str) -> str:
    """Return a hint on seeing the curves in MLflow. `mlflow ui` shows stores; a tracking server has its own pages."""
    address = visible_address(uri)
    if uri.partition(":")[0].lower() in ("http", "https", "databricks"):
        return f"MLflow at {address}"
    return f"mlflow ui --backend-store-uri {address}"
