"""Identities and stored records stay the same: results of an earlier version remain valid."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from harness import config, matrix
from harness.cells import checksums
from harness.cells.evaluations import cell_outcome
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec, id_in, training_key, value_in
from harness.cells.state import Progress

# A cell that is done, written at commit 6cbc207: its records are read, never written again.
FINISHED = Path(__file__).parent / "finished" / "clip_b-countdown-countdown-tiny-s0-623ecab479b8"
HERE = ["hardware.device=cpu", "rollout.engine=embedded"]  # independent of the test's machine

# What all versions of the first and of the last cell of shipped configurations have in common. It may change only with
# a setting that changes results; all finished cells are then trained again, so a change here must be meant.
KEYS = {
    "demo": ("6e2b008da699", "9df760a17181"),
    "demo-tuned": ("b702229fcf66", "95d126ed255d"),
    "smoke": ("d8ae1bd1a947", "dc7748b58336"),
    "field": ("381828fce317", "aee483e05267"),
    "coloring": ("23e561ec3b93", "c9a2e5fb3165"),
    "paper": ("c3398d405c97", "e11a4ec25c2b"),
}


@pytest.mark.parametrize("name", KEYS)
def test_training_key_of_shipped_cells(name: str) -> None:
    cells = matrix.cells(config.load_config(name, HERE))
    assert tuple(training_key(cell.identity)[:12] for cell in (cells[0], cells[-1])) == KEYS[name]


@pytest.fixture
def cell(tmp_path: Path) -> matrix.Cell:
    """Return the cell as the present version plans it."""
    overrides = [*HERE, "methods=[clip_b]", "baseline=clip_b", f"results={tmp_path}"]
    [planned] = matrix.cells(config.load_config("smoke", overrides))
    return planned


def test_leftovers_with_a_cell_of_an_earlier_version(cell: matrix.Cell) -> None:
    """Cells were identified without their code once; these are done, and count as an earlier version of all of it."""
    folder = cell.folder.with_name(FINISHED.name)
    shutil.copytree(FINISHED, folder)
    assert matrix.leftovers(cell.config, [cell]) == {folder: "clip_b, countdown, grpo"}
    [other] = matrix.cells(dataclasses.replace(cell.config, seeds=[1]))
    assert matrix.leftovers(cell.config, [other]) == {folder: None}
    progress = Progress.read(folder)
    assert (progress.state, progress.step, progress.record.seconds) == ("done", cell.config.train.steps, 60.0)
    assert not list(checksums.changed_records(folder))


# Settings, one or several, with which a cell has the results of the plain one.
HARMLESS = [
    *("results=elsewhere", "name=other", "tracking.uri=http://127.0.0.1:1", "hardware.threads=2"),
    *("checkpoint.every=7", "dynamics.every=0", "dynamics.every=7", "mismatch.float32.p99=1"),
    *("eval.k=8", "eval.by_task.countdown.k=8", "verify.workers=3", "verify.max_failures=0.5", "verify.limit_s=1"),
    *("train.optimizer=adamw", "train.lora=null", "train.filter=null"),
    "correction.level=sequence correction.high=3",  # of no correction
]
# Settings of which each has results of its own.
TELLING = [
    *("train.lr=1e-4", "eval.samples=64", "rollout.temperature=0.9", "method_options.grpo.clip_low=0.1"),
    *("rollout.lag=1", "stop.entropy_below=0.02", "train.optimizer=adamw8bit"),
    *(f"train.lora.{each}" for each in ("rank=4", "rank=5", "alpha=8", "targets=[q_proj]")),
    *(f"train.filter{each}" for each in ("={}", ".n=8", ".high=0.9")),
    *(f"train.resample{each}" for each in ("={}", ".multiplier=2", ".max_batches=2")),
    *("correction.kind=truncated", "correction.kind=masked", "correction.kind=masked correction.low=0.5"),
    *("correction.kind=truncated correction.level=sequence", "correction.kind=truncated correction.high=3"),
]


@pytest.mark.slow
def test_cell_id_by_what_decides_results() -> None:
    def key(settings: str) -> str:
        return matrix.cells(config.load_config("smoke", [*HERE, *settings.split()]))[0].id

    plain = key("")
    assert not [settings for settings in HARMLESS if key(settings) != plain]
    keys = [key(settings) for settings in TELLING]
    assert len({plain, *keys}) == 1 + len(keys)


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], {}),
        (["train.order=shuffled", "train.loss_scale=mini-batch"], {}),
        (["train.loss_scale=micro-batch"], {"micro_tokens": 4096}),
        (["train.loss_scale=micro-batch", "hardware.ranks=2"], {"micro_tokens": 4096, "ranks": 2}),
        (["hardware.ranks=2"], {}),
    ],
)
def test_identity_has_the_hardware_that_decides_results(given: list[str], added: dict[str, int]) -> None:
    plain, other = (
        matrix.cells(config.load_config("demo", [*HERE, "hardware.micro_tokens=4096", *overrides]))[0].identity
        for overrides in ([], given)
    )
    new = {key: value for key, value in other.items() if key not in plain}
    assert new == added
    assert other["train"].keys() - plain["train"].keys() == ({"loss_scale"} if added else set())


def test_axes_of_settings_that_are_left_out_where_they_are_not_set() -> None:
    axes = ["axes={train.order: [shuffled, given], train.loss_scale: [mini-batch, micro-batch]}", "seeds=[0]"]
    planned = matrix.cells(config.load_config("demo", [*HERE, "methods=[grpo]", *axes]))
    assert len({cell.id for cell in planned}) == 4
    for cell in planned:
        settings = cell.spec.settings
        assert {axis: value_in(settings, axis) for axis in settings["axes"]} == dict(cell.key.setting)


def test_records_of_an_earlier_version(cell: matrix.Cell) -> None:
    spec = CellSpec.read(FINISHED)
    assert (spec.id, id_in(FINISHED), spec.key) == (FINISHED.name.rpartition("-")[2], spec.id, cell.key)
    assert (spec.matrix, spec.made_of) == ("smoke", cell.spec.made_of)
    lines = MetricsLog(FINISHED).read()
    assert [line["step"] for line in lines] == list(range(cell.config.train.steps + 1))
    assert cell_outcome(FINISHED, spec, lines)["tasks"]["countdown"]["problems"] == ["p1", "p2"]


def test_spec_is_written_as_before(tmp_path: Path) -> None:
    CellSpec.read(FINISHED).write(tmp_path)
    assert (tmp_path / "config.yaml").read_bytes() == (FINISHED / "config.yaml").read_bytes()
