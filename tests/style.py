"""A report on names, words and dense statements, for `make lint`; only a docstring that does not name its thing fails.

The report is to be read, not obeyed: where a rule makes code read worse, the code is right.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TOPS = ("harness", "baselines", "tasks", "entrobench")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ROUNDABOUT = ("What ", "Of ", "Returns ", "Who ", "Those ")
PLAIN = re.compile(
    r"\b(told|said|anew|nobody|somebody|whatever|is no|are no|those that|so many|beside|to be had|be it|stands)\b",
    re.IGNORECASE,
)
SHARED = {"main", "add", "call"}  # the entry of a script, and the two functions of each command


def texts() -> Iterator[tuple[str, str]]:
    """Yield all that people read: code with its messages, pages, configurations and templates."""
    for top in (*TOPS, "benchmarks", "studies", "docs", "configs"):
        for path in sorted((REPOSITORY / top).rglob("*")):
            if path.suffix in (".py", ".md", ".yaml", ".j2", ".js"):
                yield str(path.relative_to(REPOSITORY)), path.read_text()
    for name in ("README.md", "CONTRIBUTING.md", "set_up.py", "Makefile"):
        yield name, (REPOSITORY / name).read_text()


def simple_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield each simple statement, and the expressions of compound ones without the statements in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            yield node.test
        elif isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node


def is_dense(statement: ast.AST) -> bool:
    inner = list(ast.walk(statement))
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in inner)
    return comprehensions > 1 or sum(isinstance(node, ast.IfExp) for node in inner) > 1


def main() -> None:
    roundabout, dense, places = [], [], defaultdict(list)
    for path in (path for top in TOPS for path in sorted((REPOSITORY / top).rglob("*.py"))):
        name, tree = str(path.relative_to(REPOSITORY)), ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and (ast.get_docstring(node) or "").startswith(ROUNDABOUT):
                roundabout.append(f"{name}:{getattr(node, 'lineno', 1)}")
        dense += [f"{name}:{node.lineno}" for node in simple_statements(tree) if is_dense(node)]  # type: ignore[attr-defined]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    words = [
        f"{name}:{number}: {match[0]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := PLAIN.search(line))
    ]
    shared = [f"{name}: {', '.join(p)}" for name, p in places.items() if len(p) > 1 and name not in SHARED]
    report = {"words to avoid": words, "dense statements": dense, "public names of several modules": shared}
    for title, lines in report.items():
        if lines:
            print(f"{title} ({len(lines)}): " + "; ".join(lines[:10]))
    if roundabout:
        sys.exit("these docstrings do not name the thing: " + ", ".join(roundabout))


if __name__ == "__main__":
    main()
