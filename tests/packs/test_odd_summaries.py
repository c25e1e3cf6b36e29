"""A matrix.json whose values are of other types than `pack` writes: a table or one sentence."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answered import answered_pack
from commands import refusal

from harness.base import files
from harness.base.errors import Damaged, UserError
from harness.packs.archive import SUMMARY, read_board, unpacked, write_pack
from harness.packs.reader import PackReader
from harness.table.board import Experiment
from harness.table.select import parts_of_boards

pytestmark = pytest.mark.slow

ODD = [None, True, -1, 1 << 62, 1 << 70, 1.5, "x", [], [None], {"x": {"x": [1]}}]
DEEP = ("eval_tasks", "sources", "params", "expected", "ks", "candidates")  # keys whose values are lists or mappings
Place = tuple[str | int, ...]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answered_pack(tmp_path_factory.mktemp("small"), "seeds=[0]")


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the places of a value: of itself, of all fields of a record, and of one entry of each other container."""
    yield at
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        entries = list(value.items())
        if at and at[-1] in DEEP:
            entries = entries[:1]
        for key, entry in entries:
            yield from places(entry, (*at, key))


def with_value(summary: dict[str, Any], place: Place, value: Any) -> Any:
    """Return a summary with another value at a place."""
    if not place:
        return value
    edited = copy.deepcopy(summary)
    inner: Any = edited
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return edited


@pytest.mark.long
def test_odd_values_give_a_table_or_one_sentence(small: Path) -> None:
    refused = 0
    with unpacked(small) as pack:
        summary = files.read_json(pack.folder / SUMMARY)
        # Of the configuration, a table reads these keys alone.
        tune = {"candidates": {"grpo": ["grpo"], "clip_b": ["clip_b"]}}
        summary["config"] = {"ruleset": "tuned", "tune": tune}
        for place in places(summary):
            for odd in ODD:
                (pack.folder / SUMMARY).write_text(json.dumps(with_value(summary, place, odd)))
                try:
                    board = read_board(pack.path, pack.folder)
                except Damaged:
                    refused += 1
                    continue
                experiment = Experiment(PackReader([dataclasses.replace(pack, board=board)]), board.experiment, "packs")
                with contextlib.suppress(UserError):
                    [part] = parts_of_boards(experiment, experiment.boards(), where={})
                    part.rows()
    assert refused > 100


def test_two_cells_at_one_place_are_refused(small: Path) -> None:
    """They would count as two seeds of a row."""
    with unpacked(small) as pack:
        summary = files.read_json(pack.folder / SUMMARY)
        summary["expected"].append({**summary["expected"][0], "cell": "another"})
        (pack.folder / SUMMARY).write_text(json.dumps(summary))
        with pytest.raises(Damaged):
            read_board(pack.path, pack.folder)


@pytest.mark.parametrize("command", [["verify"], ["leaderboard", "--pack"], ["report", "--pack"], ["unpack"]])
def test_commands_refuse_an_odd_summary(command: list[str], small: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.zip"
    with unpacked(small) as pack:
        summary = json.dumps(with_value(files.read_json(pack.folder / SUMMARY), ("expected", 0, "eval_tasks"), 1))
        write_pack(odd, pack.matrix, summary, pack.cells, pack.protocol)
    sentence = refusal(*command, str(odd), *(["smoke"] if command == ["unpack"] else []))
    assert f"{odd} is damaged: its matrix.json was not written by this version of entrobench" in sentence
