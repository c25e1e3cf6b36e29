"""GPUs are assigned so that ranks share one only if each takes a part of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from known import known
from launched import Watcher

from harness import config, matrix
from harness.cells import state
from harness.config import Hardware
from harness.launch import launcher, local
from harness.launch.local import Local
from harness.launch.machine import GpuPool, cells_on


def test_take_a_gpu_for_each_rank() -> None:
    pool, pair = GpuPool(["a", "b", "c"]), Hardware(ranks=2)
    taken = known(pool.take(pair))
    assert taken.gpus == ("a", "b")
    assert pool.take(pair) is None
    assert known(pool.take(Hardware())).gpus == ("c",)
    assert pool.take(Hardware()) is None
    pool.give_back(taken)
    assert known(pool.take(pair)).gpus == ("a", "b")


def test_take_shares_of_a_gpu() -> None:
    pool, small = GpuPool(["a", "b"]), Hardware(share=0.3)
    taken = [pool.take(small) for _ in range(7)]
    assert [each.gpus[0] if each else None for each in taken] == ["a", "a", "a", "b", "b", "b", None]
    for place in (4, 1):
        pool.give_back(known(taken[place]))
    assert pool.take(Hardware()) is None, "none is all free"
    third = GpuPool(["a"])
    assert [third.take(Hardware(share=0.1)) is not None for _ in range(11)] == [True] * 10 + [False]


@pytest.mark.parametrize(
    ("gpus", "hardware", "number"),
    [
        (8, Hardware(), 8),
        (8, Hardware(ranks=2), 4),
        (8, Hardware(ranks=3), 2),
        (2, Hardware(share=0.25), 8),
        (2, Hardware(share=0.3), 6),
    ],
)
def test_cells_on(gpus: int, hardware: Hardware, number: int) -> None:
    pool = GpuPool([str(gpu) for gpu in range(gpus)])
    pool.check(hardware)
    assert cells_on(gpus, hardware) == number
    assert sum(pool.take(hardware) is not None for _ in range(number + 1)) == number


def note(folder: str, gpus: tuple[str, ...]) -> None:
    """Stands for a cell: it notes what it may use, and takes its time."""
    place = Path(folder)
    (place / "before").write_text(str(os.times().elapsed))
    while os.times().elapsed < float((place / "before").read_text()) + 0.3:
        pass
    (place / "gpus").write_text(f"{','.join(gpus)} {(place / 'before').read_text()} {os.times().elapsed}")
    state.change(place, state="done")


@pytest.mark.processes
def test_run_cells_on_gpus_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.load_config("demo", ["seeds=[0]", "hardware.ranks=2", "train.prompts=12", f"results={tmp_path}"])
    cells, pool = matrix.cells(settings), GpuPool(["a", "b", "c", "d", "e"])
    counts: list[int] = []
    monkeypatch.setattr(local, "run_forked_cell", note)
    launcher.run_cells(cells, Local(9, 1, pool), Watcher(lambda running: counts.append(len(running))), poll=0.05)
    assert max(counts) == 2, "for a third there are too few"
    seen = [(cell.folder / "gpus").read_text().split() for cell in cells]
    assert {gpus for gpus, *_ in seen} <= {"a,b", "c,d", "e,a", "b,c", "d,e", "a,c", "b,d", "c,e"} | {"b,e", "a,d"}
    for one in seen:
        for other in seen:
            if one is not other and set(one[0].split(",")) & set(other[0].split(",")):
                assert float(one[2]) <= float(other[1]) or float(other[2]) <= float(one[1])
