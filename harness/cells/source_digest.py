"""Hashes of source code: by them, numbers that an earlier version of a method or a task made are recognized.

The digest of a class has two parts, `TEXT-TREE`. The second is of the syntax trees without comments and docstrings, so
that a corrected word does not make days of GPU work run again. The first is of the files as they are: records of
earlier versions of entrobench hold that part alone.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType, ModuleType

from harness.base import files, identities

# Packages that count for no component: a version, the commit or a hash of its own says which source they had.
NO_SOURCES = {"harness", "entrobench", *sys.stdlib_module_names}
INSTALLED = {"site-packages", "dist-packages"}  # directories
# Fields of a syntax tree that change nothing, or that not every version of Python has.
IGNORED_FIELDS = {"kind", "type_comment", "type_ignores"}

Stamp = tuple[str, int, int]  # the path of a file, the time of its last change in nanoseconds, and its size


class SourceDigests:
    """The digests of classes by their source as it is on disk now; computed again only after an edit.

    A matrix asks for the same few classes thousands of times.
    """

    def __init__(self) -> None:
        self.known: dict[type, tuple[dict[str, Stamp], str]] = {}

    def of(self, cls: type) -> str:
        """Return the digest of a class.

        It covers the modules of the class and of its base classes, and the modules that these import when they are
        loaded, as far as they are methods, tasks, or in the same package or directory. It does not cover the harness,
        Python's own modules and other installed packages: their versions and the commit are recorded.
        """
        if cls in self.known:
            stamps, digest = self.known[cls]
            if all(stamp(name) == before for name, before in stamps.items()):
                return digest
        names = module_names(cls)
        # Before the files are read, so that the next call sees an edit in between.
        stamps = {name: stamp(name) for name in names}
        texts, trees = {}, {}
        for name in names:
            texts[name], trees[name] = module_digests(name)
        digest = f"{identities.key(texts)}-{identities.key(trees)}"
        self.known[cls] = stamps, digest
        return digest


def same_source(recorded: str | None, present: str | None) -> bool:
    """Return whether two digests of a component are of the same code, comments and docstrings aside."""
    if recorded is None or present is None:
        return recorded == present
    recorded_text, _, recorded_tree = recorded.partition("-")
    present_text, _, present_tree = present.partition("-")
    if recorded_tree and present_tree:
        return recorded_tree == present_tree
    return recorded_text == present_text


def edited_components(recorded: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the names of the components whose code differs."""
    names = recorded.keys() | present.keys()
    return sorted(name for name in names if not same_source(recorded.get(name), present.get(name)))


def harness_digest() -> str:
    """Return the hash of the source of the harness as it is on disk now."""
    root = Path(__file__).parents[1]
    digests = {}
    for path in root.rglob("*.py"):
        digests[str(path.relative_to(root))] = text_digest(*stamp_of(path))
    return identities.hash_of(digests)


# Which modules count


def module_names(cls: type) -> list[str]:
    """Return the names of the modules whose source counts for a class."""
    class_modules = dict.fromkeys(base.__module__ for base in cls.__mro__)
    names = [name for name in class_modules if top(name) not in NO_SOURCES]
    packages = {"baselines", "tasks", *map(top, names)}
    homes = {package_home(package) for package in packages} - {None}
    for name in names:  # the list grows while it is walked: imports of imports count too
        for imported in imported_modules(name, *stamp(name)):
            counts = top(imported) in packages or package_home(top(imported)) in homes
            if counts and imported not in names and top(imported) not in NO_SOURCES:
                names.append(imported)
    return names


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


# The stamp of the file is part of the cache's key here and below, so an edited file is read again.
@functools.cache
def imported_modules(name: str, path: str, mtime_ns: int, size: int) -> list[str]:
    """Return the modules that define the names that a module imported when it was loaded."""
    try:
        tree = ast.parse(Path(path).read_bytes() if path.endswith(".py") else "")
    except (SyntaxError, ValueError):  # an editor is writing the file; its own digest changes anyway
        return []
    namespace = vars(sys.modules[name]) if name in sys.modules else {}
    modules: list[str] = []
    for node in ast.walk(tree):
        # A name that is not in the namespace is imported for type checkers only, or when a function is called.
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or top(alias.name)) in namespace:
                    modules.append(alias.name)
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), namespace.get("__package__"))
            for alias in node.names:
                bound_name = alias.asname or alias.name
                if bound_name in namespace:
                    modules.append(defining_module(namespace[bound_name], source))
    return list(dict.fromkeys(modules))


def defining_module(value: object, source: str) -> str:
    """Return the module that defines an imported value; for a constant, the module that it was imported from."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, type | FunctionType):
        return value.__module__
    return source


# The digests of a file


def module_digests(name: str) -> tuple[str, str]:
    """Return the digests of a module's text and of its syntax tree, as its file is on disk now."""
    changed = stamp(name)
    if not changed[0]:
        return "no file", "no file"
    return text_digest(*changed), tree_digest(*changed)


@functools.cache
def text_digest(path: str, mtime_ns: int, size: int) -> str:
    return files.sha256_of(Path(path))


@functools.cache
def tree_digest(path: str, mtime_ns: int, size: int) -> str:
    """Return the hash of a file's syntax tree without docstrings; of its text if it cannot be parsed."""
    content = Path(path).read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # not Python, or an editor is writing it
        return text_digest(path, mtime_ns, size)
    return sha256(canonical(tree).encode()).hexdigest()


def canonical(node: ast.AST) -> str:
    """Write a syntax tree in a way that does not depend on the version of Python.

    `ast.dump` and `ast.unparse` do: they show fields that later versions have added, and quote differently. So empty
    fields, as which a new field appears in code that does not use it, are left out here.
    """
    if isinstance(node, ast.Constant):
        # Not `repr`: the characters that it escapes depend on the Unicode tables of this version of Python.
        return f"Constant({node.value!a})"
    parts = []
    for field, value in ast.iter_fields(node):
        if field in IGNORED_FIELDS or value is None:
            continue
        if isinstance(node, ast.JoinedStr):
            value = merged_constants(value)
        if isinstance(node, ast.FormattedValue) and field == "format_spec" and not merged_constants(value.values):
            continue
        if isinstance(value, list):
            items = [canonical_item(item) for item in value if not is_docstring(item)]
            if items:
                parts.append(f"{field}=[{', '.join(items)}]")
        else:
            parts.append(f"{field}={canonical_item(value)}")
    return f"{type(node).__name__}({', '.join(parts)})"


def canonical_item(value: object) -> str:
    return canonical(value) if isinstance(value, ast.AST) else ascii(value)


def is_docstring(node: object) -> bool:
    """Return whether a statement is a string alone, which does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def merged_constants(values: list[ast.expr]) -> list[ast.expr]:
    """Join neighboring texts of an f-string, which versions of Python divide differently."""
    merged: list[ast.expr] = []
    text = ""
    for value in values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        if text:
            merged.append(ast.Constant(text))
        merged.append(value)
        text = ""
    if text:
        merged.append(ast.Constant(text))
    return merged
