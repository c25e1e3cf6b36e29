"""A diagnosis as people and programs read it, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from commands import run_command, run_python
from logged_runs import geometric, logged_run

from harness.diagnose.rules import diagnose_run
from harness.diagnose.signals import TRL, LoggedRun
from harness.diagnose.text import diagnosis_record, diagnosis_text

FALL = geometric(1.0, 0.2)
REPEATED = {"without_signal": [0.1] * 5 + [0.6] * 35, "clipped": [0.01] * 30 + [0.3] * 10}


def test_diagnosis_text_of_a_fall() -> None:
    text = diagnosis_text(diagnose_run(logged_run(entropy=FALL, **REPEATED)), None)
    verdict, summary, entropy, _, title, cause, curve, remedy, *_ = text.splitlines()
    assert verdict == "run: fell"
    assert summary == ("entrobench: 40 logged steps, 1 to 40; it ends at 0.22 of its start, below 0.4")
    bars = "██▇▇▇▆▆▆▆▅▅▅▅▄▄▄▄▄▃▃▃▃▃▃▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁"
    assert entropy == f"  | entropy/mean, running median  0.96 (step 1) -> 0.438 (step 21) -> 0.208 (step 40)  {bars}"
    assert title == "likely causes, the most likely first:"
    assert cause.startswith("1. in at least half of the groups, all responses have the same reward")
    assert cause.endswith("(since step 6)")
    numbers = "0.1 (step 1) -> 0.6 (step 6) -> 0.6 (step 40)"
    assert curve == f"  | reward/groups_without_signal, running median  {numbers}  {'▁' * 5}{'█' * 35}"
    assert remedy.startswith("   remedy: draw groups until enough of them have a signal (train.resample)")
    assert "only after the turn (step 21), so more likely effects than causes:" in text
    [effect] = [line for line in text.splitlines() if line.startswith("- ")]
    assert effect.startswith("- the clip acts on at least 3% of the tokens")
    assert effect.endswith("(since step 31)")


SPIKE = [1.0] * 9 + [20.0] + [1.0] * 30


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (logged_run(TRL, entropy=[1.0] * 20), "not checked, since the log lacks the curve:"),
        (logged_run(TRL, entropy=[1.0] * 20), "gradient spikes (grad_norm)"),
        (logged_run(TRL, entropy=[1.0] * 20), "unreadable answers (entrobench: verdicts/unparsed)"),
        (logged_run(entropy=FALL), "no known cause shows in these curves before the turn"),
        (logged_run(entropy=FALL, gradient=[nan] * 40), "stops being a finite number (since step 1)\n   remedy: look"),
        (replace(logged_run(entropy=FALL), method="grpo+clip_b"), "entrobench, grpo+clip_b: 40 logged steps"),
        (logged_run(entropy=FALL, gradient=SPIKE), "| gradient/norm  1 (step 1) -> 20 (step 10) -> 1 (step 40)"),
    ],
    ids=["missing curves", "their keys", "keys of others", "no known cause", "no numbers", "method", "spike"],
)
def test_diagnosis_text_says(run: LoggedRun, words: str) -> None:
    assert words in diagnosis_text(diagnose_run(run), None)


def test_sentences_are_folded_and_curves_are_not() -> None:
    text = diagnosis_text(diagnose_run(logged_run(entropy=FALL, **REPEATED)), 60)
    for line in text.splitlines():
        assert len(line) <= 60 or line.startswith("  | ")
    assert "   remedy: draw groups until" in text


def test_json_has_the_same_facts() -> None:
    diagnosis = diagnose_run(logged_run(entropy=FALL, **REPEATED))
    record = json.loads(json.dumps(diagnosis_record(diagnosis), allow_nan=False))
    assert (record["verdict"], record["turn"], record["trainer"]) == ("fell", 21, "entrobench")
    [cause] = record["causes"]
    assert (cause["name"], cause["since"]) == ("few_signals", 6)
    assert [end["step"] for end in cause["curves"][0]["values"]] == [1, 6, 40]
    assert [effect["name"] for effect in record["effects"]] == ["clip_often_active"]
    assert record["unchecked"]["gradient_spikes"] == ["gradient/norm"]


# The command


def verl_log(folder: Path, entropies: list[float]) -> Path:
    path = folder / "verl.jsonl"
    with open(path, "w") as file:
        for step, entropy in enumerate(entropies, 1):
            print(json.dumps({"step": step, "data": {"actor/entropy": entropy}}), file=file)
    return path


def test_diagnose_formats(tmp_path: Path) -> None:
    path = verl_log(tmp_path, FALL)
    for options, begins in (((), f"{path}: fell\n"), (("--format", "json"), "{")):
        assert run_command("diagnose", str(path), *options).startswith(begins)


def test_control_characters_of_a_log_are_shown_and_do_nothing(tmp_path: Path) -> None:
    hidden = verl_log(tmp_path, FALL).rename(tmp_path / "a\x1b[31mb.jsonl")
    assert "\x1b" not in run_command("diagnose", str(hidden))


@pytest.mark.processes
def test_diagnose_without_torch(tmp_path: Path) -> None:
    path = verl_log(tmp_path, FALL)
    script = f"import sys; from harness import cli\ntry: cli.main(['diagnose', {str(path)!r}])\n"
    script += "finally: assert 'torch' not in sys.modules"
    run_python("-c", script, cwd=tmp_path)
