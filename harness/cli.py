"""The command line: thin, and without torch until a cell runs."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from harness.base.errors import SENTENCE, CellFailure, UserError, short

if TYPE_CHECKING:
    from harness.commands.parsing import Parser

# Modules of harness/commands/: `add` declares the arguments of a command, `call` runs it and returns the exit code.
COMMANDS = (
    *("run", "plan", "status", "leaderboard", "report", "sync", "dynamics", "explain"),
    *("check", "eval", "data", "doctor", "list", "clean"),
)


def parser() -> Parser:
    from harness.commands.parsing import Parser

    top = Parser(
        prog="entrobench",
        description="Which entropy-control method keeps a language model exploring under reinforcement fine-tuning?",
    )
    top.add_argument("--version", action="store_true", help="show the version, and the commit of a checkout")
    top.set_defaults(call=show_help, parser=top)
    commands = top.add_subparsers(metavar="COMMAND", dest="command")
    for name in COMMANDS:
        module = importlib.import_module(f"harness.commands.{name}")
        module.add(commands)
        commands.choices[name].set_defaults(call=module.call, parser=commands.choices[name])
    return top


def show_help(arguments: argparse.Namespace) -> int:
    arguments.parser.print_help()
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """As argparse does, but `key=value` may also stand behind an option."""
    arguments, rest = parser().parse_known_args(argv)
    overrides = [each for each in rest if "=" in each and not each.startswith("-") and hasattr(arguments, "overrides")]
    if overrides != rest:
        arguments.parser.refuse([each for each in rest if each not in overrides])
    if rest:
        arguments.overrides += rest
    return arguments


def version() -> str:
    """Returns the version that is installed, and the commit where the code is a checkout."""
    root = Path(__file__).parent.parent
    said = f"entrobench {metadata.version('entrobench')}"
    if not (root / ".git").exists():
        return said
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # git is not here, or there is no commit yet
        return said
    return f"{said} (commit {found.stdout.strip()})"


def heed_signals() -> None:
    """Lets SIGTERM, and SIGHUP when a terminal closes, stop this process as Ctrl-C does; not those that it was started
    to ignore, as by nohup."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


def write_any_character() -> None:
    """Let stdout and stderr write out by their numbers the characters that their encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> None:
    heed_signals()
    write_any_character()
    sys.path.append(os.getcwd())  # where users keep plugin modules; last, since other files there may hide ours
    from harness.terminal.layout import visible  # not before `python -m` has lost the current folder, see below

    try:
        arguments = parse(argv)
        if arguments.version:
            print(version())
            sys.exit(0)
        code = arguments.call(arguments)
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except UserError as error:
        print(visible(f"entrobench: {error}"), file=sys.stderr)
        code = 2
    except CellFailure as error:  # of those that measure here, in this process
        print(visible(f"entrobench: failed: {short(str(error), SENTENCE)}"), file=sys.stderr)
        code = 1
    except OSError as error:  # a disk that is full, a folder that cannot be written
        where = f": {short(str(error.filename))}" if error.filename else ""
        print(visible(f"entrobench: {UserError(f'{error.strerror or error}{where}')}"), file=sys.stderr)
        code = 2
    except KeyboardInterrupt as stopped:
        print("\nentrobench: interrupted; what is done is kept, and the same command goes on", file=sys.stderr)
        code = 128 + stopped.args[0]
    sys.exit(code)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which `python -m` puts first
    main()
