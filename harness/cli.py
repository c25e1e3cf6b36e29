"""The command line: thin, and without torch until a cell runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from harness import config as configs
from harness.config import Config, UserError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="entrobench",
        description="Which entropy-control method keeps a language model exploring under reinforcement fine-tuning?",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(call=name)  # the function in harness/commands.py
        command.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one in configs/")
        command.add_argument("overrides", nargs="*", metavar="key=value", help="for example train.steps=10")
        command.add_argument("--plugin", action="append", default=[], metavar="MODULE", help="further methods")
        return command

    run = add("run", "run what is missing of a matrix, and end with its leaderboard")
    run.add_argument("--jobs", type=int, default=None, help="cells side by side (default: the cores / threads a cell)")
    run.add_argument("--launcher", choices=["local"], default="local")
    add("plan", "cells by state, tokens, estimated time and memory; runs nothing")
    add("status", "how far each cell has come, and why one failed")
    board = add("leaderboard", "the table, read from MLflow")
    board.add_argument("--format", choices=["table", "md", "csv", "json"], default="table")
    add("report", "one self-contained HTML page: the table and the curves")
    add("sync", "feed MLflow from the cells' own records")
    listing = commands.add_parser("list", help="what exists, one line each", description="what exists, one line each")
    listing.set_defaults(call="listing")
    listing.add_argument("what", choices=["methods", "tasks", "models", "configs"])
    listing.add_argument("--plugin", action="append", default=[], metavar="MODULE", help="further methods")
    return top


def load(arguments: argparse.Namespace) -> Config:
    config = configs.load(arguments.config, arguments.overrides)
    config.plugins += arguments.plugin
    return config


def main(argv: Sequence[str] | None = None) -> None:
    sys.path.insert(0, os.getcwd())  # where users keep plugin modules
    arguments = parser().parse_args(argv)
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
        print("\nentrobench: interrupted; the same command goes on from the last checkpoints", file=sys.stderr)
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
