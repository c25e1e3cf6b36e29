"""Digests of sources: they follow edits of code, in all modules that count, and only of code."""

from __future__ import annotations

import ast
import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY

import baselines
import tasks
from harness import config, matrix
from harness.cells import source_digest as source_digests
from harness.cells.source_digest import Module, source_digest
from harness.cells.spec import changed_parts
from harness.methods.composition import method_classes

BASE = "class Base:\n    pass\n"
CHILD = "from source_base import Base\n\nclass Child(Base):\n    pass\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("source_base", "source_child"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "source_base.py").write_text(BASE)
    (tmp_path / "source_child.py").write_text(CHILD)
    return tmp_path


def test_source_digest_after_edits_of_a_class_and_its_base(modules: Path) -> None:
    import source_base  # type: ignore[import-not-found]
    import source_child  # type: ignore[import-not-found]

    edited_base, edited_child = BASE.replace("pass", "x = 1"), CHILD.replace("pass", "y = 1")
    base, child = source_digest(source_base.Base), source_digest(source_child.Child)
    assert base != child
    (modules / "source_child.py").write_text(edited_child)
    edited = source_digest(source_child.Child)
    assert (source_digest(source_base.Base) == base, edited != child) == (True, True)
    (modules / "source_base.py").write_text(edited_base)
    assert source_digest(source_base.Base) != base
    assert source_digest(source_child.Child) not in (child, edited)
    (modules / "source_child.py").write_text(CHILD)
    (modules / "source_base.py").write_text(BASE)
    assert (source_digest(source_base.Base), source_digest(source_child.Child)) == (base, child), "the edit is undone"
    (modules / "source_base.py").unlink()
    assert source_digest(source_base.Base) != base


TWO = """import math
from entrobench import Control
BOUND = 1.0
OTHER = 2.0

def clipped(x):
    return min(x, BOUND)

class First(Control):
    def weights(self, old, advantages_T, batch):
        return clipped(advantages_T)

class Second(Control):
    share: float = OTHER

METHODS = {"first": First, "second": Second}
"""


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("BOUND = 1.0", "BOUND = 1.5", {"First"}),
        ("min(x", "max(x", {"First"}),
        ("OTHER = 2.0", "OTHER = 2.5", {"Second"}),
        ("share: float", "part: float", {"Second"}),
        ("import math\n", "import math\nprint('imported')\n", {"First", "Second"}),
        ("import math\n", "import cmath\n", set()),
        ("METHODS = {", "class Third(Control):\n    pass\n\nMETHODS = {'third': Third, ", set()),
    ],
)
def test_source_digest_of_two_methods_of_one_file(
    before: str, after: str, changed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "source_two", raising=False)
    (tmp_path / "source_two.py").write_text(TWO)
    import source_two  # type: ignore[import-not-found]

    digests = {cls: source_digest(cls) for cls in (source_two.First, source_two.Second)}
    assert len({*digests.values()}) == 2
    assert before in TWO
    (tmp_path / "source_two.py").write_text(TWO.replace(before, after, 1))
    assert {cls.__name__ for cls, digest in digests.items() if source_digest(cls) != digest} == changed


HELPED = """import sys, torch, yaml
from collections.abc import Mapping
from typing import TYPE_CHECKING
import baselines.clip_b as clips
from entrobench import Control
from harness.methods.verbs import View
from source_helpers import CONSTANT, function
import source_unused
if TYPE_CHECKING:
    from source_unseen import Type
try:
    import source_tried
except ImportError:
    from source_absent import source_tried

class Helped(Control):
    share = CONSTANT, source_tried.CONSTANT, clips.ClipB, yaml.safe_load
    def weights(self, old, advantages_T, batch):
        import source_late
        return function()
"""


