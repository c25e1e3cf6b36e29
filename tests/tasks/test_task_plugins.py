"""Tasks from outside the repository: plugin modules, an installed package, and messages about invalid tasks."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import Commands

import tasks
from harness import config, matrix, runs
from harness.base import plugins
from harness.base.errors import UserError
from harness.elsewhere import assess
from harness.plan import cost
from harness.rollout import models
from harness.verify.pool import VerifierPool

EXAMPLE = Path(__file__).parent / "plugin_example"
SMALL = ["train.steps=1", "train.prompts=4", "train.group=4", "eval.samples=4", "eval.k=2", "eval.problems=6"]
SMALL += ["methods=[grpo]", "rollout.max_new_tokens=6"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.delitem(sys.modules, "sums_example", raising=False)  # other tests have others of this name
    return "sums_example"


@pytest.fixture
def installed(tmp_path: Path, example: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what an installer makes of the example's pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["entrobench.tasks"].items())
    (info / "entry_points.txt").write_text(f"[entrobench.tasks]\n{lines}")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


# Found


def test_task_table_with_a_plugin_module(example: str) -> None:
    table = tasks.task_table([example])
    assert set(table) - set(tasks.TASKS) == {"example_sums"}
    assert "example_sums" not in tasks.TASKS
    assert "example_sums" not in tasks.task_table()
    assert tasks.task_table([example, example]) == table
    task = tasks.build_task("example_sums(largest=3)", [example])
    assert [problem.id for problem in task.problems("train")] == ["1+2", "2+1", "2+3", "3+2"]
    assert tasks.lm_eval_settings(task)["repeats"] == 2
    with pytest.raises(UserError, match=r"unknown task 'example_sums'; allowed: "):
        tasks.build_task("example_sums")


def test_task_table_with_an_installed_package(installed: Path) -> None:
    assert tasks.task_table()["example_sums"] is tasks.task_table(["sums_example"])["example_sums"]
    (info,) = installed.glob("*.dist-info/entry_points.txt")
    plugins.installed_entry_points.cache_clear()  # installed packages normally do not change within a process
    info.write_text("[entrobench.tasks]\nlost = sums_example:Lost\n")
    with pytest.raises(UserError, match="plugin sums_example has no Lost"):
        tasks.task_table()


def test_cells_of_methods_and_tasks_in_a_module(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from sums_example import TASKS\nfrom harness.methods.verbs import Control\n"
    (tmp_path / "both_offers.py").write_text(f"{text}class Idle(Control): ...\nMETHODS = {{'idle': Idle}}\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = config.load_config("smoke", ["plugins=[both_offers]", "methods=[grpo,idle]", "tasks=[example_sums]"])
    assert [(cell.method, cell.task) for cell in matrix.cells(settings)] == [
        ("grpo", "example_sums"),
        ("idle", "example_sums"),
    ]


def test_response_count_of_a_plugin_task(example: str) -> None:
    overrides = [f"plugins=[{example}]", "tasks=['example_sums(largest=5)']", "train.filter={n: 8}"]
    settings = config.load_config("smoke", overrides)
    settings.eval.problems = None
    assert cost.evaluation_responses(settings)["example_sums(largest=5)"] == cost.ResponseCount(13, 16)
    assert cost.filter_responses(settings)["example_sums"] == cost.ResponseCount(12, 8)
    (first, _) = matrix.cells(settings)
    assert first.identity["task"] == {"component": "Sums", "largest": 5}


# Run


@pytest.mark.processes
@pytest.mark.long
def test_plugin_task_is_planned_trained_on_and_evaluated(example: str, commands: Commands, tmp_path: Path) -> None:
    """In a folder full of YAML that states the same task, as the cells of earlier runs do."""
    plugin = ["--plugin", example]
    output = commands.entrobench("list", "tasks", *plugin)
    assert re.search(r"^ *example_sums +Sums of two numbers", output, re.MULTILINE)
    asked = ["smoke", "tasks=[example_sums]", *SMALL, *plugin]
    assert "evaluation, a cell: 2 x (example_sums 6 problems x 4)" in commands.entrobench("plan", *asked)
    # 1: the model of another task answers nothing that can be read, so nothing is learned.
    assert "1 to run" in commands.entrobench("run", *asked, code=1)
    (cell,) = tmp_path.glob("results/smoke/grpo-example_sums-*/evals/example_sums-000001.json")
    assert '"1+1"' in cell.read_text()
    output = commands.entrobench("leaderboard", *asked, "--format", "csv")
    assert output.splitlines()[2].startswith("grpo,example_sums,countdown-tiny")  # after the base model
    sampled = ["--model", "countdown-tiny", "--tasks", "example_sums(largest=3)", *plugin]
    output = commands.entrobench("eval", *sampled)
    assert re.search(r"^example_sums\(largest=3\) +5 +2 ", output, re.MULTILINE)


@pytest.mark.processes
@pytest.mark.slow
def test_lm_evals_own_command_runs_an_installed_task(installed: Path, commands: Commands, tmp_path: Path) -> None:
    output = commands.lm_eval("run", "--include_path", str(EXAMPLE), "--model", "dummy", "--tasks", "example_sums")
    assert re.search(r"\|unparsed *\|[^|]*\|? *\|? *1", output), output


OTHERS = """
from dataclasses import dataclass
from typing import ClassVar
from sums_example import Sums

@dataclass(frozen=True)
class Other(Sums):
    name: ClassVar[str] = "{name}"

