"""entrobench run: runs the missing cells of a matrix, and ends with its leaderboard."""

from __future__ import annotations

import argparse
import shlex

from harness.base.addresses import visible_address
from harness.base.terminal import console
from harness.commands.common import Commands, command, config_of_arguments, with_config, words_of_config
from harness.runs import LAUNCHERS, run_matrix
from harness.tracking.reader import reader

EXAMPLES = (
    "entrobench run demo",
    "entrobench run demo train.lr=3e-4 'seeds=[0,1]' --jobs 2",
    "entrobench run demo --only clip_b --only clip_v --retry-failed",
    "entrobench run paper --launcher slurm --plugin my_methods",
)


def add(commands: Commands) -> None:
    text = "run the missing cells of a matrix, and end with its leaderboard"
    parser = with_config(command(commands, "run", text, EXAMPLES))
    parser.add_argument("--jobs", type=int, help="most cells side by side (default: as many as GPUs, or cores, allow)")
    parser.add_argument(
        "--launcher", choices=LAUNCHERS, default="local", help="where cells run: on this machine, by Ray or by SLURM"
    )
    parser.add_argument("--retry-failed", action="store_true", help="run only failed and damaged cells")
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
        config, arguments.jobs, arguments.launcher, only=arguments.only, retry_failed=arguments.retry_failed
    )
    again = shlex.join(["entrobench", "report", *words_of_config(arguments)])
    with reader(config.tracking_uri) as source:
        experiment = source.experiments().get(config.name)
    console.print(f"curves: {again}, or {mlflow_hint(config.tracking_uri, experiment)}")
    return code


def mlflow_hint(uri: str, experiment: str | None) -> str:
    """Return how to see an experiment in MLflow: a tracking server has its own pages, and `mlflow ui` shows stores."""
    address = visible_address(uri)
    # By its kind: MLflow would open its pages for traces.
    page = "" if experiment is None else f"/#/experiments/{experiment}/runs?workflowType=machine_learning"
    if uri.lower().startswith(("http:", "https:")):
        return f"MLflow at {address.rstrip('/')}{page}"
    if uri.partition(":")[0].lower() == "databricks":
        return f"MLflow at {address}"
    return f"mlflow ui --backend-store-uri {shlex.quote(address)}, which shows them at http://127.0.0.1:5000{page}"
