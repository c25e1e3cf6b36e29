"""Generator of the reference pages of docs/ from the code: `make docs`, or `python -m docs.generate`."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import baselines
from baselines.grpo import GroupObjective
from harness import cli
from harness.base.schema import ALLOWED, KINDS, Range, hints_of, section
from harness.config import Config
from harness.diagnose import course, rules
from harness.diagnose.signals import TRAINERS, signal_keys
from harness.methods.composition import overrides
from harness.methods.verbs import NEEDS, ClippedObjective, Component, Composition, Control, Objective
from harness.table import verified
from harness.tokens import logged

DOCS = Path(__file__).parent
COMMAND = "make docs"
NOTICE = f"<!-- Written by `{COMMAND}` from the code; edit the code instead. -->"
# A hand-written page holds a generated part between a line like the first and the second.
BEGIN, END = f"<!-- begin: written by `{COMMAND}` from the code -->", "<!-- end -->"
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
DOCS_PAGE = re.compile(r"\bdocs/([\w-]+\.md)")
CODE = re.compile(r"(`[^`]*`)")
LABEL = re.compile(r"(Defaults|Differs|Logs): ")
DEFAULT = re.compile(r"(.*) \(default: (.*)\)")  # the help of an argument
LISTS = {int: "whole numbers", float: "numbers", str: "strings"}
# Used in place of a name for the value of an argument: its type, or how often it may be given.
VALUES: dict[Any, str] = {int: "a whole number", float: "a number"}
COUNTS: dict[Any, str] = {"*": "any number", "+": "one or more", "?": "optional"}

# Markdown


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for row in (header, ["---"] * len(header), *rows):
        cells = [cell.replace("|", r"\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def prose(text: str) -> str:
    """Return plain text as Markdown: papers and pages of docs/ as links, and asterisks, as in S*, as they are."""
    parts = CODE.split(text)
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    text = ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", "".join(parts))
    return DOCS_PAGE.sub(r"[\1](\1)", text)


def code(text: object) -> str:
    return f"`{text}`"


def codes(names: Iterable[object]) -> str:
    return ", ".join(map(code, names))


def code_block(lines: str) -> str:
    return f"```text\n{lines}\n```"


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTICE, *parts]) + "\n"


# Options: the fields of dataclasses


def field_meanings(cls: type) -> dict[str, str]:
    """Return the docstrings under the fields of a dataclass and its bases, by field."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= own_meanings(base)
    return meanings


