"""The Python interface: run a matrix and read its numbers, and write methods and tasks.

    import entrobench

    matrix = entrobench.load("smoke", "train.steps=10")
    matrix.plan()                # prints its estimated cost
    table = matrix.run()         # runs the missing cells, returns the leaderboard as a pandas DataFrame
    print(matrix.report())       # the path of the HTML page

`plan`, `run`, `leaderboard` and `report` do the same in one line: `entrobench.run("smoke", "train.steps=10")`.
A method is a subclass of `Objective`, `ClippedObjective` or `Control`, whose verbs see a `View`, or a `Composition` of
others. A task has the attributes of `Task`: it returns `Problem`s, judges responses with `Verdict`s and reads
`Answer`s; `boxed_answer` reads the answer in the last box. `number`, `numbers` and `choice` declare options and their
bounds. A mistake of the user raises `UserError`, and failed cells raise `CellsFailed`.

Each name is loaded on first use, so importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrobench.matrix import CellsFailed, Matrix, leaderboard, load, plan, report, run
    from harness.base.errors import UserError
    from harness.base.schema import choice, number, numbers
    from harness.base.task import Answer, Problem, Task, Verdict, Verifier, check_split
    from harness.method import ClippedObjective, Composition, Control, Objective, View
    from harness.verify.text import boxed_answer

    __version__: str

__all__ = [
    "Answer",
    "CellsFailed",
    "ClippedObjective",
    "Composition",
    "Control",
    "Matrix",
    "Objective",
    "Problem",
    "Task",
    "UserError",
    "Verdict",
    "Verifier",
    "View",
    "__version__",
    "boxed_answer",
    "check_split",
    "choice",
    "leaderboard",
    "load",
    "number",
    "numbers",
    "plan",
    "report",
    "run",
]

WHERE = {
    **dict.fromkeys(
        ("CellsFailed", "Matrix", "leaderboard", "load", "plan", "report", "run"),
        "entrobench.matrix",
    ),
    "UserError": "harness.base.errors",
    **dict.fromkeys(("choice", "number", "numbers"), "harness.base.schema"),
    **dict.fromkeys(("Answer", "Problem", "Task", "Verdict", "Verifier", "check_split"), "harness.base.task"),
    **dict.fromkeys(("ClippedObjective", "Composition", "Control", "Objective", "View"), "harness.method"),
    "boxed_answer": "harness.verify.text",
}


def __getattr__(name: str) -> Any:
    """Load a public name. Python calls this once for each: the value is then a global of this module."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("entrobench")
    elif name in WHERE:
        value = getattr(importlib.import_module(WHERE[name]), name)
    else:
        raise AttributeError(f"module 'entrobench' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
