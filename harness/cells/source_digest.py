"""Digests of source code, which are part of a cell's identity: an edit of a method or a task makes another cell.

The digest of a class or a function covers its definition and all that this uses of its module, of other methods and
tasks, and of modules in the same package or directory. Comments, docstrings and the rest of these modules are left out:
a corrected word does not make days of GPU work run again, nor does a second method in the same file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType

from harness.base import files, identities

HARNESS = "harness"
# Packages that count for no component: a version, the commit or a hash of its own says which source they had.
NO_SOURCES = {HARNESS, "entrobench", *sys.stdlib_module_names}
INSTALLED = {"site-packages", "dist-packages"}  # directories
# Fields of a syntax tree that change nothing, or that not every version of Python has.
IGNORED_FIELDS = {"kind", "type_comment", "type_ignores"}
ALL = "*"  # in place of a name: everything in a module
DIGITS = 16  # the digests of earlier versions, of whole files, had 12 or 25

Stamp = tuple[str, int, int]  # the path of a file, the time of its last change in nanoseconds, and its size


def source_digest(part: type | FunctionType) -> str:
    """Return the digest of a class or a function by its source as it is on disk now."""
    defined = part.__mro__ if isinstance(part, type) else (part,)
    modules = dict.fromkeys(each.__module__ for each in defined)
    packages = {"baselines", "tasks", *(top(name) for name in modules if top(name) not in NO_SOURCES)}
    homes = {package_home(package) for package in packages} - {None}

    def counts(module: str) -> bool:
        package = top(module)
        return package not in NO_SOURCES and (package in packages or package_home(package) in homes)

    used: dict[str, dict[Statement, None]] = {}  # by module
    # The list grows while it is walked: a name uses other names.
    names = [(each.__module__, each.__qualname__.partition(".")[0]) for each in defined]
    for number, (module, name) in enumerate(names):
        if not counts(module):
            continue
        source = parsed(module, *stamp(module))
        if number < len(defined) and name not in source.bound:
            name = ALL  # such as a class that a function made
        for statement in source.statements_of(name):
            if statement not in used.setdefault(module, {}):
                used[module][statement] = None
                names += [use for use in statement.uses if use not in names]
    texts = {}
    for module, statements in used.items():
        in_order = sorted(statements, key=lambda statement: statement.place)
        texts[module] = [statement.text for statement in in_order]
    return identities.hash_of(texts)[:DIGITS]


def edited_components(recorded: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the names of the components whose digests differ."""
    names = recorded.keys() | present.keys()
    return sorted(name for name in names if recorded.get(name) != present.get(name))


def harness_digest() -> str:
    """Return the hash of the source of the harness as it is on disk now."""
    root = Path(__file__).parents[1]
    digests = {str(path.relative_to(root)): text_digest(*stamp_of(path)) for path in root.rglob("*.py")}
    return identities.hash_of(digests)


def top(name: str) -> str:
    """Return the package of a module."""
    return name.partition(".")[0]


def package_home(package: str) -> Path | None:
    """Return the directory that holds a package; None for the directory of installed packages."""
    path = Path(stamp(package)[0])
    if not path.name:
        return None
    is_package = path.name == "__init__.py"  # otherwise a single module, which lies in the directory itself
    folder = path.parents[1] if is_package else path.parent
    if INSTALLED & set(folder.parts):
        return None
    return folder


def stamp(name: str) -> Stamp:
    """Return the stamp of a module's file; an empty path if it has none."""
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    try:
        return stamp_of(Path(path))
    except OSError:
        return "", 0, 0


def stamp_of(path: Path) -> Stamp:
    status = os.stat(path)
    return str(path), status.st_mtime_ns, status.st_size


# The statements of a module


@dataclass(frozen=True)
class Statement:
    """A statement of a module, or one name that it imports."""

    place: tuple[int, int]
    text: str
    uses: frozenset[tuple[str, str]]  # modules and names in them


@dataclass(frozen=True)
class Module:
    """The statements at the top level of a module."""

    bound: dict[str, list[Statement]] = field(default_factory=dict)  # by the names that they bind
    others: list[Statement] = field(default_factory=list)  # which the import of the module runs

    def statements_of(self, name: str) -> Iterator[Statement]:
        """Yield the statements that bind a name, or all of them; those that bind none always count."""
        yield from self.others
        for bound_name, statements in self.bound.items():
            if name in (bound_name, ALL):
                yield from statements


