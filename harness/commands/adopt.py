"""entrobench adopt: evaluate a model from another trainer, and add it to the leaderboard of a matrix."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.addresses import visible_address
from harness.base.deadline import finished_within
from harness.base.errors import UserError, at_least
from harness.commands import leaderboard
from harness.commands.common import Commands, command, config_of_arguments, console, with_config
from harness.commands.run import check_problems
from harness.commands.sync import sync_matrix
from harness.config import Config
from harness.matrix import Cell, cells, claim

TEXT = "evaluate a model from another trainer (TRL, verl, or any other) as a cell of a matrix"
EXAMPLES = (
    "entrobench adopt trl_clip_b demo --method 'clip_b(share=0.02)' --seed 0",
    "entrobench adopt checkpoints/my_run my.yaml eval.k=8 --method grpo --model my-model --task my_task --seed 1 "
    "--plugin my_tasks --trainer verl",
    "entrobench adopt ./my-model demo --method my_idea --unregistered --seed 0 --trainer my_loop",
)


def add(commands: Commands) -> None:
    parser = command(commands, "adopt", TEXT, EXAMPLES)
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        help="the trainer's folder of checkpoints (checkpoint-10, global_step_10 ...), or one Hugging Face folder",
    )
    with_config(parser)
    parser.add_argument(
        "--method", required=True, metavar="SPEC", help="the method that trained it; method_options do not apply"
    )
    parser.add_argument("--seed", required=True, type=int, help="the seed of the matrix with which it is compared")
    parser.add_argument("--model", help="the base model that it was trained from (default: the only one of CONFIG)")
    parser.add_argument("--task", help="the task that it was trained on (default: the only one of CONFIG)")
    parser.add_argument("--trainer", metavar="NAME", help="the trainer (default: from the names of the checkpoints)")
    parser.add_argument(
        "--unregistered",
        action="store_true",
        help="--method is the plain name of a method that entrobench does not have",
    )


def call(arguments: argparse.Namespace) -> int:
    from harness.elsewhere import checkpoints

    at_least(0, **{"--seed": arguments.seed})
    config = config_of_arguments(arguments)
    matrix = cells(config)
    trained = checkpoints.find_checkpoints(arguments.folder)
    checkpoints.check_recorded_method(trained, arguments.method)
    trainer = arguments.trainer or checkpoints.trainer_of_folder(trained)
    check_problems(config)

    from harness.elsewhere import adopt  # imports torch, so only after the folder has been checked

    cell = adopt.planned_adoption(
        config,
        trained,
        method=arguments.method,
        model=arguments.model,
        task=arguments.task,
        seed=arguments.seed,
        trainer=trainer,
        unregistered=arguments.unregistered,
        say=console.print,
    )
    claim(config)
    for checkpoint in trained:
        console.print(f"step {checkpoint.step}: {checkpoint.weights}")
    adopt.adopt_cell(cell, console.print)
    console.print(f"{cell.spec.key.method} seed {arguments.seed}: the records are in {cell.folder}")
    if not finished_within(60 * config.tracking.patience_minutes, lambda: feed_and_show(config, matrix)):
        raise UserError(
            f"the MLflow store at {visible_address(config.tracking_uri)} took longer than tracking.patience_minutes "
            f"({config.tracking.patience_minutes:g}); the records are kept, and `entrobench sync` feeds it"
        )
    return 0


def feed_and_show(config: Config, matrix: list[Cell]) -> None:
    """Feed MLflow with the matrix, and print its leaderboard."""
    from harness.table.publish import publish

    sync_matrix(config, matrix)
    leaderboard.print_table(publish(config, matrix))
