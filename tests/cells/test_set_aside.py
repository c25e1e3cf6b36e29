"""Attempts at a cell: set aside complete, and taken back when their code returns."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from harness.base import seal
from harness.cells import attempts, checksums, provenance
from harness.cells.provenance import Made
from harness.cells.state import Progress, State


class Killed(BaseException):
    pass


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_lost_when_it_is_killed_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = tmp_path / "origin"
    attempt = provenance.begin_attempt(origin, {"grpo": "1"}, "cpu", None)
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
                attempts.set_aside(folder, attempt)
        # The launcher notes how the process ended, and the next process begins to write its log.
        if not State.read(folder).ended:
            State("failed", "its process ended by SIGKILL").write(folder)
        with open(folder / "log.txt", "a") as log:
            log.write(" and a new line")
        assert Made.read(folder) == attempt, "what is left is still known as the old attempt's"
        assert Progress.read(folder, {"grpo": "2"}).state in ("outdated", "planned")
        aside = attempts.set_aside(folder, attempt)
        assert attempts.earlier_attempts(folder) == [aside]
        found = content(aside)
        assert found.pop("log.txt").removesuffix(" and a new line") == "the old log.txt"
        assert found == {name: text for name, text in whole.items() if name != "log.txt"}
        assert {path.name for path in folder.iterdir()} == {"config.yaml", "leases", "mlflow.lock"}
        assert Progress.read(folder, {"grpo": "2"}).state == "planned"


# Attempts that are taken back


def finished(folder: Path, source: str, *, at: float) -> Made:
    """Make a cell's folder hold a complete attempt by this source, of which the log says when it began."""
    folder.mkdir(exist_ok=True)
    made = dataclasses.replace(provenance.begin_attempt(folder, {"grpo": source}, "cpu", None), started=at)
    made.write(folder)
    (folder / "config.yaml").write_text(seal.close_yaml("cell: abc\n"))
    (folder / "metrics.jsonl").write_text(f"made by {source}")
    (folder / "mlflow.json").write_text(f"the run of {source}")
    (folder / "evals").mkdir()
    (folder / "evals" / "countdown-000000.json").write_text(source)
    checksums.write_checksums(folder)
    State("done", durable_step=3, device=source).write(folder)
    return made


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """Return a cell that is done by source 2, with a complete attempt by source 1 set aside."""
    folder = tmp_path / "cell"
    attempts.set_aside(folder, finished(folder, "1", at=1.0))
    finished(folder, "2", at=2.0)
    return folder


def test_an_edit_that_is_undone_takes_the_earlier_attempt_back(edited: Path) -> None:
    second = Made.read(edited)
    assert second is not None
    [aside] = attempts.earlier_attempts(edited)
    before = content(aside)
    assert attempts.complete_attempt(edited, {"grpo": "3"}) is None
    assert attempts.complete_attempt(edited, {"grpo": "1"}) == aside
    assert attempts.take_back(edited, aside)
    now = Made.read(edited)
    assert now is not None
    assert now.sources == {"grpo": "1"}
    assert now.started > second.started, "the newest complete attempt counts in the leaderboard"
    assert now.attempt not in (aside.name[-12:], second.attempt)
    assert Progress.read(edited, {"grpo": "1"}).state == "done"
    after = {name: text for name, text in content(edited).items() if "leases" not in name and name != "mlflow.lock"}
    assert after.keys() == before.keys() - {"mlflow.json"}, "its run in MLflow is a new one"
    assert all(after[name] == before[name] for name in after if name not in ("made.json", "config.yaml"))
    [other] = attempts.earlier_attempts(edited)
    assert (Made.read(other), State.read(other).device) == (second, "2"), "and the other one is kept"
    assert attempts.complete_attempt(edited, {"grpo": "2"}) == other


def test_only_a_complete_attempt_is_taken_back(edited: Path) -> None:
    [aside] = attempts.earlier_attempts(edited)
    (aside / "evals" / "countdown-000000.json").write_text("x")
    assert attempts.complete_attempt(edited, {"grpo": "1"}) is None, "a record was changed"
    (aside / "evals" / "countdown-000000.json").write_text("1")
    assert attempts.complete_attempt(edited, {"grpo": "1"}) == aside
    State("failed").write(aside)
    assert attempts.complete_attempt(edited, {"grpo": "1"}) is None


def test_taking_back_goes_on_where_it_was_killed(edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [aside] = attempts.earlier_attempts(edited)
    rename = Path.rename
    for calls in range(5):
        root = shutil.copytree(edited.parent, edited.parent.with_name(f"copy-{calls}"))
        folder, copy = root / edited.name, root / aside.name
        moved: list[Path] = []

        def dying(path: Path, target: Path, copy: Path = copy, moved: list[Path] = moved, calls: int = calls) -> Path:
            if path.parent == copy:
                if len(moved) == calls:
                    raise Killed
                moved.append(path)
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", dying)
            with pytest.raises(Killed):
                attempts.take_back(folder, copy)
        attempts.finish_taking_back(folder)
        again = attempts.complete_attempt(folder, {"grpo": "1"})
        if again is not None:  # it was killed before the first record was moved
            assert calls == 0
            attempts.take_back(folder, again)
        assert Progress.read(folder, {"grpo": "1"}).state == "done"
        assert (folder / "metrics.jsonl").read_text() == "made by 1"
        assert not copy.exists()
