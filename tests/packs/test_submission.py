"""A submission: a plugin and a slim pack of its cells, checked and shown next to a pack of ours with `verify --row`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from answered import SMALL, Forgery, answered_pack
from commands import refusal, run_command, verify
from places import REPOSITORY

from harness.cells.log import MetricsLog
from harness.conformance import check, two_ranks
from harness.conformance.probe import Finding
from harness.packs.archive import unpacked

pytestmark = pytest.mark.slow

[EXAMPLE] = re.findall(r"```python\n(\"\"\"Learn only.*?)```", (REPOSITORY / "docs/add-a-method.md").read_text(), re.S)
PLUGIN = "submissions.least_sure"
OURS = ("train.steps=4", "eval.every=2")  # as of the pack `honest`
THEIRS = (*OURS, "methods=[grpo, least_sure]", f"plugins=[{PLUGIN}]")


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The slim pack of the example of docs/add-a-method.md."""
    folder = tmp_path_factory.mktemp("slim")
    with pytest.MonkeyPatch.context() as patch:
        use_plugin(folder, patch)
        answered_pack(folder, *THEIRS)
        given = [f"results={folder / 'results'}", *SMALL, *THEIRS]
        run_command("pack", "smoke", *given, "--slim", "--out", str(folder / "slim.zip"))
    return folder / "slim.zip"


@pytest.fixture
def submitted(slim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This pack next to its plugin."""
    use_plugin(tmp_path, monkeypatch)
    yield Path(shutil.copy(slim, tmp_path / "submissions/least_sure.zip"))
    forget_plugin()


def use_plugin(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folder)
    patch.syspath_prepend(folder)
    Path("submissions").mkdir()
    write_plugin(EXAMPLE)


def write_plugin(text: str) -> None:
    Path("submissions/least_sure.py").write_text(text)
    forget_plugin()


def forget_plugin() -> None:
    for module in ("submissions", PLUGIN):
        sys.modules.pop(module, None)


def refused(pack: Path, ours: Path, plugin: str = PLUGIN) -> str:
    return refusal("verify", str(pack), "--plugin", plugin, "--row", str(ours))


@pytest.mark.processes
@pytest.mark.long
def test_verify_row_of_a_submission(submitted: Path, honest: Path) -> None:
    output = verify(str(submitted), "--plugin", PLUGIN, "--row", str(honest))
    assert "least_sure 2 0 0 0 counts checked" in output
    _, _, table = output.partition("as counts alone, and not judged again: ")
    for row in ("grpo", "clip_b", "least_sure"):
        assert f" {row} " in table


def test_verify_row_refuses_a_method_that_breaks_a_rule(
    submitted: Path, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = Finding("ranks", True, "not run")
    monkeypatch.setattr(two_ranks, "check_on_two_ranks", lambda specs, plugins: dict.fromkeys(specs, passed))
    write_plugin(EXAMPLE.replace("old.entropy >= ", "-1.0 * (old.entropy >= ").replace("kept)\n\n", "kept))\n\n"))
    (tmp_path / "broken").mkdir()
    sentence = refused(answered_pack(tmp_path / "broken", *THEIRS), honest)
    assert re.search(r"least_sure fails the checks .*; `entrobench check 'least_sure'` with --plugin says", sentence)


def test_verify_row_refuses_another_protocol(submitted: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for setting, difference in (("eval.every=4", "eval.every (2, not 4)"), ("seeds=[0]", "seeds ([0, 1], not [0])")):
        other = answered_pack(tmp_path / "other", *OURS, setting)
        sentence = refused(submitted, other)
        assert f"rows of another protocol do not enter a table (different: {difference})" in sentence
        other.unlink()


@pytest.mark.usefixtures("submitted")
def test_verify_row_refuses_a_pack_without_the_method(honest: Path) -> None:
    sentence = "smoke.zip has no cell that is done of a method of --plugin"
    assert f"{sentence} (it defines least_sure)" in refused(honest, honest)
    assert f"{sentence} (it defines none)" in refusal("verify", str(honest), "--row", str(honest))


def test_verify_row_refuses_other_code(submitted: Path, honest: Path) -> None:
    write_plugin(EXAMPLE.replace("self.share * batch", "self.share / 2 * batch"))
    sentence = "least_sure s0 was trained with other code of least_sure than is here; run it again"
    assert sentence in refused(submitted, honest)


def test_verify_row_refuses_a_plugin_that_cannot_be_built(submitted: Path, honest: Path) -> None:
    write_plugin(EXAMPLE.replace("    share:", "    def __post_init__(self) -> None:\n        1 / 0\n\n    share:"))
    assert "least_sure cannot be made (ZeroDivisionError: division by zero)" in refused(submitted, honest)


def test_verify_row_refuses_figures_that_do_not_follow(
    submitted: Path, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_methods = Mock(return_value=[])  # its checks take seconds and start processes
    monkeypatch.setattr(check, "check_methods", check_methods)
    with unpacked(submitted) as pack:
        forgery = Forgery.of(pack)
        log = MetricsLog(forgery.cell("least_sure", 0))
        *others, last = log.read()
        log.write([*others, {**last, "metrics": {**last["metrics"], "eval/countdown/avg": 0.9}}])
        forged = forgery.write(tmp_path / "forged.zip")
    sentence = refused(forged, honest)
    assert "the figures in forged.zip are not verified, least_sure s0" in sentence
    assert "`entrobench verify` without --row lists everything" in sentence
    check_methods.assert_called_once_with(["least_sure"], [PLUGIN])
