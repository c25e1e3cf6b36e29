"""Readers of each format, on cells of the demo, on a log that TRL writes here, and on lines in the form of verl's."""

from __future__ import annotations

import csv
import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from known import known
from logged_runs import geometric
from places import REPOSITORY

from harness.base.errors import Damaged, UserError
from harness.cells import lease, state
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.diagnose.readers import read_run
from harness.diagnose.rules import diagnose_run
from harness.diagnose.signals import BONUS, CLIPPED, CSV, DOOR, OURS, SIGNALS, TRL, VERL, MetricCurve
from harness.packs.archive import Pack, unpacked

CELL = "grpo-countdown-countdown-tiny-s10-6dc514fceb92"


@pytest.fixture(scope="module")
def pack() -> Iterator[Pack]:
    with unpacked(REPOSITORY / "results/packs/demo.zip") as opened:
        yield opened


@pytest.fixture
def cell(pack: Pack, tmp_path: Path) -> Path:
    """A finished cell of the demo, without its answers."""
    folder = tmp_path / CELL
    folder.mkdir()
    for name in ("config.yaml", "metrics.jsonl", "state.json", "made.json"):
        shutil.copy(pack.folder / "cells" / CELL / name, folder)
    return folder


# Cells


def test_read_run_of_a_cell(cell: Path) -> None:
    run = read_run(cell)
    assert (run.trainer, run.method, run.stopped) == (OURS, "grpo", None)
    lines = [line["metrics"] for line in MetricsLog(cell).read()[1:]]
    entropy, clipped, unparsed = (known(run.signal(name)) for name in ("entropy", "clipped", "unparsed"))
    assert entropy.steps == list(range(1, 61))
    assert entropy.values == [metrics["entropy/mean"] for metrics in lines]
    assert clipped.key == CLIPPED
    assert clipped.values == [metrics["ratio/clipped_low"] + metrics["ratio/clipped_high"] for metrics in lines]
    # A verdict is logged only at the steps at which it occurs.
    assert unparsed.values == [metrics.get("verdicts/unparsed", 0.0) for metrics in lines]
    assert run.curves[BONUS].values == [0.0]


def test_read_run_of_the_file_alone(cell: Path) -> None:
    whole, alone = read_run(cell), read_run(cell / "metrics.jsonl")
    assert alone.curves == {key: curve for key, curve in whole.curves.items() if key != BONUS}
    assert alone.method is None  # the configuration knows it, and so whether there is a bonus


def test_read_run_bonus_coefficient(pack: Pack) -> None:
    folders = pack.folder / "cells"
    bonus, adaptive = (
        known(read_run(next(folders.glob(f"{name}-*-s10-*"))).signal("bonus"))
        for name in ("entropy_bonus", "adaptive_entropy")
    )
    assert (bonus.key, bonus.values) == (BONUS, [0.03])
    assert (adaptive.key, len(adaptive.values)) == ("state/adaptive_entropy/coefficient", 60)


def test_read_run_of_a_bonus_that_changes_over_the_steps(cell: Path) -> None:
    spec, lines = CellSpec.read(cell), MetricsLog(cell).read()
    method = [*spec.identity["method"], {"component": "EntropyBonus", "coefficient": "linear(0.03, 0.0)"}]
    replace(spec, identity=spec.identity | {"method": method}).write(cell)
    for line in lines[1:]:
        line["metrics"]["entropy_bonus/coefficient"] = 0.03 * (60 - line["step"]) / 59
    MetricsLog(cell).write(lines)
    bonus = known(read_run(cell).signal("bonus"))
    assert (bonus.key, bonus.values[0], bonus.values[-1]) == ("entropy_bonus/coefficient", 0.03, 0.0)


def test_half_a_line_at_the_end_is_left_out(cell: Path) -> None:
    path = cell / "metrics.jsonl"
    whole = read_run(path)
    with open(path, "a") as file:
        file.write('{"step": 61, "time"')
    assert read_run(path).curves == whole.curves


def test_read_run_refuses_a_changed_line(cell: Path) -> None:
    path = cell / "metrics.jsonl"
    path.write_text(path.read_text().replace('"entropy/mean": 0.1', '"entropy/mean": 0.2', 1))
    with pytest.raises(Damaged, match=r"metrics\.jsonl is damaged"):
        read_run(path)


def test_read_run_refuses_unfinished_cells(cell: Path) -> None:
    State("planned").write(cell)
    with pytest.raises(UserError, match="has not begun; diagnose reads a run that has ended"):
        read_run(cell)
    State("running", durable_step=60).write(cell)
    with (
        lease.hold(cell),
        pytest.raises(UserError, match="is still running, at step 60 of 60; diagnose reads a run that has ended"),
    ):
        read_run(cell)


