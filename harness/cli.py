"""The command line: thin, and without torch until a cell runs."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from harness.base.errors import SENTENCE, CellFailure, UserError, short
from harness.base.garbage import search_rarely

if TYPE_CHECKING:
    from harness.commands.parsing import Parser

# Modules of harness/commands/: `add` declares the arguments of a command, `call` runs it and returns the exit code.
# They are in the order of --help; starred tuples, since the formatter gives each name of one long tuple a line.
COMMANDS = (
    *("init", "run", "plan", "status", "stop", "leaderboard", "report", "sync"),
    *("dynamics", "explain", "diagnose", "check", "look", "eval", "data", "doctor"),
    *("list", "clean", "pack", "unpack", "verify", "tune", "adopt", "export"),
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


def parse_command(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse as argparse does, except that `key=value` may also follow an option."""
    arguments, rest = parser().parse_known_args(argv)
    takes_overrides = hasattr(arguments, "overrides")
    refused = [word for word in rest if word.startswith("-") or "=" not in word or not takes_overrides]
    if refused:
        arguments.parser.refuse(refused)
    if rest:
        arguments.overrides += rest
    return arguments


def describe_version() -> str:
    """Return the installed version, and the commit if the code is a checkout."""
    from harness.cells.provenance import COMMIT_DIGITS, checkout

    commit, _ = checkout(Path(__file__).parents[1])
    version = f"entrobench {metadata.version('entrobench')}"
    return version if commit is None else f"{version} (commit {commit[:COMMIT_DIGITS]})"


def stop_on_signals() -> None:
    """Let SIGTERM, and SIGHUP when a terminal closes, stop this process as Ctrl-C does.

    A signal that it was started to ignore, for example by nohup, stays ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


def write_any_character() -> None:
    """Let stdout and stderr escape the characters that their encoding does not have; a closed stdout drops all."""
    if sys.stdout is None:  # as by `>&-`; otherwise the next file that is opened would get its number
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> None:
    search_rarely()  # before the imports of the commands, which make most objects
    stop_on_signals()
    write_any_character()
    sys.path.append(os.getcwd())  # users keep plugin modules there; last, because other files there may hide ours
    try:
        # Only now, since `python -m` has removed the current folder from the front of the path (see below).
        from harness.base.terminal import visible

        arguments = parse_command(argv)
        if arguments.version:
            print(describe_version())
            sys.exit(0)
        code = arguments.call(arguments)
    except BrokenPipeError:  # as with `| head`
        # Python flushes stdout once more when it ends, which would raise the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except UserError as error:
        print(visible(f"entrobench: {error}"), file=sys.stderr)
        code = 2
    except CellFailure as error:  # in the commands that compute in this process
        print(visible(f"entrobench: failed: {short(str(error), SENTENCE)}"), file=sys.stderr)
        code = 1
    except OSError as error:  # for example a full disk, or a folder without permission to write
        where = f": {short(str(error.filename))}" if error.filename else ""
        # A UserError shortens the sentence and hides secrets in it.
        sentence = UserError(f"{error.strerror or error}{where}")
        print(visible(f"entrobench: {sentence}"), file=sys.stderr)
        code = 2
    except KeyboardInterrupt as stopped:
        print("\nentrobench: interrupted; finished work is kept, and the same command continues", file=sys.stderr)
        code = 128 + stopped.args[0]  # the number of the signal, as shells report it
    # Otherwise Python would search all objects for garbage once more when it ends.
    gc.freeze()
    sys.exit(code)
