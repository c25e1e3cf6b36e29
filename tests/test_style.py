"""Text and names: plain words, docstrings that name the thing, public names that a search finds once."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from places import REPOSITORY

TOPS = ("harness", "baselines", "tasks", "entrobench")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PLAIN = re.compile(
    r"\b(told|said|anew|nobody|somebody|whatever|is no|are no|those that|so many|beside|to be had|be it|stands)\b",
    re.IGNORECASE,
)
SHARED = {"main", "add", "call"}  # the entry of a script, and the two functions of each command


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for top in TOPS:
        for path in sorted((REPOSITORY / top).rglob("*.py")):
            yield path.relative_to(REPOSITORY), ast.parse(path.read_text())


def texts() -> Iterator[tuple[Path, str]]:
    """Yield all that people read: code with its messages, pages, configurations and templates."""
    for top in (*TOPS, "benchmarks", "docs", "configs"):
        for path in sorted((REPOSITORY / top).rglob("*")):
            if path.suffix in (".py", ".md", ".yaml", ".j2", ".js"):
                yield path.relative_to(REPOSITORY), path.read_text()
    for name in ("README.md", "CONTRIBUTING.md", "set_up.py", "Makefile"):
        yield Path(name), (REPOSITORY / name).read_text()


def test_words_are_those_of_an_engineer() -> None:
    odd = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if PLAIN.search(line)
    ]
    assert not odd, "\n".join(odd)


def test_docstrings_name_the_thing() -> None:
    first_lines = {
        f"{path}:{getattr(node, 'lineno', 1)}": text.splitlines()[0]
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))
    }
    assert len(first_lines) > 300
    roundabout = ("What ", "Of ", "Returns ", "Who ", "Those ")
    assert not {place: line for place, line in first_lines.items() if line.startswith(roundabout)}


def test_a_public_name_of_a_module_exists_once() -> None:
    places = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1 and name not in SHARED}


def expressions(tree: ast.Module) -> Iterator[tuple[int, ast.AST]]:
    """Yield each simple statement, and the expressions of compound ones without the statements in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            yield node.lineno, node.test
        elif isinstance(node, ast.For):
            yield node.lineno, node.iter
        elif isinstance(node, ast.withitem):
            yield node.context_expr.lineno, node.context_expr
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node.lineno, node


def test_a_statement_has_one_comprehension_and_one_condition_at_most() -> None:
    """Intermediate results have names."""
    dense, counted = [], 0
    for path, tree in modules():
        for line, expression in expressions(tree):
            inner = list(ast.walk(expression))
            comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in inner)
            counted += comprehensions
            if comprehensions > 1 or sum(isinstance(node, ast.IfExp) for node in inner) > 1:
                dense.append(f"{path}:{line}")
    assert counted > 500
    assert not dense, "\n".join(dense)