def test_read_run_of_killed_and_failed_cells(cell: Path) -> None:
    State("running", durable_step=60).write(cell)
    assert read_run(cell).notes == ["the cell was interrupted before its end"]
    State("failed", "the loss is nan").write(cell)
    assert read_run(cell).notes == ["the cell failed: the loss is nan"]
    (cell / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has no curve of the entropy; the cell failed: the loss is nan"):
        read_run(cell)


def test_diagnose_run_of_a_cell_that_ended_early(cell: Path) -> None:
    state.change(cell, collapsed=60)
    assert diagnose_run(read_run(cell)).verdict == "collapsed"


def test_read_run_refuses_several_cells(pack: Pack) -> None:
    with pytest.raises(UserError, match="holds 35 cells; diagnose reads one of them"):
        read_run(pack.folder / "cells")


# TRL


@pytest.fixture(scope="module")
def trl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of TRL's own trainer after two steps with a tiny model."""
    from trl_trainers import door, trainer_of  # here, since other tests of this file do without trl

    folder = tmp_path_factory.mktemp("trl")
    trainer_of("", folder, kind=door.GRPOTrainer, max_steps=2, save_strategy="steps", save_steps=1).train()
    return folder


@pytest.mark.slow
def test_trl_logs_the_keys_that_the_rules_read(trl_folder: Path) -> None:
    run = read_run(trl_folder)
    assert (run.trainer, run.path.parent.name) == (TRL, "checkpoint-2")
    logged = {name for name in SIGNALS if run.signal(name) is not None}
    with_trl_keys = {name for name, (_, of_trl, _) in SIGNALS.items() if of_trl and not of_trl[0].startswith(DOOR)}
    # The differences from an engine need vLLM, TRL's adaptive coefficient its own option, and the KL a reference model.
    assert logged == with_trl_keys - {"mismatch", "bonus", "reference_kl"}
    entropy = known(run.signal("entropy"))
    assert entropy.steps == [1, 2]
    history = json.loads((trl_folder / "checkpoint-2/trainer_state.json").read_text())["log_history"]
    assert entropy.values == [entry["entropy"] for entry in history]


@pytest.mark.slow
def test_read_run_of_every_log_history(trl_folder: Path, tmp_path: Path) -> None:
    whole = read_run(trl_folder / "checkpoint-2")
    history = json.loads((trl_folder / "checkpoint-2/trainer_state.json").read_text())["log_history"]
    lines, as_list = tmp_path / "history.jsonl", tmp_path / "history.json"
    lines.write_text("".join(f"{json.dumps(entry)}\n" for entry in history))
    as_list.write_text(json.dumps(history))
    assert read_run(lines).curves == read_run(as_list).curves == whole.curves


def history_of(entropies: list[float]) -> list[dict[str, Any]]:
    return [{"step": 10 * i, "entropy": value, "epoch": 0.1} for i, value in enumerate(entropies, 1)]


def test_read_run_of_the_newest_checkpoint(tmp_path: Path) -> None:
    for step, points in (("90", 9), ("100", 10), ("\N{SUPERSCRIPT TWO}", 1)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        document = {"best_metric": None, "log_history": history_of([1.0] * points)}
        (folder / "trainer_state.json").write_text(json.dumps(document, indent=2))
    assert known(read_run(tmp_path).signal("entropy")).steps == list(range(10, 101, 10))


def test_evaluations_and_the_last_entry_of_a_history_are_no_steps_of_the_entropy(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    entries = [*history_of([1.0, 0.9]), {"step": 20, "eval_entropy": 5.0}, {"step": 20, "train_runtime": 9.0}]
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert known(read_run(path).signal("entropy")).values == [1.0, 0.9]


# verl


def test_read_run_of_verl(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first, second = {"actor/entropy": 0.9, "actor/grad_norm": None}, {"actor/entropy": 0.8}
    lines = [{"step": 1, "data": first}, {"step": 2, "data": second}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 3, "da')
    run = read_run(path)
    assert (run.trainer, known(run.signal("entropy")).values) == (VERL, [0.9, 0.8])
    assert run.curves["actor/grad_norm"].lost == 1  # orjson writes NaN as null


def test_our_method_in_verl_and_trl_logs_masses(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    data = {"actor/entropy": 0.9, "entrobench/mass/positive": 0.4, "entrobench/mass/negative": 0.2}
    path.write_text("".join(f"{json.dumps({'step': step, 'data': data})}\n" for step in range(1, 12)))
    assert known(read_run(path).signal("positive_mass")).values == [0.4] * 11


# CSV files


def test_read_run_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("run,step,actor/entropy,actor/grad_norm,val\na,1,0.9,,x\na,2,0.8,nan,\na,2,0.7,1.5,\n")
    run = read_run(path)
    entropy, gradient = known(run.signal("entropy")), known(run.signal("gradient"))
    assert (run.trainer, entropy.steps, entropy.values) == (CSV, [1, 2], [0.9, 0.7])
    assert (gradient.steps, gradient.values, gradient.lost) == ([2], [1.5], None)
    path.write_text("step, actor/entropy\n1.0, 0.9\n2.0, 0.7\n")  # as pandas writes steps, and people columns
    assert read_run(path).signal("entropy") == MetricCurve("actor/entropy", [1, 2], [0.9, 0.7])
    path.write_text("step,entropy/mean,ratio/clipped_low,ratio/clipped_high\n1,0.9,0.25,0.5\n2,0.7,,0.5\n")
    assert read_run(path).signal("clipped") == MetricCurve(CLIPPED, [1], [0.75])


# Refusals


CSV_FILES = [
    (b"", r"line 0 of .* \(its columns are \[\]\)"),
    (b"step,loss\n1,0.5\n", "has no curve of the entropy; expected entropy/mean"),
    (b"epoch;entropy\n1;0.5\n", r"needs a whole number in the column `step` .* columns are \['epoch;entropy'\]"),
    (b"step,entropy\n,0.5\n", "line 2 of .* needs a whole number in the column `step`"),
    (b"step,entropy\n1,0.5\n1.5,0.4\n", "line 3 of .* needs a whole number"),
    (b"step,entropy\n1,low\n", "numbers under the keys of curves .*'low'"),
    (b"step,entropy\n\xff,1\n", r"log.csv is not UTF-8 \(byte 0xff\); save it as UTF-8$"),
    (b"step,entropy\n1," + b"9" * 200_000, r"line . of .* \(field larger than field limit"),
]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; diagnose reads a cell's folder"),
        ("\n \n", "is empty; diagnose reads"),
        ("epoch 1 loss 0.3\n", "is neither JSON nor a log"),
        ("5\n", "has no list named log_history"),
        ('{"loss": 0.1, "iteration": 3}\n', r"has lines of an unknown format, with the keys \['iteration', 'loss'\]"),
        ('{\n "a": 1\n}', "has no list named log_history"),
        ('{"log_history": []}', "has no curve of the entropy"),
        ('{"step": 1, "data": {}}\n', "has no curve of the entropy"),
        *(
            (f'{{"step": 1, "data": {data}}}\n', "line 1 of .* has no step with its data")
            for data in ("5", "null", "[]")
        ),
        *((f'{{"step": {step}, "data": {{}}}}\n', "has no step with its data") for step in ('"x"', "null", "Infinity")),
        ('{"step": 1, "data": {}}\n{"a": 1}\n', "line 2 of .* has no step with its data"),
        (f'{{"step": {"9" * 400}, "entropy": 1}}\n', "has lines of an unknown format"),
        (f'{{"step": 1, "entropy": {"9" * 400}}}\n', "has no curve of the entropy; .* with a finite value"),
        ("[" * 100_000, "is neither JSON nor a log"),
        ('{"step": 1, "loss": 1}\n' + "[" * 100_000 + "\n", "line 2 of .* is not JSON"),
        ('{"step": 1, "loss": 0.1}\n[]\n', r"line 2 of .* is not a JSON object"),
        ('{"step": 1, "loss": 0.1}\n{"step"\n', r"line 2 of .* is not JSON"),
        ('{"step": 1, "loss": 0.1}\n', r"has no curve of the entropy; expected entropy/mean \(entrobench\), entropy"),
        *CSV_FILES,
    ],
)
def test_refused_files(content: str | bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the middle of a message with a long path would be cut out
    path = Path("log.csv" if isinstance(content, bytes) else "log")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    csv.field_size_limit(131_072)  # Python's own; reading a CSV file of problems raises it for the process
    with pytest.raises(UserError, match=message):
        read_run(path)


def test_read_run_refuses_other_paths(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; diagnose reads a cell's folder"):
        read_run(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")  # for which it would wait
    with pytest.raises(UserError, match="is neither a file nor a folder; diagnose reads"):
        read_run(tmp_path / "pipe")
    with pytest.raises(UserError, match="is not the folder of a run; diagnose reads a cell's folder"):
        read_run(tmp_path)


def test_read_run_keeps_only_the_numbers_of_signals_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    others = {f"other/{i}": 0.5 for i in range(200)}
    with open(path, "w") as file:
        for step in range(2_000):
            file.write(json.dumps({"step": step, "entropy": 0.5, **others}) + "\n")
    tracemalloc.start()
    read_run(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4


def test_diagnose_run_of_verl(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = []
    for step, entropy in enumerate(geometric(0.65, 0.05), 1):  # the fall of GRPO in CE-GPPO's figure
        clipped = 0.2 if step > 5 else 0.001
        data = {"actor/entropy": entropy, "actor/pg_clipfrac": clipped, "actor/grad_norm": 0.2}
        lines.append(f"{json.dumps({'step': step, 'data': data})}\n")
    path.write_text("".join(lines))
    diagnosis = diagnose_run(read_run(path))
    assert diagnosis.verdict == "collapsed"
    assert [(finding.rule.name, finding.since) for finding in diagnosis.causes] == [("clip_often_active", 6)]
