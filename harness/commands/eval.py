"""entrobench eval: Avg@K, Pass@K and maj@K of any model, without training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tasks
from harness.base import registry
from harness.base.addresses import visible_address
from harness.base.errors import CellFailure, UserError
from harness.commands.common import Commands, command, console, with_plugins
from harness.config import Config
from harness.rollout import models
from harness.verify.pool import VerifierPool

if TYPE_CHECKING:
    from harness.rollout.models import Model
    from harness.study.assess import Assessment

TEXT = "Avg@K, Pass@K and maj@K of any model, without training; what was sampled is kept and never sampled again"


def add(commands: Commands) -> None:
    parser = command(commands, "eval", TEXT)
    parser.add_argument(
        "--model", required=True, help="a name of `entrobench list models`, a folder, or a name on the hub"
    )
    parser.add_argument("--tasks", required=True, metavar="TASK,...", help="names of `entrobench list tasks`")
    parser.add_argument("--samples", type=int, help="responses to each problem (default: as the task's file says)")
    parser.add_argument("--problems", type=int, help="only the first so many (default: all)")
    parser.add_argument("--temperature", type=float, help="0: greedy (default: as the task's file says)")
    parser.add_argument("--max-new-tokens", type=int, help="of a response (default: as the task's file says)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (default: 0)")
    parser.add_argument("--beyond-context", action="store_true", help="also beyond the model's max_position_embeddings")
    parser.add_argument("--out", type=Path, help="folder for samples and results (default: results/eval/MODEL-KEY)")
    parser.add_argument("--uri", help="of the MLflow store (default: MLFLOW_TRACKING_URI, or results/mlflow.db)")
    with_plugins(parser)


def call(arguments: argparse.Namespace) -> int:
    model = models.resolve(arguments.model)
    asked = [tasks.build_task(spec, arguments.plugin) for spec in registry.split(arguments.tasks, ",")]
    from harness.study import assess  # from here on with torch: what is misspelled is known by now

    given = ("samples", "temperature", "max_new_tokens", "problems", "seed", "beyond_context")
    wanted = assess.Wanted(**{key: getattr(arguments, key) for key in given})
    out = arguments.out or assess.default_folder(model, console.print)
    try:
        with VerifierPool() as verifier:
            found = assess.assess(model, asked, wanted, verifier, out, console.print)
    except CellFailure as failure:
        console.print(f"failed  {failure}; what was sampled is kept in {out}", style="red")
        return 1
    assess.show(console, found)
    feed(model, found, arguments.uri or Config().tracking_uri)
    console.print(f"samples and results: {out}")
    return 0


def feed(model: Model, found: Sequence[Assessment], uri: str) -> None:
    """Has MLflow hold what was found; that it is away costs one sentence, since all of it is kept here."""
    from harness.tracking import evaluation

    try:
        for each in found:
            evaluation.sync(each.told(model), uri)
    except UserError as error:
        console.print(f"MLflow is not fed: {error}. The same command again feeds it, without sampling.", style="yellow")
    else:
        runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
        console.print(f"MLflow: {runs} in the experiment {evaluation.EXPERIMENT} at {visible_address(uri)}")
