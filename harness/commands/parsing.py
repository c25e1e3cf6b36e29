"""Mistakes on the command line as one sentence, with the allowed names and the nearest one."""

from __future__ import annotations

import argparse
import difflib
import re
from pathlib import Path
from typing import Any, NoReturn

from harness.base.errors import UserError, nearest, one_of, short, shown
from harness.base.schema import KINDS, keys_with_types
from harness.config import Config

# The texts of argparse's own messages, which `error` rewords.
MISSING = "the following arguments are required: "
INVALID = re.compile(r"argument (\S+): invalid (\w+) value: (.+)")
SYNONYMS = {"--limit": "--problems", "--output_path": "--out"}  # options of lm-eval, with ours
KIND = {kind.__name__: words for kind, words in KINDS.items()} | {"Path": "the name of a file or a folder"}


def hint(name: str, allowed: list[str]) -> str:
    """Return the end of a sentence about an unknown name: the name probably meant, or all names."""
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return nearest(name, allowed)


class Parser(argparse.ArgumentParser):
    """The parser of argparse, except that a mistake raises a UserError. Subparsers are of this class too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    # A private method of argparse, overridden because it words the message on a wrong choice.
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction):
            if value not in action.choices:
                raise UserError(f"unknown {action.dest} {shown(value)}; {hint(value, list(action.choices))}")
        elif action.choices is not None:
            name = action.option_strings[0] if action.option_strings else action.dest
            one_of(name, value, action.choices)

    # Another one, since Path("") is the current folder.
    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if action.type is Path and not arg_string:
            raise argparse.ArgumentError(action, f"invalid Path value: {arg_string!r}")
        return super()._get_value(action, arg_string)

    def error(self, message: str) -> NoReturn:
        if message.startswith(MISSING):
            names = message.removeprefix(MISSING)
            for action in self._actions:
                if action.dest == names and action.choices:
                    names = f"one of {', '.join(action.choices)}"
            sentence = f"{self.command} needs {names}"
            if "CONFIG" in names:
                sentence += "; CONFIG is a YAML file, or a name that `entrobench list configs` shows, for example demo"
            raise UserError(sentence)
        if match := INVALID.fullmatch(message):
            name, kind, value = match.groups()
            raise UserError(f"{name} is {short(value)}; it must be {KIND.get(kind, kind)}")
        raise UserError(f"{self.command}: {message.removeprefix('argument ')}")

    @property
    def command(self) -> str:
        """The name of the command without that of the program, with which every message begins."""
        return self.prog.partition(" ")[2] or self.prog

    def refuse(self, rest: list[str]) -> NoReturn:
        """Refuse words that belong to no argument."""
        first, *others = rest
        if first.startswith("-"):
            name, _, value = first.partition("=")
            options = [option for option in self._option_string_actions if option.startswith("--")]
            remedy = hint(name, options)
            if (key := name.lstrip("-")) in dict(keys_with_types(Config)):
                value = value or (others[0] if others else "VALUE")
                remedy = f"a key of the configuration is written without dashes: {key}={value}"
            elif SYNONYMS.get(name) in options:
                remedy = f"did you mean {SYNONYMS[name]!r}?"
            raise UserError(f"{self.command} has no option {shown(name)}; {remedy}")
        raise UserError(f"{self.command} does not take the argument {shown(first)}; see {self.prog} --help")
