"""The floors of the packages: a module imports from its own floor or lower ones, and never in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

from places import REPOSITORY

import entrobench

FLOORS = [
    "base config",
    "ranks cells",
    "methods tokens",
    "verify",
    "tasks baselines",
    "rollout",
    "train",
    "tracking",
    "matrix launch",
    "table",
    "runs",
    "page plan packs conformance diagnose theory elsewhere",
    "commands cli",
    "entrobench",
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms.split()}
PATHS = [path for top in ("entrobench", "harness", "tasks", "baselines") for path in (REPOSITORY / top).rglob("*.py")]
MODULES = {".".join(p.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): p for p in PATHS}


def imports(module: str) -> Iterator[str]:
    """Yield the modules that one imports: at its top, in its functions, and for types alone."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module == "entrobench":  # a lazy name of the public interface
            yield from (entrobench.WHERE[alias.name] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from (m if (m := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names)


def room(module: str) -> str:
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "harness" and rest else top


GRAPH = {module: set(imports(module)) - {module} for module in MODULES}
IMPORTS = sorted((module, other) for module, others in GRAPH.items() for other in others)


def test_rooms_have_a_floor() -> None:
    assert {room(module) for module in MODULES} - {"harness"} == FLOOR.keys()


def test_imports_go_down() -> None:
    assert not [f"{one} imports {other}" for one, other in IMPORTS if FLOOR[room(other)] > FLOOR[room(one)]]


def test_commands_are_imported_by_the_command_line_alone() -> None:
    shared = {"harness.commands.common", "harness.commands.parsing"}  # by the commands themselves
    of_commands = [(one, other) for one, other in IMPORTS if room(other) == "commands" and one != "harness.cli"]
    assert not [(one, other) for one, other in of_commands if room(one) != "commands" or other not in shared]


def test_text_files_are_in_utf8() -> None:
    """Without it, the locale of the machine decides."""
    bare = re.compile(r'\.read_text\(\)|(?<!files)\.write_text\((?!.*"utf-8")|\bopen\(.*(newline=""|"[aw]")\)')
    assert [str(path) for path in PATHS if bare.search(path.read_text())] == []


def test_imports_without_circles() -> None:
    rooms: dict[str, set[str]] = {}
    for module, others in GRAPH.items():
        rooms.setdefault(room(module), set()).update(map(room, others))
    for graph in (GRAPH, {name: others - {name} for name, others in rooms.items()}):
        TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
