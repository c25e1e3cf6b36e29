"""The public Python interface: run a matrix, read its numbers, and write methods and tasks.

    import entrobench

    matrix = entrobench.load("smoke", "train.steps=10")
    matrix.plan()                # prints the cost; runs nothing
    table = matrix.run()         # runs the missing cells, returns the leaderboard as a pandas DataFrame
    print(matrix.report())       # the path of the HTML page

`plan`, `run`, `leaderboard` and `report` do the same in one line: `entrobench.run("smoke", "train.steps=10")`.
`Method` is any method of the registry as a function of tensors, for a training loop of your own.
`Packs` reads matrices that others sent as files.

A method is a subclass of `Objective`, `ClippedObjective` or `Control`, whose verbs get a `View`, or a `Composition` of
other methods. A task has the attributes of `Task`: it returns `Problem`s, judges responses with `Verdict`s and reads
their `Answer`s; `boxed_answer` reads the last box. `number`, `numbers` and `choice` declare the allowed values of
options. A user's mistake raises `UserError`; if cells are not done at the end of a run, `CellsFailed` is raised.

Each name is loaded when it is first used, so importing this package takes no time.
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
    from harness.elsewhere.portable import Method
    from harness.methods.verbs import ClippedObjective, Composition, Control, Objective, View
    from harness.verify.text import boxed_answer

    __version__: str

__all__ = [
    "Answer",
    "CellsFailed",
    "ClippedObjective",
    "Composition",
    "Control",
    "Matrix",
    "Method",
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
    "Method": "harness.elsewhere.portable",
    "Packs": "entrobench.packs",
    "UserError": "harness.base.errors",
    **dict.fromkeys(("choice", "number", "numbers"), "harness.base.schema"),
    **dict.fromkeys(("Answer", "Problem", "Task", "Verdict", "Verifier", "check_split"), "harness.base.task"),
    **dict.fromkeys(("ClippedObjective", "Composition", "Control", "Objective", "View"), "harness.methods.verbs"),
    "boxed_answer": "harness.verify.text",
}


def __getattr__(name: str) -> Any:
    """Load a name of this package; Python calls this once for each name."""
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
