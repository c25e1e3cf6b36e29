"""A cell's folder on two machines: whatever happens to one, the other becomes the same."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from harness.base.errors import Taken
from harness.cells import lease
from harness.launch import mirror
from harness.launch.mirror import Piece, Receiver, Sender, Whole

NAMES = ["config.yaml", "metrics.jsonl", "evals/a.json", "checkpoints/step-2/x", "checkpoints/step-2/y", "größe/é b"]


def tree(root: Path) -> dict[str, bytes]:
    """Returns all that a machine must have of a cell; the other's leases are none of it."""
    files = (path for path in root.rglob("*") if path.is_file() and lease.NAME not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_changes_in_one_folder_changes_in_the_other(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PIECE", 3)
    draw, here, there = random.Random(seed), tmp_path / "here" / "cell", tmp_path / "there" / "cell"
    here.mkdir(parents=True)
    there.mkdir(parents=True)
    sender, receiver = Sender(here), Receiver(there)
    for change in range(40):
        write(here / draw.choice([*NAMES, "state.json", "log.txt"]), "x" * draw.randrange(12) + str(change))
        if draw.random() < 0.3:
            shutil.rmtree(here / "checkpoints", ignore_errors=True)
        if draw.random() < 0.1:
            (here / "state.json").unlink(missing_ok=True)
        if draw.random() < 0.1 and not (aside := here.with_name(f"cell.attempt-{change}")).exists():
            here.rename(aside)
            here.mkdir()
        for each in sender.changes():
            receiver.take(each)
        assert tree(here.parent) == tree(there.parent)


def test_what_is_half_written_or_belongs_to_a_machine_stays_behind(tmp_path: Path) -> None:
    for name in (".metrics.jsonl.7", "checkpoints/.step-2/x", "leases/1/owner", "mlflow.lock", "log.txt"):
        write(tmp_path / "cell" / name, name)
    sent = [each.path for each in Sender(tmp_path / "cell").changes() if isinstance(each, Piece)]
    assert sent == ["cell/log.txt"]


def test_only_what_is_new_is_sent_and_the_state_is_as_it_was_before_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    write(folder / "log.txt", "one")
    write(folder / "state.json", "at step 1")
    sender = Sender(folder)
    sender.mark()
    assert [*sender.changes()] == [Whole([], b"at step 1")]
    write(folder / "metrics.jsonl", "two")
    changes = sender.changes()
    assert next(changes) == Piece("cell/metrics.jsonl", b"two")
    write(folder / "state.json", "at step 2")
    assert [*changes] == [Whole([], b"at step 1")]


def test_a_change_that_is_not_whole_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "cell" / "metrics.jsonl", "old")
    Receiver(tmp_path / "cell").take(Piece("cell/metrics.jsonl", b"new, but only in pa"))
    assert (tmp_path / "cell" / "metrics.jsonl").read_text() == "old"
    again = Receiver(tmp_path / "cell")
    again.take(Piece("cell/metrics.jsonl", b"new"))
    again.take(Whole([], None))
    assert tree(tmp_path) == {"cell/metrics.jsonl": b"new"}


def test_who_has_lost_the_lease_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    write(folder / "metrics.jsonl", "old")
    with lease.hold(folder) as mine:
        assert mine is not None
        receiver = Receiver(folder)
        receiver.take(Piece("cell/metrics.jsonl", b"mine"))
        shutil.rmtree(mine.room)  # as the next owner does
        with pytest.raises(Taken):
            receiver.take(Whole([], None))
    assert (folder / "metrics.jsonl").read_text() == "old"
