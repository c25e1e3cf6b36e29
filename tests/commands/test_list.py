from __future__ import annotations

import pytest
from commands import refusal, run_command

import baselines
from harness.base.terminal import SafeConsole
from harness.commands import list as listing
from harness.methods.verbs import Composition


def list_lines(*arguments: str) -> list[str]:
    return run_command("list", *arguments).splitlines()


def test_list_methods() -> None:
    lines = list_lines("methods")
    headings = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    objectives, controls, compositions = (lines[number].split()[1].rstrip(":") for number in headings)
    assert (objectives, controls, compositions) == ("objectives", "controls", "compositions")
    place = {line.split()[0]: number for number, line in enumerate(lines) if line.startswith(" ")}
    assert place.keys() == baselines.METHODS.keys()
    assert headings[0] < place["ce_gppo"] < headings[1] < place["clip_b"] < headings[2] < place["dapo"]
    dapo = baselines.METHODS["dapo"]
    assert isinstance(dapo, Composition)
    assert f"Short for {dapo.spec} ({dapo.source})" in lines[place["dapo"]]


def test_list_methods_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = SafeConsole(force_terminal=True, width=80, color_system=None, highlight=False, legacy_windows=False)
    monkeypatch.setattr(listing, "console", console)
    lines = list_lines("methods")
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    assert {"generalized", "(arXiv:2402.03300)", "normalise=constant,"} <= words


NOT_IN_TRL = {"ppo", "a2po", "dph_rl", "outcome_exploration", "cue", "m2po"}


@pytest.mark.parametrize(
    ("trainer", "running", "refused", "reason"),
    [
        ("trl", {*baselines.METHODS} - NOT_IN_TRL, NOT_IN_TRL, "ppo needs a critic, which GRPOTrainer lacks"),
        ("verl", {"grpo", "ppo", "clip_b"}, {"clip_v", "otb", "bapo", "siren"}, "needs the sums over squared probabi"),
    ],
)
def test_list_methods_for_a_trainer(trainer: str, running: set[str], refused: set[str], reason: str) -> None:
    lines = list_lines("methods", "--for", trainer)
    [first] = [number for number, line in enumerate(lines) if f"refused: methods that do not run in {trainer}" in line]
    above = {line.split()[0] for line in lines[:first] if line.startswith(" ")}
    below = {line.split()[0] for line in lines[first + 1 :] if line.startswith(" ")}
    assert above | below == set(baselines.METHODS)
    assert not above & below
    assert above >= running
    assert below >= refused
    assert reason in " ".join(" ".join(lines[first + 1 :]).split())


def test_studies_come_with_their_rounds() -> None:
    about = dict(line.split(maxsplit=1) for line in list_lines("studies"))
    assert about["field"].endswith("(rounds: coloring, shortlist, shortlist-coloring)")
    assert "rounds" not in about["sign"]


def test_list_refuses_options_without_effect() -> None:
    sentence = "--for verl is about methods; write entrobench list methods --for verl"
    assert sentence in refusal("list", "tasks", "--for", "verl")
    assert "--plugin adds methods and tasks, and no models" in refusal("list", "models", "--plugin", "my_tasks")
