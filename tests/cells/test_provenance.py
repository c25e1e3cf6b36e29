"""What made a cell's numbers: hashes of sources that follow edits, and attempts that are set aside without a loss."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

import baselines
import tasks
from harness import config, matrix
from harness.base.errors import Damaged
from harness.cells import checksums, provenance
from harness.cells.provenance import Made
from harness.cells.state import Progress, State
from harness.composition import method_classes

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

    base, child = provenance.digest(source_base.Base), provenance.digest(source_child.Child)
    assert base != child
    (modules / "source_child.py").write_text(CHILD.format(base="source_base") + "# edited\n")
    assert provenance.digest(source_base.Base) == base
    edited = provenance.digest(source_child.Child)
    assert edited != child
    (modules / "source_base.py").write_text(BASE + "# edited\n")
    assert provenance.digest(source_base.Base) != base
    assert provenance.digest(source_child.Child) not in (child, edited)
    (modules / "source_child.py").write_text(CHILD.format(base="source_base"))
    (modules / "source_base.py").write_text(BASE)
    assert (provenance.digest(source_base.Base), provenance.digest(source_child.Child)) == (base, child), (
        "an edit that is undone"
    )
    (modules / "source_base.py").unlink()
    assert provenance.digest(source_base.Base) != base


HELPED = """import sys, torch, yaml
from collections.abc import Mapping
from typing import TYPE_CHECKING
import baselines.clip_b as clips
from entrobench import Control
from harness.method import View
from source_helpers import CONSTANT, function
if TYPE_CHECKING:
    from source_unseen import Type

class Helped(Control):
    def weights(self, old, advantages_T, batch):
        import source_late
