"""entrobench tune: chooses the options of each method by one rule, on validation problems."""

from __future__ import annotations

import argparse
import shlex

from harness.base.terminal import console
from harness.commands.common import Commands, command, config_of_arguments, with_config, words_of_config
from harness.config import choice_path
from harness.runs import LAUNCHERS

EXAMPLES = (
    "entrobench tune demo-tuned",
    "entrobench tune my.yaml tune.slack=0.01 --plugin my_methods --jobs 2 --launcher local",
)


def add(commands: Commands) -> None:
    text = "choose the options of each method by one rule, from as many candidates of each, on validation problems"
    parser = with_config(command(commands, "tune", text, EXAMPLES))
    parser.add_argument("--jobs", type=int, help="most cells side by side (default: as many as fit)")
    where = "where cells run: on this machine, by Ray or by SLURM"
    parser.add_argument("--launcher", choices=LAUNCHERS, default="local", help=where)


def call(arguments: argparse.Namespace) -> int:
    from harness.runs import tune

    # Without the choice of an earlier call, which this one makes again.
    config = config_of_arguments(arguments, with_choice=False)
    code = tune.run_tuning(config, arguments.jobs, arguments.launcher)
    chosen = shlex.join(["entrobench", "run", *words_of_config(arguments), "ruleset=tuned"])
    console.print(f"wrote {choice_path(config)}; `{chosen}` runs these methods")
    return code
