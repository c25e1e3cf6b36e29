"""Methods from outside the repository: plugin modules, entry points, and the example of the documentation."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loops
import pytest
from loops import Oracle
from places import REPOSITORY
from ragged import case
from registered import check_loss
from trainers import build

import baselines
from harness.base import plugins
from harness.base.errors import UserError
from harness.conformance.check import run_checks
from harness.methods.batch import TokenBatch
from harness.methods.composition import Method
from harness.methods.verbs import NEEDS, Component, Control, Objective, View
from harness.tokens.metrics import Stopwatch

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent / "plugin_example"
ADD_A_METHOD = REPOSITORY / "docs" / "add-a-method.md"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a module that can be imported while the test runs."""
    monkeypatch.syspath_prepend(tmp_path)

    def module(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return module


def check_example(table: dict) -> None:
    c = case(0)
    p = [math.exp(x) for x in c.old.logp.tolist()]
    advantages = [(0.4 * x + 0.6) * a for x, a in zip(p, loops.group_advantages(c), strict=True)]
    check_loss(Method.of("example_reweighting(alpha=0.4)", table), c, Oracle(advantages))


def test_table_with_a_plugin_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    table = baselines.table(["plugin_example"])
    assert set(table) - set(baselines.METHODS) == {"example_reweighting"}
    check_example(table)
    assert "example_reweighting" not in baselines.table()
    assert baselines.table(["plugin_example", "plugin_example"]) == table


def test_table_with_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Does what an installer makes of the example's pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["entrobench.methods"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[entrobench.methods]\n{lines}")
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    check_example(baselines.table())
    # The same method from both sources is not a conflict.
    assert baselines.table(["plugin_example"]) == baselines.table()

    plugins.installed_entry_points.cache_clear()  # installed packages normally do not change within a process
    (info / "entry_points.txt").write_text("[entrobench.methods]\nlost = plugin_example:Lost\n")
    with pytest.raises(UserError, match="plugin plugin_example has no Lost"):
        baselines.table()


def test_example_of_the_documentation(write: Callable[[str, str], str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", ADD_A_METHOD.read_text(), re.DOTALL)
    table = baselines.table([write("my_methods", blocks[0])])
    c = case(1, groups=6)
    advantages = loops.whitened(loops.gae(c, 1, 1))
    entropies = [loops.entropy(loops.softmax(logits)) for logits in c.old_logits_TV.tolist()]
    kept = sorted(entropies, reverse=True)[: round(0.3 * len(entropies))]
    oracle = Oracle(advantages, keep=[h >= kept[-1] for h in entropies])
    check_loss(Method.of("ppo+least_sure(share=0.3)", table), c, oracle)
    with pytest.raises(UserError, match=r"share is 3\.0; allowed: 0 to 1"):
        Method.of("least_sure(share=3)", table)


@pytest.mark.long
def test_run_checks_of_every_example(write: Callable[[str, str], str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", ADD_A_METHOD.read_text(), re.DOTALL)
    seen = []
    for number, block in enumerate(blocks):
        table = baselines.table([write(f"example_{number}", block)])
        for name in table.keys() - baselines.METHODS.keys():
            seen.append(name)
            assert not [finding for finding in run_checks(name, table) if not finding.passed]
    assert sorted(seen) == ["brake", "by_entropy", "gentle", "gentle_bonus", "least_sure", "short"]


def test_documentation_names_every_verb() -> None:
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", ADD_A_METHOD.read_text()))))
    verbs = {name for kind in (Component, Objective, Control) for name in vars(kind) if not name.startswith("_")}
    given = {name for name in vars(TokenBatch) if name.startswith(("global_", "uniform_"))}
    given |= {"per_sequence", "grouped", *TokenBatch.__dataclass_fields__} - {
        *("sequences", "prompt_lengths_B", "copy_of_B", "groups_B", "places_B"),
        *("behaviour_logp_T", "index_T", "seed", "packed"),
    }
    assert not {*verbs, *NEEDS, *given, *View.__dataclass_fields__} - {
        *named,
        *("divergence", "scale", "kl_coef", "kl_estimator", "state", "load_state"),  # options, and parts of each one
    }


CARELESS = """
from dataclasses import dataclass
from harness.methods.verbs import Control

@dataclass(frozen=True)
class Careless(Control):
    def weights(self, old, advantages_T, batch):
        return old.discriminator >= old.expected_discriminator

METHODS = {"careless": Careless}
"""


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("spec", ["careless", "ppo+clip_v+careless"])
def test_train_step_with_a_forgotten_need(spec: str, every: int, write: Any, tmp_path: Path) -> None:
    """Expect the same message even if another component needs the statistic: a method runs in all configurations."""
    plugins = f"plugins=[{write('careless', CARELESS)}]"
    trainer = build(tmp_path / "cell", spec, f"dynamics.every={every}", plugins)
    with pytest.raises(UserError) as error:
        trainer.train_step(1, Stopwatch())
    assert str(error.value) == "Careless uses sum_p2, which it does not need; declare needs = frozenset({'sum_p2'})"
    write("careful", CARELESS.replace("Control):", "Control):\n    needs = frozenset({'sum_p2'})"))
    trainer = build(tmp_path / "cell", spec, f"dynamics.every={every}", "plugins=[careful]")
    assert 0 < trainer.train_step(1, Stopwatch())["weights/dropped"] < 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_package", "plugin broken cannot be imported: No module named 'no_such_package'"),
        ("METHODS = ['mine']", r"METHODS of plugin broken is \['mine'\]; it must be a dict"),
        ("METHODS = {'mine': 3}", "'mine' of plugin broken is 3; it must be a subclass of Objective or Control"),
        (
            "from harness.methods.verbs import Component\nMETHODS = {'mine': Component}",
            "it must be a subclass of Objective or Control",
        ),
        (
            "from harness.methods.verbs import Control\nclass Mine(Control): ...\nMETHODS = {'clip_b': Mine}",
            "'clip_b' of plugin broken has the name of one in baselines.clip_b",
        ),
    ],
)
def test_table_refuses_broken_plugins(text: str, words: str, write: Callable[[str, str], str]) -> None:
    with pytest.raises(UserError, match=words):
        baselines.table([write("broken", text)])


@pytest.mark.parametrize("name", ["no_such_plugin", "./plugin_example", "plugin_example.py", ""])
def test_table_refuses_a_missing_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    with pytest.raises(
        UserError, match=f"plugin '?{re.escape(name)}'? (cannot be imported|is not the name of a module)"
    ):
        baselines.table([name])
