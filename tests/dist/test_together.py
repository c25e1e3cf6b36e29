"""Work that one rank asks for and two do, as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from companions import on_ranks

from harness.base import files
from harness.dist.together import led


def tenfold(items: list[int], *, plus: int) -> list[int]:
    assert items, "nobody is asked for nothing"
    return [10 * item + plus + dist.get_rank() for item in items]


def rank_main(rank: int, folder: Path) -> None:
    with led(tenfold) as work:
        found = None if work is None else [work([1, 2, 3], plus=4), work([7], plus=0)]
    files.write_json(folder / f"{rank}.json", {"found": found})


@pytest.mark.processes
def test_two_ranks_share_what_the_first_one_asks_for(tmp_path: Path) -> None:
    on_ranks(rank_main, tmp_path)
    assert files.read_json(tmp_path / "0.json")["found"] == [[14, 25, 34], [70]]
    assert files.read_json(tmp_path / "1.json")["found"] is None


def test_alone_the_work_is_done_here() -> None:
    with led(lambda items: [-item for item in items]) as work:
        assert work is not None
        assert work([1, 2]) == [-1, -2]
