from __future__ import annotations

import dataclasses
import re
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import refusal, run_command

import tasks
from harness import config, matrix
from harness.base import registry
from harness.base.devices import Device
from harness.base.errors import UserError
from harness.base.units import GIB
from harness.commands import init as command
from harness.launch.machine import Machine
from harness.plan import init
from harness.plan.estimate import Plan, plan_for
from harness.plan.init import Draft, Own, data_line
from harness.plan.probe import StepProbe
from harness.rollout import models

OWN = Own("countdown-tiny", "countdown", "cpu", 1.0)
CPU = Machine(ram=2**50, cores=2, free=2**50)


def draft(**changes: Any) -> Draft:
    return dataclasses.replace(Draft(OWN, max_new_tokens=32, lr=1e-5, problems=64), **changes)


def plan_of(sized: Draft, machine: Machine = CPU) -> Plan:
    settings = sized.config()
    return plan_for(settings, matrix.cells(settings), machine)


@pytest.mark.parametrize(
    ("data", "task"),
    [
        ("countdown", "countdown"),
        ("lists(most=3)", "lists(most=3)"),
        (f"lists(instruction={'a' * 300})", f"lists(instruction={'a' * 300})"),
        ("my/rows.jsonl", 'problems(file="my/rows.jsonl")'),
        ("a b.csv", 'problems(file="a b.csv")'),
        ("año 😀.CSV", 'problems(file="año 😀.CSV")'),
        ("owner/name", 'problems(hub="owner/name")'),
        ("owner/name@main", 'problems(hub="owner/name@main")'),
    ],
)
def test_task_of_data(data: str, task: str) -> None:
    assert dataclasses.replace(OWN, data=data).task == task


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("data/mine.txt", "the end of problems.file is '.txt'; allowed: .csv, .json, .jsonl, .parquet"),
        ("data/folder", "problems.file is 'data/folder', which cannot be read: Is a directory"),
        ("./nowhere", "problems.file is 'nowhere', which cannot be read: No such file or directory"),
    ],
)
def test_a_path_without_rows_is_no_task_and_not_on_the_hub(
    data: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/folder").mkdir(parents=True)
    Path("data/mine.txt").touch()
    assert refusal("init", "a.yaml", "--model", "countdown-tiny", "--data", data) == f"entrobench: {said}\n"


def test_line_on_data_of_ones_own(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"problem": "{number} + 1 = ?", "answer": {number + 1}}}\n' for number in range(100)))
    assert data_line(tasks.build_task(f"problems(file={rows})")).startswith(f"{rows} (data=")
    assert data_line(tasks.build_task("countdown")).endswith(" test problems")


def test_text_is_the_configuration_of_the_draft(tmp_path: Path) -> None:
    sized = draft(steps=31, prompts=8, seeds=(0, 1), hardware={"threads": 2, "recompute": True}, findings=["Look: ..."])
    path = tmp_path / "mine.yaml"
    path.write_text(sized.text("mine.yaml"))
    settings = config.load_config(str(path))
    assert (settings.methods, settings.method_options) == (["grpo", "clip_b"], {"clip_b": {"share": 0.02}})
    assert (settings.models, settings.tasks, settings.seeds) == (["countdown-tiny"], ["countdown"], [0, 1])
    train, evaluation = settings.train, settings.eval
    assert (train.steps, train.prompts, train.group, train.updates, train.lr) == (31, 8, 8, 2, 1e-5)
    assert (evaluation.problems, evaluation.samples, evaluation.k) == (64, 16, 8)
    assert settings.rollout.max_new_tokens == 32
    assert (settings.hardware.device, settings.hardware.threads, settings.hardware.recompute) == ("cpu", 2, True)
    assert settings.train.lora is None
    assert "# Look: ...\n" in path.read_text()
    path.write_text(draft(own=dataclasses.replace(OWN, lora=True), lr=3e-5).text("mine.yaml"))
    with_adapters = config.load_config(str(path)).train
    assert with_adapters.lora is not None
    assert (with_adapters.lora.rank, with_adapters.lr) == (16, 3e-5)


