"""entrobench tune: chooses the options of each method by one rule, on validation problems."""

from __future__ import annotations

import argparse

from harness.commands import run
from harness.commands.common import Commands, command, config_of_arguments, console, with_config
from harness.config import Config
from harness.terminal.layout import boxed, visible, width_of

EXAMPLES = (
    "entrobench tune demo",
    "entrobench tune my.yaml tune.slack=0.01 --plugin my_methods --jobs 2 --launcher local",
)


def add(commands: Commands) -> None:
    text = "choose the options of each method by one rule, from as many candidates of each, on validation problems"
    parser = with_config(command(commands, "tune", text, EXAMPLES))
    parser.add_argument("--jobs", type=int, default=None, help="most cells side by side (default: as many as fit)")
    where = "where cells run: on this machine, by Ray or by SLURM"
    parser.add_argument("--launcher", choices=run.LAUNCHERS, default="local", help=where)


def call(arguments: argparse.Namespace) -> int:
    # Without the choice of an earlier call, which this one makes again.
    config = config_of_arguments(arguments, with_choice=False)
    return tune(config, arguments.jobs, arguments.launcher)


def tune(config: Config, jobs: int | None = None, launcher: str = "local") -> int:
    """Run the missing cells of the candidates, and write the choice; return the exit code."""
    from harness.commands.leaderboard import matrix_rows
    from harness.matrix import cells
    from harness.tune import choose, tuning_matrix, write_choice

    matrix = tuning_matrix(config)
    code = run.run_matrix(matrix, jobs, launcher)
    # Even if cells failed: a candidate counts only if all of its seeds are done, and the others decide without it.
    lines, choice = choose(config, matrix_rows(matrix, cells(matrix)))
    path = write_choice(config, lines, choice)
    print(visible(boxed(f"candidates of {config.name}", lines, width_of(console), [], "--format csv")))
    console.print(f"wrote {path}; `entrobench run` with ruleset=tuned runs these methods")
    return code