"""


def test_the_hash_of_a_class_follows_what_its_module_imports(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts methods and the modules beside a plugin, whatever is imported of them, and nothing that is installed."""
    names = ("source_helpers", "source_deep", "source_late", "source_unseen")
    for name in (*names, "source_helped"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in names:
        (modules / f"{name}.py").write_text("CONSTANT = 1\n")
    (modules / "source_helpers.py").write_text("from source_deep import CONSTANT\nimport numpy\ndef function(): pass\n")
    (modules / "source_helped.py").write_text(HELPED)
    import source_helped  # type: ignore[import-not-found]

    asked: set[str] = set()
    digest = provenance.module_digest

    def heard(name: str) -> str:
        asked.add(name)
        return digest(name)

    monkeypatch.setattr(provenance, "module_digest", heard)
    first = provenance.digest(source_helped.Helped)
    assert asked == {"source_helped", "source_helpers", "source_deep", "baselines.clip_b"}
    for name in names:
        (modules / f"{name}.py").write_text((modules / f"{name}.py").read_text() + "# edited\n")
        second = provenance.digest(source_helped.Helped)
        assert (second != first) == (name in asked)
        first = second
    (modules / "source_helped.py").write_text("half a (")
    assert provenance.digest(source_helped.Helped) != first


def test_what_methods_and_tasks_have_of_others_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    classes: list[type] = [*method_classes(baselines.METHODS).values(), *tasks.TASKS.values()]
    before = {cls: provenance.digest(cls) for cls in classes}
    assert len(set(before.values())) == len({cls.__module__ for cls in classes})
    digest = provenance.module_digest
    for module in ("baselines.clip_b", "tasks.math", "harness.method"):
        monkeypatch.setattr(provenance, "digests", {})
        monkeypatch.setattr(
            provenance, "module_digest", lambda name, module=module: digest(name) + "x" * (name == module)
        )
        changed = {cls for cls in classes if provenance.digest(cls) != before[cls]}
        above = {cls for cls in classes if module in {base.__module__ for base in cls.__mro__}}
        calling = {baselines.ClipServo} if module == "baselines.clip_b" else set()
        assert changed == (set() if module == "harness.method" else above | calling)
        assert len(above) > 1


def test_a_cell_names_its_components() -> None:
    options = ["methods=[grpo,'ppo+clip_v(share=0.1)']", "eval.tasks=[countdown,gsm8k,'countdown(count=4)']"]
    grpo, other = matrix.cells(config.load("demo", ["seeds=[0]", *options]))
    assert grpo.components.keys() == {"grpo", "countdown", "gsm8k"}
    assert other.components.keys() == {"ppo", "clip_v", "countdown", "gsm8k"}
    assert other.sources["clip_v"] == provenance.digest(method_classes(baselines.METHODS)["clip_v"])


def test_a_task_of_a_plugin_is_a_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = shutil.copytree(REPOSITORY / "tests/tasks/plugin_example/sums_example", tmp_path / "sums_example")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums_example", raising=False)
    settings = config.load("smoke", ["methods=[grpo]", "plugins=[sums_example]", "tasks=[countdown,example_sums]"])
    ours, theirs = matrix.cells(settings)
    assert (ours.components.keys(), theirs.components.keys()) == ({"grpo", "countdown"}, {"grpo", "example_sums"})
    before = ours.sources, theirs.sources
    with open(plugin / "__init__.py", "a") as module:
        module.write("# edited\n")
    assert ours.sources == before[0]
    assert provenance.others(before[1], theirs.sources) == ["example_sums"]
    monkeypatch.delitem(sys.modules, "sums_example")


@pytest.mark.processes
def test_sources_need_no_torch() -> None:
    code = "import sys; from harness import config, matrix; "
    code += "print(*matrix.cells(config.load('smoke'))[1].sources.values()); assert 'torch' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said == list(matrix.cells(config.load("smoke"))[1].sources.values())


def test_others() -> None:
    assert provenance.others({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    assert provenance.others({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "3"}) == ["b", "c", "d"]
    assert provenance.by_another_source({"a": "1"}, {"a": "1"}) is None
    assert provenance.by_another_source(None, {}) == "made by a source that nobody noted"
    assert provenance.by_another_source({"a": "1", "b": "1"}, {"a": "2", "b": "3"}) == "made by another source: a, b"


# The record


def test_an_attempt_says_what_makes_it(tmp_path: Path) -> None:
    assert Made.read(tmp_path) is None
    first = provenance.begin(tmp_path, {"grpo": "abc"}, "cpu", None)
    assert Made.read(tmp_path) == first
    assert first.versions.keys() == {"torch", "transformers", "lm-eval", "math-verify", "python"}
    assert (first.device, first.sources) == ("cpu", {"grpo": "abc"})
    assert first.processor
    second = provenance.begin(tmp_path, {"grpo": "abd"}, "cuda", "NVIDIA H100", ["no-such-engine"])
    assert second.processor == "NVIDIA H100"
    assert second.attempt != first.attempt
    assert first.tags()["source"] != second.tags()["source"]
    assert {"source.grpo": "abd", "version.python": second.versions["python"]}.items() <= second.tags().items()
    (tmp_path / "made.json").write_text('{"attempt": 3}')
    with pytest.raises(Damaged, match=r"made\.json is damaged: it must hold attempt, started, version, commit"):
        Made.read(tmp_path)


def test_a_checkout_and_an_installed_package(tmp_path: Path) -> None:
    assert provenance.checkout(tmp_path) == (None, None)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance.checkout(tmp_path) == (None, None), "without a commit"
    (tmp_path / "code.py").write_text("1")
    subprocess.run([*git, "add", "code.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "First"], check=True)
    commit, dirty = provenance.checkout(tmp_path)
    assert commit is not None
    assert (len(commit), dirty) == (40, False)
    (tmp_path / "notes.txt").write_text("not of the repository")
    assert provenance.checkout(tmp_path) == (commit, False)
    (tmp_path / "code.py").write_text("2")
    assert provenance.checkout(tmp_path) == (commit, True)
    (tmp_path / "site-packages").mkdir()
    assert provenance.checkout(tmp_path / "site-packages") == (None, None), "inside the checkout of something else"


# What is outdated


@pytest.mark.parametrize("name", ["done", "failed", "running"])
def test_what_another_source_made_is_outdated(name: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    provenance.begin(tmp_path, {"grpo": "1", "countdown": "2"}, "cpu", None)
    checksums.write(tmp_path)
    State(name, durable_step=3).write(tmp_path)
    same = Progress.read(tmp_path, {"countdown": "2", "grpo": "1"})
    assert same == Progress.read(tmp_path)
    assert same.state == ("stale" if name == "running" else name)
    assert Progress.read(tmp_path, {"grpo": "1", "countdown": "3"}) == Progress(
        "outdated", "made by another source: countdown"
    )


# Attempts that are set aside


class Killed(BaseException):
    pass


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_lost_when_it_is_killed_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = tmp_path / "origin"
    attempt = provenance.begin(origin, {"grpo": "1"}, "cpu", None)
    State("done", durable_step=3).write(origin)
    for name in (
        "config.yaml",
        "log.txt",
        "metrics.jsonl",
        "evals/a.json",
        "checkpoints/step-000001.pt",
        "leases/1/owner",
    ):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(f"the old {name}")
    whole = {name: text for name, text in content(origin).items() if not name.startswith("leases")}
    rename = Path.rename
    moved = len({Path(name).parts[0] for name in whole} - {"config.yaml"})
    for calls in range(moved):
        folder = shutil.copytree(origin, tmp_path / f"cell-{calls}")

        def dying(path: Path, target: Path, folder: Path = folder, calls: int = calls) -> Path:
            aside = folder.with_name(f"{folder.name}.attempt-{attempt.attempt[:12]}")
            if len([each for each in aside.iterdir() if each.name != "config.yaml"]) == calls:
                raise Killed
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", dying)
            with pytest.raises(Killed):
                provenance.set_aside(folder, attempt)
        # The launcher notes how the process ended, and the next process begins to write its log.
        if not State.read(folder).ended:
            State("failed", "its process ended by SIGKILL").write(folder)
        with open(folder / "log.txt", "a") as log:
            log.write(" and a new line")
        assert Made.read(folder) == attempt, "what is left is still known as the old attempt's"
        assert Progress.read(folder, {"grpo": "2"}).state in ("outdated", "planned")
        aside = provenance.set_aside(folder, attempt)
        assert provenance.earlier(folder) == [aside]
        found = content(aside)
        assert found.pop("log.txt").removesuffix(" and a new line") == "the old log.txt"
        assert found == {name: text for name, text in whole.items() if name != "log.txt"}
        assert {path.name for path in folder.iterdir()} == {"config.yaml", "leases", "mlflow.lock"}
        assert Progress.read(folder, {"grpo": "2"}).state == "planned"