# The stamp of the file is part of the cache's key here and below, so an edited file is read again.
@functools.cache
def parsed(name: str, path: str, mtime_ns: int, size: int) -> Module:
    """Return the statements of a module; its whole text is one statement if it cannot be parsed."""
    try:
        tree = ast.parse(Path(path).read_bytes() if path.endswith(".py") else "")
    except (SyntaxError, ValueError):  # an editor is writing it
        return Module(others=[Statement((0, 0), text_digest(path, mtime_ns, size), frozenset())])
    module = Module()
    for node in tree.body:
        if is_docstring(node) or is_for_type_checkers(node):
            continue
        for bound_name, statement in imports_in(name, node):
            if bound_name == ALL:
                module.others.append(statement)
            else:
                module.bound.setdefault(bound_name, []).append(statement)
        if not isinstance(node, ast.Import | ast.ImportFrom):
            used_names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
            text = hashlib.sha256(canonical_text(node).encode()).hexdigest()
            place = node.lineno, node.col_offset
            statement = Statement(place, text, frozenset((name, used) for used in used_names))
            bound_names = names_bound_by(node)
            for bound_name in bound_names:
                module.bound.setdefault(bound_name, []).append(statement)
            if not bound_names:
                module.others.append(statement)
    return module


def imports_in(module: str, node: ast.stmt) -> Iterator[tuple[str, Statement]]:
    """Yield the imports of a statement, those in an `if` or a `try` included, with the names that they bind."""
    for part in ast.walk(node) if isinstance(node, ast.If | ast.Try) else [node]:
        if isinstance(part, ast.Import | ast.ImportFrom):
            for number, alias in enumerate(part.names):
                bound_name = alias.asname or (top(alias.name) if isinstance(part, ast.Import) else alias.name)
                yield bound_name, imported(module, part, alias, (part.lineno, number))


def imported(module: str, node: ast.Import | ast.ImportFrom, alias: ast.alias, place: tuple[int, int]) -> Statement:
    if isinstance(node, ast.Import):
        source, use = alias.name, (alias.name, ALL)
    else:
        package = vars(sys.modules[module])["__package__"] if node.level else None
        source = resolve_name("." * node.level + (node.module or ""), package)
        inner = f"{source}.{alias.name}"
        use = (inner, ALL) if inner in sys.modules else (source, alias.name)
    # A module of the harness may get another name, and its source counts for no component.
    origin = HARNESS if top(source) == HARNESS else source
    return Statement(place, f"import {origin} {alias.name} {alias.asname}", frozenset([use]))


def names_bound_by(node: ast.stmt) -> list[str]:
    """Return the names that a statement binds; none if it may do anything else, too."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if len(names) == len(targets) else []


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@functools.cache
def text_digest(path: str, mtime_ns: int, size: int) -> str:
    return files.sha256_of(Path(path))


def canonical_text(node: ast.AST) -> str:
    """Write a syntax tree without docstrings, in a way that does not depend on the version of Python.

    `ast.dump` and `ast.unparse` do: they show fields that later versions have added, and quote differently. So empty
    fields, as which a new field appears in code that does not use it, are left out here.
    """
    if isinstance(node, ast.Constant):
        # Not `repr`: the characters that it escapes depend on the Unicode tables of this version of Python.
        return f"Constant({node.value!a})"
    parts = []
    for name, value in ast.iter_fields(node):
        if name in IGNORED_FIELDS or value is None:
            continue
        if isinstance(node, ast.JoinedStr):
            value = merged_constants(value)
        if isinstance(node, ast.FormattedValue) and name == "format_spec" and not merged_constants(value.values):
            continue
        if isinstance(value, list):
            items = [canonical_item(item) for item in value if not is_docstring(item)]
            if items:
                parts.append(f"{name}=[{', '.join(items)}]")
        else:
            parts.append(f"{name}={canonical_item(value)}")
    return f"{type(node).__name__}({', '.join(parts)})"


def canonical_item(value: object) -> str:
    return canonical_text(value) if isinstance(value, ast.AST) else ascii(value)


def is_docstring(node: object) -> bool:
    """Return whether a statement is a string alone, which does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def merged_constants(values: Iterable[ast.expr]) -> list[ast.expr]:
    """Join neighboring texts of an f-string, which versions of Python divide differently."""
    merged: list[ast.expr] = []
    for is_text, neighbors in itertools.groupby(values, key=lambda value: isinstance(value, ast.Constant)):
        if not is_text:
            merged += neighbors
        elif text := "".join(str(value.value) for value in neighbors if isinstance(value, ast.Constant)):
            merged.append(ast.Constant(text))
    return merged
