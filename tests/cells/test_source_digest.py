"""Digests of sources: they follow edits of code, in all modules that count, and only of code."""

from __future__ import annotations

import ast
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

import baselines
import tasks
from harness import config, matrix
from harness.cells import source_digest
from harness.cells.source_digest import SourceDigests, edited_components, same_source
from harness.methods.composition import method_classes


def digest_of(cls: type) -> str:
    return SourceDigests().of(cls)


BASE = "class Base:\n    pass\n"
CHILD = "from {base} import Base\n\nclass Child(Base):\n    pass\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("source_base", "source_child"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "source_base.py").write_text(BASE)
    (tmp_path / "source_child.py").write_text(CHILD.format(base="source_base"))
    return tmp_path


def test_the_hash_of_a_class_follows_its_module_and_those_it_inherits_from(modules: Path) -> None:
    import source_base  # type: ignore[import-not-found]
    import source_child  # type: ignore[import-not-found]

    base, child = digest_of(source_base.Base), digest_of(source_child.Child)
    assert base != child
    (modules / "source_child.py").write_text(CHILD.format(base="source_base") + "EDITED = 1\n")
    assert digest_of(source_base.Base) == base
    edited = digest_of(source_child.Child)
    assert edited != child
    (modules / "source_base.py").write_text(BASE + "EDITED = 1\n")
    assert digest_of(source_base.Base) != base
    assert digest_of(source_child.Child) not in (child, edited)
    (modules / "source_child.py").write_text(CHILD.format(base="source_base"))
    (modules / "source_base.py").write_text(BASE)
    assert (digest_of(source_base.Base), digest_of(source_child.Child)) == (base, child), "an edit that is undone"
    (modules / "source_base.py").unlink()
    assert digest_of(source_base.Base) != base


HELPED = """import sys, torch, yaml
from collections.abc import Mapping
from typing import TYPE_CHECKING
import baselines.clip_b as clips
from entrobench import Control
from harness.methods.verbs import View
from source_helpers import CONSTANT, function
if TYPE_CHECKING:
    from source_unseen import Type

class Helped(Control):
    def weights(self, old, advantages_T, batch):
        import source_late
"""


