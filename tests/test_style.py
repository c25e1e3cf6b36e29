"""Docstrings say what a thing returns or does."""

from __future__ import annotations

import ast

from places import REPOSITORY

TOPS = ("harness", "baselines", "tasks", "entrobench", "benchmarks")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_docstring_begins_with_a_relative_clause() -> None:
    found = {
        f"{path.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 1)}": text.splitlines()[0]
        for top in TOPS
        for path in (REPOSITORY / top).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))
    }
    assert len(found) > 300
    assert not {place: line for place, line in found.items() if line.startswith(("What ", "Of "))}