def test_source_digest_after_edits_of_modules_that_a_class_uses(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what is used of methods and of modules next to a plugin, and no installed packages."""
    names = ("source_helpers", "source_deep", "source_tried", "source_late", "source_unseen", "source_unused")
    for name in (*names, "source_helped"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in names:
        (modules / f"{name}.py").write_text("CONSTANT = 1\n")
    helpers = "from source_deep import CONSTANT\nimport numpy\ndef function(): return numpy.e\n"
    (modules / "source_helpers.py").write_text(helpers)
    (modules / "source_helped.py").write_text(HELPED)
    import source_helped  # type: ignore[import-not-found]

    first = source_digest(source_helped.Helped)
    for name, counts in zip(names, (True, True, True, False, False, False), strict=True):
        text = (modules / f"{name}.py").read_text()
        (modules / f"{name}.py").write_text(text.replace("= 1", "= 2").replace("numpy.e", "numpy.pi"))
        second = source_digest(source_helped.Helped)
        assert (second != first) == counts, name
        first = second
    (modules / "source_helped.py").write_text("half a (")
    assert source_digest(source_helped.Helped) != first


def test_source_digests_of_all_methods_and_tasks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    classes: list[type] = [*method_classes(baselines.METHODS).values(), *tasks.TASKS.values()]
    before = {cls: source_digest(cls) for cls in classes}
    assert len({*before.values()}) == len(classes)
    parsed = source_digests.parsed

    def edited(name: str, *stamp: Any) -> source_digests.Module:
        module = parsed(name, *stamp)
        more = source_digests.Statement((0, 0), "another", frozenset())
        return Module(module.bound, [*module.others, more]) if name == "baselines.clip_b" else module

    monkeypatch.setattr(source_digests, "parsed", edited)
    changed = {cls for cls in classes if source_digest(cls) != before[cls]}
    above = {cls for cls in classes if "baselines.clip_b" in {base.__module__ for base in cls.__mro__}}
    assert changed == above | {baselines.ClipServo}
    assert len(above) > 1


def test_cell_sources() -> None:
    options = ["methods=[grpo,'ppo+clip_v(share=0.1)']", "eval.tasks=[countdown,gsm8k,'countdown(count=4)']"]
    grpo, other = matrix.cells(config.load_config("demo", ["seeds=[0]", *options]))
    assert grpo.sources.keys() == {"grpo", "countdown", "gsm8k"}
    assert other.sources.keys() == {"ppo", "clip_v", "countdown", "gsm8k"}
    assert other.sources["clip_v"] == source_digest(method_classes(baselines.METHODS)["clip_v"])


def test_cells_after_an_edit_of_a_task_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the cells of that task change; its problems count as its code does."""
    plugin = shutil.copytree(REPOSITORY / "tests/tasks/plugin_example/sums_example", tmp_path / "sums_example")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums_example", raising=False)
    overrides = ["methods=[grpo]", "plugins=[sums_example]", "tasks=[countdown,example_sums]"]
    settings = config.load_config("smoke", overrides)
    ours, theirs = matrix.cells(settings)
    assert (ours.sources.keys(), theirs.sources.keys()) == ({"grpo", "countdown"}, {"grpo", "example_sums"})
    assert ("problems" in ours.identity, theirs.identity["problems"].keys()) == (False, {"example_sums"})
    with open(plugin / "__init__.py", "a") as module:
        module.write("print(end='')\n")
    same, edited = matrix.cells(settings)
    assert (same.id == ours.id, edited.id == theirs.id) == (True, False)
    assert changed_parts(theirs.identity, edited.identity) == ["example_sums"]
    problems = sys.modules["sums_example"].Sums.problems
    monkeypatch.setattr(sys.modules["sums_example"].Sums, "problems", lambda *given: problems(*given)[::-1])
    same, other = matrix.cells(settings)
    assert (same.id == ours.id, other.id == edited.id) == (True, False)
    assert changed_parts(other.identity, edited.identity) == ["example_sums"]
    monkeypatch.delitem(sys.modules, "sums_example")


# What is an edit


CODE = """class Base:
    def share(self, n):
        return f"{n:.3f} of {self!r}"
"""
SAME_CODE = """'What the module is.'
# why it is


class Base:
    'What the class is.'

    def share(self, n):
        'What the function returns.'
        return (
            f"{n:.3f} "
            f'of {self!r}'
        )  # and why
    "a string alone"
"""


def test_source_digest_of_other_comments_docstrings_and_layout(modules: Path) -> None:
    (modules / "source_base.py").write_text(CODE)
    import source_base

    before = source_digest(source_base.Base)
    (modules / "source_base.py").write_text(SAME_CODE)
    assert source_digest(source_base.Base) == before
    for old, new in ((".3f", ".2f"), ("of ", "in ")):
        (modules / "source_base.py").write_text(CODE.replace(old, new))
        assert source_digest(source_base.Base) != before


ALL_SYNTAX = r"""
from __future__ import annotations
import os.path as p, sys
from . import x
async def f(a, /, b=1, *c: int, d=None, e, **g) -> str:
    async with a as b, c: await d
    async for _ in a: yield {**a, 'b': 1, **c}
    global h; nonlocal_ = lambda *, k=(1, 2.5, 3j, b"\xff", ..., True): not k
    return f"{a} b {{c}} {d!r:>{e}.{g}} {a=} {b:%d-%m}" "e" f"" u"\u00e9\U000e0100" 'é'
class C(B, metaclass=M):
    x: int
    y: str = 'z'
    def m(self):
        'a docstring'
    @p.q
    def n(self):
        try: raise E from None
        except (A, B) as e: pass
        else: del a[1:2, ...], b
        finally: assert a if b else c, d
        while a < b <= c: continue
        for i, *j in k: break
        else: a += -1 if (n := 2) else +3
        match a:
            case {'b': [1, *_, C(x=None)], **r} | -1.5 if s: pass
            case None | 'x' as t: pass
        with (a as b): print([i for i in j if i if not i], {1, 2}, *a, **b)
"""


def test_canonical_text_in_every_version_of_python() -> None:
    """The tree is written by hand, since the output of ast.dump and ast.unparse depends on the version."""
    tree = source_digests.canonical_text(ast.parse(ALL_SYNTAX))
    assert hashlib.sha256(tree.encode()).hexdigest()[:12] == "7727531d579e"
    assert tree.isascii()
    assert "docstring" not in tree