def test_names_in_any_alphabet_and_with_blanks() -> None:
    own = dataclasses.replace(OWN, model="modèle 😀", data="año 😀.CSV", plugins=["módulo"])
    sized = draft(own=own)
    settings = sized.config()
    assert (settings.models, settings.plugins) == (["modèle 😀"], ["módulo"])
    _, options = registry.parse(settings.tasks[0])
    assert options == {"file": "año 😀.CSV"}
    assert "#     entrobench run 'my file.yaml' " in sized.text("my file.yaml")


@pytest.mark.parametrize(
    ("hours", "prompts", "seeds", "steps"),
    [
        # Two cells at once, each with 2 x 64 x 16 responses of 0.01 s in its evaluations, and steps of 10 s.
        (3 * (20.48 + 200 * 10) / 3600 + 1e-9, 16, 3, 200),
        (9 * (20.48 + 200 * 10) / 3600, 16, 3, 200),  # not more
        (3 * (20.48 + 20 * 10) / 3600 + 1e-9, 16, 3, 20),
        (3 * (20.48 + 20 * 10) / 3600 - 1e-9, 16, 2, 31),  # (661.44 / 2 - 20.48) / 10
        (1 * (20.48 + 20 * 10) / 3600 + 1e-9, 16, 1, 20),
        (1 * (20.48 + 20 * 10) / 3600 - 1e-9, 8, 1, 39),  # with steps of 5 s
        (1e-3, 4, 1, 20),  # too little for anything: the least
    ],
)
def test_in_time_takes_the_most_that_the_hours_allow(hours: float, prompts: int, seeds: int, steps: int) -> None:
    own = dataclasses.replace(OWN, hours=hours)
    found = init.in_time(draft(own=own), plan_of(draft()), StepProbe("a cell", 10.0, 16, 0.01, 9.0, 0.0))
    assert (found.prompts, len(found.seeds), found.steps) == (prompts, seeds, steps)


