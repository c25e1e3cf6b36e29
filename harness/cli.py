"""The command line: thin, and without torch until a cell runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from harness.base.errors import UserError

# Modules of harness/commands/: `add` declares the arguments of a command, `call` runs it and returns the exit code.
COMMANDS = (
    *("run", "plan", "status", "leaderboard", "report", "sync", "dynamics", "explain"),
    *("eval", "data", "doctor", "list", "clean"),
)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="entrobench",
        description="Which entropy-control method keeps a language model exploring under reinforcement fine-tuning?",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name in COMMANDS:
        module = importlib.import_module(f"harness.commands.{name}")
        module.add(commands)
        commands.choices[name].set_defaults(call=module.call)
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


def main(argv: Sequence[str] | None = None) -> None:
    sys.path.append(os.getcwd())  # where users keep plugin modules; last, since other files there may hide ours
    arguments = parse(argv)
    try:
        code = arguments.call(arguments)
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
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which `python -m` puts first
    main()