def own_meanings(cls: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    meanings = {}
    for declared, below in itertools.pairwise(tree.body):
        if not (isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            meanings[declared.target.id] = " ".join(str(below.value.value).split())
    return meanings


def default_of(declared: dataclasses.Field[Any]) -> Any:
    make = declared.default_factory
    return declared.default if make is dataclasses.MISSING else make()


def in_yaml(value: Any) -> str:
    """Return a value as it is written in a configuration."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    if isinstance(value, list):
        return f"[{', '.join(map(in_yaml, value))}]"
    if value == "":
        return '""'
    return str(value)


def allowed_values(declared: dataclasses.Field[Any], hint: Any) -> str:
    """Return the type and the bounds of a field in words."""
    allowed = declared.metadata.get(ALLOWED, Range())
    if not isinstance(allowed, Range):
        return codes(allowed)
    kind = without_none(hint)
    words, bounds = kind_in_words(kind, allowed.length), str(allowed)
    if bounds != str(Range()):
        words = bounds if kind is float else f"{words}: {bounds}"  # only numbers have bounds
    if kind is not hint:
        words += "; or null"
    return words


def without_none(hint: Any) -> Any:
    """Return the type of a field without None."""
    if type(None) not in get_args(hint):
        return hint
    (kind,) = set(get_args(hint)) - {type(None)}
    return kind


def kind_in_words(kind: Any, length: int | None) -> str:
    if kind is bool:
        return codes(["true", "false"])
    if get_origin(kind) is dict:
        return "a mapping"
    if get_origin(kind) is not list:
        return KINDS[kind]
    (member,) = get_args(kind)
    words = ["a list of", LISTS[member]]
    if length is not None:
        words.insert(1, str(length))
    return " ".join(words)


# docs/configuration.md

CONFIGURATION = """A configuration is a YAML file that holds only what differs from the defaults below; `configs/` has
examples. Nested keys are written as sections. On the command line every key can be overridden:
`entrobench run demo train.lr=3e-4 'seeds=[0,1]'`.

The key `base` names another configuration, or its path from this file's folder, whose values hold unless the file has
its own. Sections are merged key by key; lists and single values are replaced whole.

The key `rounds` names sets of changes to the file: further seeds, some of the methods, another task. One of them is
chosen on the command line, `entrobench run field round=shortlist`, and is the matrix `NAME-ROUND`, here
`field-shortlist`. A round may begin from an earlier one of the file, which its key `base` names. Rounds are not
inherited by files that name this one as their base.

An unknown key or a value that is not allowed stops the command with one sentence that names the nearest valid one. NaN
and infinity are never allowed."""


def configuration_page() -> str:
    parts = [CONFIGURATION]
    for name, schema, rows in config_sections(Config(), ""):
        title = code(name) if name else "The matrix"
        parts += [f"## {title}", prose(inspect.cleandoc(schema.__doc__ or ""))]
        if rows:
            parts.append(table(["key", "allowed", "default", "meaning"], rows))
        refused = getattr(schema, "refused", {})
        for reason in sorted(set(refused.values())):
            keys = [f"{name}.{key}" for key in refused if refused[key] == reason]
            parts.append(f"Refused: {codes(keys)}; {reason}.")
    return page("Configuration", *parts)


def config_sections(settings: Any, where: str) -> Iterator[tuple[str, type, list[list[str]]]]:
    """Yield each section of the configuration with the rows of its own keys, then the sections inside it."""
    schema: Any = type(settings)
    meanings, hints = field_meanings(schema), hints_of(schema)
    rows = []
    inner = []
    for declared in dataclasses.fields(schema):
        name, value = f"{where}{declared.name}", getattr(settings, declared.name)
        inside = section(hints[declared.name])
        if inside is None:
            allowed = allowed_values(declared, hints[declared.name])
        elif value is None:
            inner.append((name, inside()))
            allowed = f"the section [{code(name)}](#{slug(name)}); or null"
        else:
            inner.append((name, value))
            continue
        if declared.name not in meanings:
            raise ValueError(f"{schema.__name__}.{declared.name} has no docstring beneath it")
        rows.append([code(name), allowed, code(in_yaml(value)), prose(meanings[declared.name])])
    yield where.removesuffix("."), schema, rows
    for name, value in inner:
        yield from config_sections(value, f"{name}.")


# docs/commands.md

COMMANDS = """`entrobench COMMAND --help` shows the same. CONFIG is the path of a YAML file, or the name of one in
`configs/` ([configuration.md](configuration.md)). Overrides `key=value` may come before or after options.

The exit code is 0 on success, 1 if something failed that the command ran or checked, such as a cell, 2 after a mistake
in the request, which is named in one sentence, and 128 plus the number of the signal after an interruption.

`entrobench --version` prints the version, and the commit of a checkout."""
SHARED_BY = 4  # commands that have an argument, from which on it is explained once for all of them


def commands_page() -> str:
    rows_of = {name: command_rows(parser) for name, parser in subparsers(cli.parser()).items()}
    counts = Counter(tuple(row) for rows in rows_of.values() for row in rows)
    shared = [list(row) for row, count in counts.items() if count >= SHARED_BY]
    header = ["argument", "value", "default", "meaning"]
    parts = [COMMANDS, "## Shared arguments", table(header, shared)]
    for name, parser in subparsers(cli.parser()).items():
        examples = importlib.import_module(f"harness.commands.{name}").EXAMPLES
        parts += [f"## {code(name)}", prose(sentence(parser.description or "")), code_block("\n".join(examples))]
        if own := [row for row in rows_of[name] if row not in shared]:
            parts.append(table(header, own))
        if names := [row[0] for row in rows_of[name] if row in shared]:
            parts.append(f"[Shared](#shared-arguments): {', '.join(names)}.")
    return page("Commands", *parts)


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def command_rows(parser: argparse.ArgumentParser) -> list[list[str]]:
    """Return the arguments of a command; for one with commands inside it, the arguments of each."""
    inner = subparsers(parser)
    if not inner:
        return argument_rows(parser)
    rows = []
    for name, child in inner.items():
        rows.append([code(name), "", "", prose(child.description or "")])
        for argument, *rest in argument_rows(child):
            rows.append([f"{code(name)} {argument}", *rest])
    return rows


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands inside a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def argument_rows(parser: argparse.ArgumentParser) -> list[list[str]]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        name = [*action.option_strings, action.metavar or action.dest][0]
        meaning, default = help_and_default(action)
        if action.required and action.option_strings:
            default = "required"
        rows.append([code(name), value_of(action), default, prose(meaning)])
    return rows


def value_of(action: argparse.Action) -> str:
    """Return the value that an argument takes, in words; empty for a switch."""
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return codes(action.choices)
    if action.type in VALUES:
        return VALUES[action.type]
    if action.option_strings:
        return code(action.metavar or action.dest.upper())
    return COUNTS.get(action.nargs, "")


def help_and_default(action: argparse.Action) -> tuple[str, str]:
    """Return the help of an argument without its default, and the default."""
    if not action.help:
        raise ValueError(f"the argument {action.dest} of a command has no help")
    if match := DEFAULT.fullmatch(action.help):
        return match[1], match[2]
    if action.choices is not None and action.default is not None:
        return action.help, code(action.default)
    return action.help, ""


# docs/metrics.md

METRICS = """`metrics.jsonl` in the folder of a cell holds one line for each step, with these metrics; MLflow holds the
same numbers. Step 0 is before training. Metrics are logged at every step from 1 on, if the last column does not say
otherwise. A share is a number from 0 to 1, and a metric without unit is a plain number. The [glossary](glossary.md)
explains words such as weight, gate and quadrant.

Parts of a key in braces differ from run to run:"""


def metrics_page() -> str:
    placeholders = [[code(f"{{{name}}}"), prose(meaning)] for name, meaning in logged.PLACEHOLDERS.items()]
    parts = [METRICS, table(["part", "meaning"], placeholders)]
    for each in logged.SECTIONS:
        rows = []
        for metric in each.metrics:
            rows.append([code(metric.key), metric.unit, prose(metric.meaning), metric.condition])
        parts += [f"## {each.title}", prose(each.about), table(["metric", "unit", "meaning", "logged"], rows)]
    return page("Metrics", *parts)


# docs/methods.md and docs/methods/

# Bases with options that several methods share.
SHARED: dict[type[Component], str] = {
    Objective: "every objective",
    ClippedObjective: "objectives with a clipped ratio",
    GroupObjective: "objectives with GRPO's advantage",
    Control: "every control",
}
REDECLARED = "The section of a method repeats an option only if it has another default there."
SYMBOLS = "Symbols, and how methods are combined: [methods.md](../methods.md)."
PAGES_OF_METHODS = {"objective": "objectives", "control": "controls"}


def kind_of_method(entry: type[Component] | Composition) -> str:
    if isinstance(entry, Composition):
        return "composition"
    return "objective" if issubclass(entry, Objective) else "control"


def text_of(entry: type[Component] | Composition) -> list[str]:
    """Return the paragraphs of a method's docstring, the first of them its clause."""
    text = entry.about if isinstance(entry, Composition) else entry.__doc__
    return inspect.cleandoc(text or "").split("\n\n")


def methods_table(kind: str) -> str:
    rows = []
    for name, entry in baselines.METHODS.items():
        if kind_of_method(entry) == kind:
            link = f"methods/{PAGES_OF_METHODS[kind]}.md#{slug(name)}"
            rows.append([f"[{code(name)}]({link})", prose(text_of(entry)[0])])
    return table([kind, "what it does"], rows)


def compositions() -> str:
    parts = ["## Compositions"]
    for name, entry in baselines.METHODS.items():
        if isinstance(entry, Composition):
            parts += [f"### {code(name)}", *method_section(entry)]
    return "\n\n".join(parts)


def methods_page(kind: str) -> str:
    classes = {}
    for name, entry in baselines.METHODS.items():
        if not isinstance(entry, Composition) and kind_of_method(entry) == kind:
            classes[name] = entry
    parts = [SYMBOLS, "## Shared options", REDECLARED]
    for base in SHARED:
        if kind_of_method(base) != kind:
            continue
        title = f"Options of {SHARED[base]}"
        if base not in (Objective, Control):
            title += f" ({codes(name for name, entry in classes.items() if issubclass(entry, base))})"
        parts += [f"{title}:", options_table(base)]
    for name, entry in classes.items():
        parts += [f"## {code(name)}", *method_section(entry)]
    return page(PAGES_OF_METHODS[kind].capitalize(), *parts)


def method_section(entry: type[Component] | Composition) -> Iterator[str]:
    clause, *paragraphs = text_of(entry)
    labeled = [paragraph for paragraph in paragraphs if LABEL.match(paragraph)]
    yield prose(clause)
    yield " ".join(facts(entry))
    for paragraph in paragraphs:
        if paragraph.startswith("    "):
            yield code_block(textwrap.dedent(paragraph))
        elif paragraph not in labeled:
            yield prose(paragraph)
    if not isinstance(entry, Composition):
        yield from options_of(entry)
    for paragraph in labeled:
        label, text = paragraph.split(": ", 1)
        yield f"**{label}:** {prose(text)}"


def facts(entry: type[Component] | Composition) -> Iterator[str]:
    """Yield the source of a method, the place of its code, and its needs."""
    yield f"Source: {prose(entry.source)}."
    if isinstance(entry, Composition):
        yield f"Short for {code(entry.spec)}."
        return
    file = f"{entry.__module__.replace('.', '/')}.py"
    yield f"Code: [{file}](../../{file})."
    component = entry()
    needed = set(component.needs)
    if isinstance(component, Objective) and component.kl_coef:
        needed.add("ref_logp")
    words = [meaning.partition(":")[0] for need, meaning in NEEDS.items() if need in needed]
    if overrides(component, "step_marks"):
        words.append("a forward pass of each mini-batch before its update")
    if words:
        yield f"Needs {' and '.join(words)}."
    if isinstance(component, Control) and overrides(component, "remembered"):
        yield "Its memory is saved in checkpoints."


def options_of(entry: type[Component]) -> Iterator[str]:
    """Yield the list of the options that a method declares or redeclares, if there are any."""
    declared_in: dict[str, type] = {}
    for base in reversed(entry.__mro__):
        declared_in |= dict.fromkeys(own_fields(base), base)
    lines = []
    for name, allowed, default in option_rows(entry):
        if declared_in[name] not in SHARED:
            lines.append(f"- {code(f'{name} = {default}')}: {allowed.replace(': ', ', ')}")
    if lines:
        yield "\n".join(lines)


def own_fields(cls: type) -> list[str]:
    """Return the fields that a dataclass declares itself."""
    if not dataclasses.is_dataclass(cls):
        return []
    annotated = inspect.get_annotations(cls)
    return [declared.name for declared in dataclasses.fields(cls) if declared.name in annotated]


def option_rows(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the allowed values and the default of each option."""
    hints = hints_of(cls)
    for declared in dataclasses.fields(cls):
        yield declared.name, allowed_values(declared, hints[declared.name]), in_yaml(default_of(declared))


def options_table(cls: type) -> str:
    """Return the table of the options that a class declares itself, with their meanings."""
    names, meanings = own_fields(cls), field_meanings(cls)
    rows = []
    for name, allowed, default in option_rows(cls):
        if name in names:
            rows.append([code(name), allowed, code(default), prose(meanings[name])])
    return table(["option", "allowed", "default", "meaning"], rows)


# docs/diagnose.md

VERDICTS = {
    "all": course.ANY,
    "falls": course.FALLING,
    "rises": course.RISING,
}  # the names that the page gives to groups


def causes_table() -> str:
    """Return the rules of `entrobench diagnose`, with the keys that they read in our logs and in those of others."""
    rows = []
    for rule in rules.RULES:
        groups, single = [], rule.verdicts
        for name, verdicts in VERDICTS.items():
            if verdicts <= single:
                groups.append(name)
                single -= verdicts
        keys = [keys_of_rule(rule, trainer) for trainer in TRAINERS]
        rows.append([rule.sentence, ", ".join([*groups, *sorted(single)]), *keys, prose(rule.remedy)])
    return table(["cause", "verdicts", *TRAINERS, "remedy"], rows)


def keys_of_rule(rule: rules.Rule, trainer: str) -> str:
    """Return the keys that a rule needs; a dash if the trainer logs no such curve."""
    if not all(signal_keys(name, trainer) for name in rule.needs):
        return "-"
    return codes(key for _, key in rules.needed_keys(rule, trainer))


# docs/packs.md


def promise_table() -> str:
    """Return what `entrobench verify` knows of each column of the leaderboard."""
    meanings = {
        verified.COUNTS: "recomputed from the answers; of a slim pack from its counts",
        verified.ANSWERS: "recomputed from the answers; of a slim pack stated by the author",
        verified.REPLAY: "stated by the author; `--replay` repeats it for its cell and its steps alone",
        verified.AUTHOR: "stated by the author",
    }
    rows = [[codes(verified.PROMISE[source]), meaning] for source, meaning in meanings.items()]
    return table(["columns", "what is known"], rows)


# Pages


def generated_pages() -> dict[Path, str]:
    """Return the text of each page; for a hand-written page, with its generated part replaced."""
    pages = {"configuration.md": configuration_page(), "commands.md": commands_page(), "metrics.md": metrics_page()}
    for kind, name in PAGES_OF_METHODS.items():
        pages[f"methods/{name}.md"] = methods_page(kind)
    methods_part = "\n\n".join([*map(methods_table, PAGES_OF_METHODS), compositions()])
    parts = {"methods.md": methods_part, "packs.md": promise_table(), "diagnose.md": causes_table()}
    for name, part in parts.items():
        pages[name] = with_part(name, (DOCS / name).read_text(), part)
    return {DOCS / name: text for name, text in pages.items()}


def with_part(name: str, text: str, part: str) -> str:
    """Return a hand-written page with another generated part."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"docs/{name} lacks the line {BEGIN!r} or {END!r} after it")
    return f"{before}{BEGIN}\n\n{part}\n\n{end}{after}"


def outdated_pages() -> list[Path]:
    """Return the pages that differ from the code, and pages in docs/methods/ that the code does not generate."""
    pages = generated_pages()
    differ = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    surplus = [path for path in sorted((DOCS / "methods").glob("*")) if path not in pages]
    return differ + surplus


def main() -> None:
    for path, text in generated_pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
