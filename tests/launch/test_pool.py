"""GPUs are assigned so that ranks share one only if each takes a part of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from launched import Watcher

from harness import config, matrix
from harness.cells import state
from harness.config import Hardware
from harness.launch import launcher, local
from harness.launch.local import Local
from harness.launch.machine import cells_on, check_gpus, free_shares, gpus_for


def filled(gpus: Sequence[str], hardware: Hardware) -> list[list[str]]:
    """Return the GPUs of each of as many cells as there is room for."""
    taken: list[list[str]] = []
    while of_cell := gpus_for(hardware, free_shares(gpus, [(each, hardware) for each in taken])):
        taken.append(of_cell)
    return taken


def test_take_a_gpu_for_each_rank() -> None:
    gpus, pair, one = ["a", "b", "c"], Hardware(ranks=2), Hardware()
    assert gpus_for(pair, free_shares(gpus, [])) == ["a", "b"]
    taken = free_shares(gpus, [(["a", "b"], pair)])
    assert (gpus_for(pair, taken), gpus_for(one, taken)) == (None, ["c"])
    assert gpus_for(one, free_shares(gpus, [(["a", "b"], pair), (["c"], one)])) is None
    assert gpus_for(pair, free_shares(gpus, [(["c"], one)])) == ["a", "b"]


def test_take_shares_of_a_gpu() -> None:
    small = Hardware(share=0.3)
    taken = filled(["a", "b"], small)
    assert taken == [["a"], ["a"], ["a"], ["b"], ["b"], ["b"]]
    running = [(taken[place], small) for place in (0, 2, 3, 5)]
    assert gpus_for(Hardware(), free_shares(["a", "b"], running)) is None, "none is all free"
    assert len(filled(["a"], Hardware(share=0.1))) == 10


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
    check_gpus(gpus, hardware)
    assert cells_on(gpus, hardware) == number == len(filled([str(gpu) for gpu in range(gpus)], hardware))


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
    cells, gpus = matrix.cells(settings), ["a", "b", "c", "d", "e"]
    counts: list[int] = []
    monkeypatch.setattr(local, "run_forked_cell", note)
    launcher.run_cells(cells, Local(9, 1, gpus), Watcher(lambda running: counts.append(len(running))), poll=0.05)
    assert max(counts) == 2, "for a third there are too few"
    seen = [(cell.folder / "gpus").read_text().split() for cell in cells]
    assert {gpus for gpus, *_ in seen} <= {"a,b", "c,d", "e,a", "b,c", "d,e", "a,c", "b,d", "c,e"} | {"b,e", "a,d"}
    for one in seen:
        for other in seen:
            if one is not other and set(one[0].split(",")) & set(other[0].split(",")):
                assert float(one[2]) <= float(other[1]) or float(other[2]) <= float(one[1])
