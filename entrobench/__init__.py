"""The door for people: run a matrix and read its numbers from Python, and write methods and tasks.

    import entrobench

    matrix = entrobench.load("smoke", "train.steps=10")
    matrix.plan()                # prints what it would cost
    table = matrix.run()         # runs what is missing, returns the leaderboard as a pandas DataFrame
    print(matrix.report())       # the path of the HTML page

`plan`, `run`, `leaderboard` and `report` do the same in one line: `entrobench.run("smoke", "train.steps=10")`.
`Packs` reads matrices that others sent as files.
A method is a subclass of `Objective`, `ClippedObjective` or `Control`, whose verbs see a `View`, or a `Composition` of
others; a task has the attributes of `Task`, gives `Problem`s, judges with `Verdict`s and reads `Answer`s, for which
`boxed_answer` reads the last box; `number`, `numbers` and `choice` declare what their options allow. A mistake in what
you ask for is a `UserError`, and cells that do not end well are `CellsFailed`.

What is named here is loaded when it is first used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrobench.matrix import CellsFailed, Matrix, leaderboard, load, plan, report, run
    from entrobench.packs import Packs
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
    "Packs",
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
    "Packs": "entrobench.packs",
    "UserError": "harness.base.errors",
    **dict.fromkeys(("choice", "number", "numbers"), "harness.base.schema"),
    **dict.fromkeys(("Answer", "Problem", "Task", "Verdict", "Verifier", "check_split"), "harness.base.task"),
    **dict.fromkeys(("ClippedObjective", "Composition", "Control", "Objective", "View"), "harness.method"),
    "boxed_answer": "harness.verify.text",
}


def __getattr__(name: str) -> Any:
    """Loads what is named; Python asks here for each name once."""
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
