"""The command line: thin, and without torch until a cell runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import config as configs
from harness.config import Config, UserError

EVAL = "Avg@K, Pass@K and maj@K of any model, without training; what was sampled is kept and never sampled again"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="entrobench",
        description="Which entropy-control method keeps a language model exploring under reinforcement fine-tuning?",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str, **before: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(call=name)  # the function in harness/commands.py
        for argument, meaning in before.items():
            command.add_argument(argument, metavar=argument.upper(), help=meaning)
        command.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one in configs/")
        command.add_argument("overrides", nargs="*", metavar="key=value", help="for example train.steps=10")
        command.add_argument("--plugin", action="append", default=[], metavar="MODULE", help="further methods")
        return command

    run = add("run", "run what is missing of a matrix, and end with its leaderboard")
    run.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="cells side by side (default: the cores / threads and ranks a cell; on GPUs 1)",
    )
    run.add_argument("--launcher", choices=["local"], default="local")
    add("plan", "cells by state, tokens, estimated time and memory; runs nothing")
    add("status", "how far each cell has come, and why one failed")
    board = add("leaderboard", "the table, read from MLflow")
    board.add_argument("--format", choices=["table", "md", "csv", "json"], default="table")
    add("report", "one self-contained HTML page: the table and the curves")
    add("sync", "feed MLflow from the cells' own records")
    theory = add("dynamics", "the theory of entropy dynamics, measured on the first model and task of a configuration")
    theory.add_argument("--steps", type=int, default=30, help="of training on each quadrant of tokens (default: 30)")
    text = "which tokens a method drops or weighs, and what that does to the entropy, on a few batches"
    explain = add("explain", text, method="a method, several divided by blanks, or all of the registry: all")
    explain.add_argument("--batches", type=int, default=4, help="rollout batches to look at (default: 4)")
    explain.add_argument("--format", choices=["table", "json"], default="table")
    alone = commands.add_parser("eval", help=EVAL, description=EVAL)
    alone.set_defaults(call="evaluate")
    alone.add_argument("--model", required=True, help="a name of `entrobench list models`, or a folder")
    alone.add_argument("--tasks", required=True, metavar="TASK,...", help="names of `entrobench list tasks`")
    alone.add_argument("--samples", type=int, help="responses to each problem (default: as the task's file says)")
    alone.add_argument("--problems", type=int, help="only the first so many (default: all)")
    alone.add_argument("--temperature", type=float, help="0: greedy (default: as the task's file says)")
    alone.add_argument("--max-new-tokens", type=int, help="of a response (default: as the task's file says)")
    alone.add_argument("--seed", type=int, default=0, help="of the sampling (default: 0)")
    alone.add_argument("--beyond-context", action="store_true", help="also beyond the model's max_position_embeddings")
    alone.add_argument("--out", type=Path, help="folder for samples and results (default: results/eval/MODEL)")
    text = "fetch, clean, divide and fingerprint the real problem sets; and what of them stands in the training set"
    data = commands.add_parser("data", help=text, description=text)
    data.set_defaults(call="data")
    actions = data.add_subparsers(dest="action", required=True, metavar="prepare|check")
    prepare = actions.add_parser("prepare", help="make the sets in the cache, from the hub or from a local copy")
    prepare.add_argument("sets", nargs="*", metavar="SET", help="for example aime24 (default: all)")
    prepare.add_argument("--from", dest="origin", metavar="FROM", help="a file, a folder, or the id of a hub's copy")
    actions.add_parser("check", help="which evaluation problems stand in the training set")
    text = "what this machine can run, and what is missing"
    doctor = commands.add_parser("doctor", help=text, description=text)
    doctor.set_defaults(call="doctor", plugin=[])
    where = "whose results folder and MLflow store are meant (default: demo)"
    doctor.add_argument("config", nargs="?", default="demo", metavar="CONFIG", help=where)
    doctor.add_argument("overrides", nargs="*", metavar="key=value", help="for example tracking.uri=http://server")
    doctor.add_argument("--format", choices=["table", "json"], default="table")
    listing = commands.add_parser("list", help="what exists, one line each", description="what exists, one line each")
    listing.set_defaults(call="listing")
    listing.add_argument("what", choices=["methods", "tasks", "models", "configs"])
    listing.add_argument("--plugin", action="append", default=[], metavar="MODULE", help="further methods")
    return top


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """As argparse does, but `key=value` may also stand behind an option."""
    top = parser()
    arguments, rest = top.parse_known_args(argv)
    if any("=" not in each or each.startswith("-") for each in rest) or (rest and not hasattr(arguments, "overrides")):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides += rest
    return arguments


def load(arguments: argparse.Namespace) -> Config:
    config = configs.load(arguments.config, arguments.overrides)
    config.plugins += arguments.plugin
    return config


def main(argv: Sequence[str] | None = None) -> None:
    sys.path.insert(0, os.getcwd())  # where users keep plugin modules
    arguments = parse(argv)
    from harness import commands

    try:
        code = getattr(commands, arguments.call)(arguments)
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except UserError as error:
        print(f"entrobench: {error}", file=sys.stderr)
        code = 2
    except OSError as error:  # a disk that is full, a folder that cannot be written
        print(f"entrobench: {error.strerror or error}: {error.filename}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("\nentrobench: interrupted; what is done is kept, and the same command goes on", file=sys.stderr)
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
