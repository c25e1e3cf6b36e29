"""entrobench adopt: evaluate a model from another trainer, and add it to the leaderboard of a matrix."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.errors import at_least
from harness.base.terminal import console
from harness.commands.common import Commands, command, config_of_arguments, with_config
from harness.matrix import cells, claim
from harness.runs import check_problems, conclude

TEXT = "evaluate a model from another trainer (TRL, verl, or any other) as a cell of a matrix"
EXAMPLES = (
    "entrobench adopt trl_clip_b demo --method 'clip_b(share=0.02)' --seed 10",
    "entrobench adopt checkpoints/my_run my.yaml eval.k=8 --method grpo --model my-model --task my_task --seed 1 "
    "--plugin my_tasks --trainer verl",
    "entrobench adopt ./my-model demo --method my_idea --unregistered --seed 10 --trainer my_loop",
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
    conclude(config, matrix)
    return 0