@pytest.mark.parametrize(
    ("response", "prompts"),
    [
        # Two cells at once, each with 2 x 64 x 16 responses in its evaluations, and 20 steps of 8 responses a prompt.
        (3600 / (2048 + 20 * 128) - 1e-6, 16),
        (3600 / (2048 + 20 * 128) + 1e-6, 8),
        (3600 / (2048 + 20 * 64) + 1e-6, 4),
    ],
)
def test_no_more_prompts_are_measured_than_a_look_leaves_time_for(
    response: float, prompts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(settings: config.Config, plan: Plan) -> StepProbe:
        assert settings.train.prompts == prompts
        raise UserError("measured")

    seen = SimpleNamespace(right=[[0, 1]] * 3, samples=2, seconds=6 * response, length=5.0, sentence="")
    monkeypatch.setattr(init, "look", lambda *given: seen)
    monkeypatch.setattr(init, "measured_step", measured)
    monkeypatch.setattr(init, "this_machine", lambda settings: CPU)
    monkeypatch.setattr(models.Model, "folder", lambda *given, **named: Path())
    said: list[str] = []
    with pytest.raises(UserError, match=r"^measured$"):
        init.configuration(OWN, "mine.yaml", said.append)
    assert said[-1].startswith(f"measuring three steps of {8 * prompts} responses ")


def test_fitting_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    large = draft(own=dataclasses.replace(OWN, model="qwen2.5-0.5b-instruct"))
    [footprint] = plan_of(large).footprints
    needed = footprint.memory.needed("cpu")

    def found(ram: int) -> dict[str, Any]:
        machine = dataclasses.replace(CPU, ram=ram)
        monkeypatch.setattr(init, "this_machine", lambda settings: machine)
        return init.fitting_hardware(plan_of(large, machine))

    assert found(2 * needed) == {}
    assert found(2 * needed - 1) == {"threads": 2}, "one cell at a time"
    assert found(needed - 1) == {"recompute": True, "threads": 2}
    with pytest.raises(UserError, match=r"training qwen2.5-0.5b-instruct needs .* no setting makes it fit into 1.0"):
        found(GIB)


@pytest.mark.parametrize(("cards", "ranks"), [(1, None), (2, 2)])
def test_no_more_cards_than_there_are(cards: int, ranks: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dataclasses.replace(CPU, devices=(Device("a GPU", 16 * 10**9),) * cards)
    monkeypatch.setattr(init, "this_machine", lambda settings: machine)
    large = plan_of(draft(own=dataclasses.replace(OWN, model="qwen2.5-1.5b-instruct", device="cuda")), machine)
    if ranks:
        assert init.fitting_hardware(large)["ranks"] == ranks
        return
    with pytest.raises(UserError, match=r"no setting makes it fit into 14.9 GiB; --lora needs less"):
        init.fitting_hardware(large)


@pytest.mark.processes
def test_configuration_runs_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    words = ["init", str(path), "--model", "countdown-tiny", "--data", "countdown", "--hours", "1"]
    said = r"(?s)\ntrainable: .*\nmeasuring three steps of 128 responses of at most \d+ tokens"
    assert re.search(said, run_command(*words))
    text = path.read_text()
    look = r"# Look: trainable: 1\d of 24 problems have right and other responses; Avg@8 0\.1\d\d ±0\.0\d\d,"
    assert re.search(look, text), "processors round the base model's own training differently"
    assert "tokens a response.\n# Time: a step of 16 prompts took " in text, "wrapped"
    assert "# Model: 206,976 parameters, computed in float32 on cpu.\n" in text
    assert "lr: 3.5e-04\n" in text
    settings = config.load_config(str(path), [f"results={tmp_path}"])
    assert plan_for(settings, matrix.cells(settings), CPU).lacks == []
    assert "exists, and is never overwritten" in refusal(*words)
    assert "methods: [grpo, clip_b]" in run_command(*words, "--print")
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine.yaml", "--data", "countdown"], "--model is missing: a folder, a GGUF file"),
        (["mine.yaml", "--model", "countdown-tiny"], "--data is missing: a file of problems"),
        (["mine", "--model", "countdown-tiny", "--data", "countdown"], "mine; it must be a name that ends with .yaml"),
        ([".yaml", "--model", "countdown-tiny", "--data", "countdown"], ".yaml; it must be a name that ends with"),
        (["eval.yaml", "--model", "countdown-tiny", "--data", "countdown"], "'eval', which is reserved in the results"),
        (["mine!.yaml", "--model", "countdown-tiny", "--data", "countdown"], "name is 'mine!'; allowed: up to 100"),
        (["no/mine.yaml", "--model", "countdown-tiny", "--data", "countdown"], "the folder no does not exist"),
        (["mine.yaml", "--model", "m\udce9", "--data", "countdown"], "--model is 'm\\udce9', with a character that"),
        (["mine.yaml", "--model", "countdown-tiny", "--data", "countdown", "--hours", "two"], "it must be a number"),
        (["mine.yaml", "--model", "countdown-tiny", "--data", "countdown", "--hours", "0"], "allowed: 0.01 and more"),
        (["mine.yaml", "--model", "countdown-tiny", "--data", "countdown", "--device", "tpu"], "allowed: auto, cpu, c"),
        (["mine.yaml", "--model", "countdown-tiny", "--data", "aime24"], "the split to train on is 'train'"),
        (["mine.yaml", "--model", "countdown-huge", "--data", "countdown"], "unknown model 'countdown-huge'"),
    ],
)
def test_init_refuses_before_any_work(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())  # no terminal
    assert said in refusal("init", *words, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"

    def configuration(*given: Any) -> str:
        path.write_text("another's")
        return "ours"

    monkeypatch.setattr(init, "configuration", configuration)
    words = ["init", str(path), "--model", "countdown-tiny", "--data", "countdown", "--hours", "1", "--device", "cpu"]
    assert "exists, and is never overwritten" in refusal(*words)
    assert path.read_text() == "another's"


def test_answer_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter(["", " countdown ", ""])
    asked: list[str] = []
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)

    def answered(text: str) -> str:
        asked.append(text)
        return next(given)

    monkeypatch.setattr("builtins.input", answered)
    assert command.answer("data") == "countdown", "what has no default is asked for again"
    assert command.answer("hours") == "1"
    assert [text.partition(" ")[0] for text in asked] == ["data", "data", "hours"]
