"""Cells whose records are damaged while a matrix runs: they fail and name their file; the others continue."""

from __future__ import annotations

import io
import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from cells import write_cell
from rich.console import Console

from harness import config, matrix
from harness.base.errors import Damaged
from harness.cells import lease
from harness.commands import status
from harness.launch import launcher, local
from harness.launch.local import Local
from harness.launch.progress import LiveView
from harness.matrix import MARKER
from harness.tracking import sync

pytestmark = pytest.mark.processes


STEPS = [{"entropy/mean": 1.0}] * 2


def spoil(name: str, content: bytes) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        with lease.hold(folder):
            write_cell(folder, None, "running", STEPS, made=None)
            (folder / name).write_bytes(content)
            os._exit(1)

    return work


def say_what_no_encoding_holds(folder: Path) -> None:
    with lease.hold(folder):
        write_cell(folder, None, "failed", STEPS, made=None, reason="it said \udcff")
        os._exit(1)


def finish(folder: Path) -> None:
    with lease.hold(folder):
        write_cell(folder, None, "done", STEPS, made=None)


WORKS = {
    "state.json": spoil("state.json", b""),
    "metrics.jsonl": spoil("metrics.jsonl", b'{"step": 0\x00\xff\n'),
    "made.json": spoil("made.json", b"[]"),
    "mlflow.json": spoil("mlflow.json", b""),
    "config.yaml": spoil("config.yaml", b""),
    "reason": say_what_no_encoding_holds,
    "whole": finish,
}


def test_run_cells_with_damaged_records(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = list(range(len(WORKS)))
    overrides = ["methods=[grpo]", f"seeds={seeds}", f"results={tmp_path}", f"tracking.uri={mlflow_uri}"]
    settings = config.load_config("smoke", overrides)
    cells = matrix.cells(settings)
    matrix.claim(settings)
    works = dict(zip((cell.folder for cell in cells), WORKS.values(), strict=True))

    def start(cell: matrix.Cell, gpus: Sequence[str]) -> BaseProcess:
        process = multiprocessing.get_context("fork").Process(target=works[cell.folder], args=(cell.folder,))
        process.start()
        return process

    monkeypatch.setattr(local, "fork_cell", start)
    monkeypatch.setattr(local.forkserver, "ensure_running", lambda: None)
    out = io.StringIO()
    with LiveView(Console(file=out, width=1000), cells, cells, mlflow_uri) as view:
        launcher.run_cells(cells, Local(2, 1), view, poll=0.05)
    progress_of = {name: cell.progress() for name, cell in zip(WORKS, cells, strict=True)}
    for name in ("state.json", "metrics.jsonl"):
        folder = cells[list(WORKS).index(name)].folder
        assert progress_of[name].state == "failed"
        assert str(progress_of[name].reason).startswith(f"{folder / name} is damaged: ")
        assert str(progress_of[name].reason) in out.getvalue()
    assert str(progress_of["reason"].reason).startswith("it said \\udcff")
    said = out.getvalue().splitlines()
    assert sum("failed  grpo seed " in line for line in said) + sum("done    " in line for line in said) == 7
    content = (settings.folder / MARKER).read_bytes()
    (settings.folder / MARKER).write_bytes(b"")
    with pytest.raises(Damaged, match=r"matrix\.json is damaged"):
        matrix.claim(settings)
    (settings.folder / MARKER).write_bytes(content)

    fed = {name: cell.folder for name, cell in zip(WORKS, cells, strict=True)}
    for name in ("mlflow.json", "reason", "whole"):
        sync.sync(fed[name], mlflow_uri)
    monkeypatch.setattr(status, "config_of_arguments", lambda arguments: settings)
    assert status.call(None) == 0  # type: ignore[arg-type]
    assert "it said \\udcff" in capsys.readouterr().out