def test_the_hash_of_a_class_follows_what_its_module_imports(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count methods and the modules next to a plugin, for any imported name, and no installed packages."""
    names = ("source_helpers", "source_deep", "source_late", "source_unseen")
    for name in (*names, "source_helped"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in names:
        (modules / f"{name}.py").write_text("CONSTANT = 1\n")
    (modules / "source_helpers.py").write_text("from source_deep import CONSTANT\nimport numpy\ndef function(): pass\n")
    (modules / "source_helped.py").write_text(HELPED)
    import source_helped  # type: ignore[import-not-found]

    asked: set[str] = set()
    digest = source_digest.module_digests

    def heard(name: str) -> tuple[str, str]:
        asked.add(name)
        return digest(name)

    monkeypatch.setattr(source_digest, "module_digests", heard)
    first = digest_of(source_helped.Helped)
    assert asked == {"source_helped", "source_helpers", "source_deep", "baselines.clip_b"}
    for name in names:
        (modules / f"{name}.py").write_text((modules / f"{name}.py").read_text() + "EDITED = 1\n")
        second = digest_of(source_helped.Helped)
        assert (second != first) == (name in asked)
        first = second
    (modules / "source_helped.py").write_text("half a (")
    assert digest_of(source_helped.Helped) != first


def test_what_methods_and_tasks_have_of_others_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    classes: list[type] = [*method_classes(baselines.METHODS).values(), *tasks.TASKS.values()]
    before = {cls: digest_of(cls) for cls in classes}
    assert len(set(before.values())) == len({cls.__module__ for cls in classes})
    digest = source_digest.module_digests
    for module in ("baselines.clip_b", "tasks.math", "harness.methods.verbs"):

        def edited(name: str, module: str = module) -> tuple[str, str]:
            text, tree = digest(name)
            return text, tree + "x" * (name == module)

        monkeypatch.setattr(source_digest, "module_digests", edited)
        changed = {cls for cls in classes if digest_of(cls) != before[cls]}
        above = {cls for cls in classes if module in {base.__module__ for base in cls.__mro__}}
        calling = {baselines.ClipServo} if module == "baselines.clip_b" else set()
        assert changed == (set() if module == "harness.methods.verbs" else above | calling)
        assert len(above) > 1


def test_a_cell_names_its_components() -> None:
    options = ["methods=[grpo,'ppo+clip_v(share=0.1)']", "eval.tasks=[countdown,gsm8k,'countdown(count=4)']"]
    grpo, other = matrix.cells(config.load_config("demo", ["seeds=[0]", *options]))
    assert grpo.components.keys() == {"grpo", "countdown", "gsm8k"}
    assert other.components.keys() == {"ppo", "clip_v", "countdown", "gsm8k"}
    assert other.sources["clip_v"] == digest_of(method_classes(baselines.METHODS)["clip_v"])


def test_a_task_of_a_plugin_is_a_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = shutil.copytree(REPOSITORY / "tests/tasks/plugin_example/sums_example", tmp_path / "sums_example")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums_example", raising=False)
    settings = config.load_config(
        "smoke", ["methods=[grpo]", "plugins=[sums_example]", "tasks=[countdown,example_sums]"]
    )
    ours, theirs = matrix.cells(settings)
    assert (ours.components.keys(), theirs.components.keys()) == ({"grpo", "countdown"}, {"grpo", "example_sums"})
    before = ours.sources, theirs.sources
    with open(plugin / "__init__.py", "a") as module:
        module.write("EDITED = 1\n")
    assert ours.sources == before[0]
    assert edited_components(before[1], theirs.sources) == ["example_sums"]
    monkeypatch.delitem(sys.modules, "sums_example")


@pytest.mark.processes
def test_sources_need_no_torch() -> None:
    code = "import sys; from harness import config, matrix; "
    code += "print(*matrix.cells(config.load_config('smoke'))[1].sources.values()); assert 'torch' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said == list(matrix.cells(config.load_config("smoke"))[1].sources.values())


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


def test_comments_docstrings_and_layout_are_no_edit(modules: Path) -> None:
    (modules / "source_base.py").write_text(CODE)
    import source_base

    before = digest_of(source_base.Base)
    (modules / "source_base.py").write_text(SAME_CODE)
    after = digest_of(source_base.Base)
    assert before != after, "the texts differ"
    assert same_source(before, after)
    assert edited_components({"mine": before}, {"mine": after}) == []
    (modules / "source_base.py").write_text(CODE.replace(".3f", ".2f"))
    assert not same_source(before, digest_of(source_base.Base))
    (modules / "source_base.py").write_text(CODE.replace("of ", "in "))
    assert not same_source(before, digest_of(source_base.Base))


def test_records_of_earlier_versions_hold_the_digest_of_the_text_alone(modules: Path) -> None:
    import source_base

    assert (modules / "source_base.py").exists()
    present = digest_of(source_base.Base)
    text, _, tree = present.partition("-")
    assert (len(text), len(tree)) == (12, 12)
    assert same_source(text, present)
    assert not same_source(tree, present)
    assert edited_components({"mine": text}, {"mine": present}) == []
    assert edited_components({"mine": "0123456789ab"}, {"mine": present}) == ["mine"]


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


def test_the_digest_of_a_tree_is_the_same_in_every_version_of_python() -> None:
    """The tree is written by hand, since the output of ast.dump and ast.unparse depends on the version."""
    tree = source_digest.canonical(ast.parse(ALL_SYNTAX))
    assert hashlib.sha256(tree.encode()).hexdigest()[:12] == "7727531d579e"
    assert tree.isascii()
    assert "docstring" not in tree