TASKS = {{"{name}": Other}}
"""


Offer = Callable[[str, str, str | None], str]


@pytest.fixture
def offer(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Write a module named `broken`, and the lm-eval file of a task next to it."""
    monkeypatch.syspath_prepend(tmp_path)

    def module(text: str, name: str, yaml: str | None) -> str:
        (tmp_path / "broken.py").write_text(text)
        monkeypatch.delitem(sys.modules, "broken", raising=False)
        if yaml is not None:
            (tmp_path / f"{name}.yaml").write_text(yaml)
        return "broken"

    return module


YAML = (EXAMPLE / "sums_example" / "example_sums.yaml").read_text()


@pytest.mark.parametrize("name", ["hellaswag", "arc_easy", "mmlu"])
def test_assess_a_name_of_lm_eval(name: str, offer: Offer, tmp_path: Path) -> None:
    """This holds for names of tasks and groups, with any YAML file next to the plugin."""
    plugin = offer(OTHERS.format(name=name), name, YAML.replace("task: example_sums", f"task: {name}"))
    for decoy in ("a.yaml", "results/smoke/grpo/config.yaml"):
        (tmp_path / decoy).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / decoy).write_text(f"task: {name}\nmethod: grpo\n")
    torch.set_num_threads(1)
    task = tasks.build_task(f"{name}(largest=2)", [plugin])
    with VerifierPool() as verifier:
        wanted = assess.Wanted(max_new_tokens=4)
        tiny = models.resolve("countdown-tiny")
        (result,) = assess.assess(tiny, [task], wanted, verifier, tmp_path / "out", lambda text: None)
    assert result["task"] == f"{name}(largest=2)"
    assert result["problems"] == ["1+1", "2+2"]
    assert list(map(len, result["right"])) == [2, 2]


# Refused

IMPORTS = "from sums_example import Sums\n"
MINE = f"{IMPORTS}class Mine(Sums):\n  name = 'mine'\nTASKS = {{'mine': Mine}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TASKS = {'mine': 3}", "task 'mine' of plugin broken is 3; it must be a class"),
        (
            "class Mine: name = 'mine'\nTASKS = {'mine': Mine}",
            "has no splits, no problems, no verdicts, no answers, no flags",
        ),
        (
            "class Mine:\n  name = 'mine'; splits = ('test',)\n  problems = verdicts = answers = flags = print\n"
            "TASKS = {'mine': Mine}",
            "task 'mine' of plugin broken is not a frozen dataclass",
        ),
        (f"{IMPORTS}TASKS = {{'mine': Sums}}", "task 'mine' of plugin broken is called 'example_sums' in its class"),
        (
            MINE.replace("'mine'\n", "'mine'; splits = ('tests',)\n"),
            r"splits of task 'mine' of plugin broken is \('tests',\); it must be a tuple of some of train, validation",
        ),
        (MINE, r"task 'mine' of plugin broken lacks the lm-eval file /.*/mine.yaml, in the folder of its class"),
        (MINE.replace("mine", "gsm8k"), "'gsm8k' of plugin broken has the name of one in tasks.gsm8k; choose another"),
    ],
)
def test_task_table_refuses_what_is_no_task(text: str, words: str, offer: Offer, tmp_path: Path) -> None:
    (tmp_path / "gsm8k.yaml").write_text(YAML.replace("task: example_sums", "task: gsm8k"))
    with pytest.raises(UserError, match=words):
        tasks.task_table([offer(text, "mine", None)])


WHOLE = YAML.replace("task: example_sums", "task: mine")


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("", "mine.yaml must contain a mapping of keys"),
        ("task: [", r"mine.yaml of task 'mine' of plugin broken is not valid YAML"),
        (
            "task: mine\nrepeats: 2\ngeneration_kwargs: {until: []}",
            r"mine.yaml of task 'mine' of plugin broken is not complete; it lacks test_split, output_type, "
            r"doc_to_text, doc_to_target, generation_kwargs\.temperature, generation_kwargs\.max_gen_toks$",
        ),
        (YAML, "task is 'example_sums' in .*mine.yaml of task 'mine' of plugin broken; allowed: mine"),
        (WHOLE.replace("text: prompt", "text: question"), "doc_to_text is 'question' in .*; allowed: prompt"),
        (WHOLE.replace("split: test", "split: validation"), "test_split is 'validation' in .*; allowed: train, test"),
        (WHOLE.replace("repeats: 2", "repeats: 0"), r"mine.yaml: repeats is 0; allowed: 1 and more"),
        ("include: ../math.yaml\ntask: mine", r"lacks the lm-eval file .*/math.yaml, which mine.yaml includes"),
    ],
)
def test_cells_refuse_incomplete_files(yaml: str, words: str, offer: Offer) -> None:
    plugin = offer(MINE, "mine", yaml)
    with pytest.raises(UserError, match=words):
        matrix.cells(config.load_config("smoke", [f"plugins=[{plugin}]"]))


@pytest.mark.parametrize(
    ("problems", "words"),
    [
        ("[]", r"mine has no problems in its train split"),
        ("super().problems(split) * 3", r"3 problems of mine have the id '1\+2' in its train split"),
    ],
)
def test_run_refuses_problems_without_ids_of_their_own(problems: str, words: str, offer: Offer) -> None:
    text = MINE.replace("'mine'\n", f"'mine'\n  def problems(self, split): return {problems}\n", 1)
    plugin = offer(text, "mine", WHOLE)
    with pytest.raises(UserError, match=words):
        runs.check_problems(config.load_config("smoke", [f"plugins=[{plugin}]", "tasks=[mine]"]))
