"""The mathematical tasks, their lm-eval files, and the single function that makes prompts from problems."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shlex
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import invented
import numpy as np
import pytest
from commands import Commands, run_python
from places import REPOSITORY
from trainers import asked, build, sampled

import tasks
from harness import config, matrix
from harness.base import identities
from harness.base.errors import UserError
from harness.base.task import Answer, Countable
from harness.cells.spec import CellSpec
from harness.rollout import models
from harness.rollout.rendering import Chat, with_instruction
from harness.tokens.metrics import Stopwatch
from harness.train import parts
from harness.train.evaluate import Evaluator, quiet
from harness.train.trainer import Trainer
from harness.verify.pool import TooManyFailures, VerifierPool
from tasks import Problem, Verdict, rg, scoring
from tasks.countdown import Countdown
from tasks.data import cache, check, sets
from tasks.math import INSTRUCTION, Math, held_out
from tasks.scoring import majority, metric_list

pytestmark = pytest.mark.slow

REPEATS = {"aime24": 32, "aime25": 32, "amc23": 32, "coloring": 32, "countdown": 32}
REPEATS |= {"dapo500": 8, "dapo_math": 8, "gsm8k": 8, "math500": 8, "problems": 8, "rg": 8}
REPEATS |= {"lists": 32, "sentences": 32, "sorting": 32}
EMBEDDED = {"coloring": 16, "countdown": 32, "lists": 40, "sentences": 24, "sorting": 24}  # most tokens of a response


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with four invented problems in every evaluation set."""
    invented.prepare_in(tmp_path / "cache", monkeypatch, *sets.SETS)
    return tmp_path / "cache"


def test_lm_eval_file_of_every_task() -> None:
    assert set(tasks.TASKS) == set(REPEATS)
    for name, cls in tasks.TASKS.items():
        task = tasks.build_task(name)
        assert task.name == cls.name == name
        assert tasks.lm_eval_file(task) == REPOSITORY / "tasks" / name / f"{name}.yaml"


@pytest.mark.parametrize("name", REPEATS)
def test_lm_eval_settings_of_every_task(name: str, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.tasks import TaskManager

    everything = {"train": "9", "validation": "8", "test": "7"}
    rows = [{"id": split, "problem": split, "answer": answer} for split, answer in everything.items()]
    monkeypatch.setattr(cache, "problem_rows", lambda name, split: rows)
    monkeypatch.setattr("tasks.math.held_out", lambda problem: problem == "validation")
    monkeypatch.setattr("tasks.problems.OwnProblems.rows", lambda task, split: rows)
    monkeypatch.setattr("tasks.problems.OwnProblems.data", SimpleNamespace(shots={}))
    monkeypatch.setattr("tasks.rg.questions", lambda *_: list(enumerate(everything)))
    monkeypatch.setattr("tasks.rg.question_split", str)
    with quiet():
        loaded = TaskManager(include_path=REPOSITORY / "tasks", include_defaults=False).load([name])
    (settings,) = (task.config for task in loaded["tasks"].values())
    repeats = REPEATS[name]
    assert settings.repeats == repeats
    assert settings.metric_list == metric_list(repeats, countable=name in EMBEDDED and name != "sentences")
    assert settings.filter_list == [{"name": "all", "filter": [{"function": "take_first_k", "k": repeats}]}]
    assert settings.test_split == ("validation" if name == "dapo_math" else "test")
    generation = {"until": [], "do_sample": True, "temperature": 0.7, "max_gen_toks": 7168}
    if name == "problems":
        generation["max_gen_toks"] = 1024
    if name in EMBEDDED:
        generation |= {"temperature": 1.0, "max_gen_toks": EMBEDDED[name]}
    assert settings.generation_kwargs == generation
    # Those who start without lm-eval read the same.
    ours = tasks.lm_eval_settings(tasks.build_task(name))
    for key in ("repeats", "generation_kwargs", "filter_list", "test_split"):
        assert ours[key] == getattr(settings, key)
    assert [metric["metric"] for metric in ours["metric_list"]] == [metric["metric"] for metric in settings.metric_list]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tasks=[aime24]"], "but the task aime24 has only test"),
        (["tasks=[dapo_math]"], "eval.split is 'test', but the task dapo_math has only train and validation"),
        (["eval.tasks=[aime24]", "eval.split=validation"], "eval.split is 'validation', but the task aime24"),
    ],
)
def test_cells_refuse_a_missing_split(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        matrix.cells(config.load_config("demo", overrides))
    assert matrix.cells(config.load_config("demo", ["tasks=[dapo_math]", "eval.tasks=[aime24,dapo500]"]))


def test_validation_of_dapo_math(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"problem {i}" for i in range(20_000)]
    invented.prepare("dapo_math", "train", dict.fromkeys(texts, "1"))
    task = tasks.build_task("dapo_math")
    validation = {problem.prompt for problem in task.problems("validation")}
    train = {problem.prompt for problem in task.problems("train")}
    assert len(validation) + len(train) == len(validation | train) == 20_000
    assert 0.017 < len(validation) / 20_000 < 0.023
    # Another rule would mix what earlier models were trained on into what settings are chosen with.
    assert [text for text in texts[:100] if held_out(text)] == ["problem 52", "problem 61", "problem 91"]
    invented.prepare("dapo_math", "train", dict.fromkeys(texts[::-7], "1"))
    some = {problem.prompt for problem in task.problems("validation")}
    assert some == {prompt for prompt in validation if prompt.partition("\n")[0] in texts[::-7]}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("coloring(nodes=7)", "coloring.nodes is 7; allowed: 4 to 6"),
        ("coloring(node=5)", "unknown key coloring.node; allowed: colors, nodes; did you mean 'nodes'?"),
        ("lists(least=5)", "lists.least is 5; allowed: up to lists.most (4)"),
        ("sentences(most=3)", "sentences.least is 4; allowed: up to sentences.most (3)"),
        ("sorting(count=2)", "sorting.count is 2; allowed: 3 to 10"),
        ("sorting(shots=9)", "sorting.shots is 9; allowed: 0 to 8"),
        ("lists(letters=some)", "lists.letters is 'some'; allowed: both, with, without"),
        ("aime24(reward=string)", "aime24.reward is 'string'; allowed: strings, verdict; did you mean 'strings'?"),
        *((f"rg(env={env})", f"rg.env={env} is refused: {reason}") for env, reason in rg.REFUSED.items()),
    ],
)
def test_build_task_refuses_options(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        tasks.build_task(spec)


# Prompts


def test_prompt_with_an_instruction(prepared: Path) -> None:
    plain = tasks.build_task("aime24").problems("test")
    assert {p.prompt: p.answer for p in plain} == {f"{text}\n\n{INSTRUCTION}": a for text, a in invented.ROWS.items()}
    assert r"\boxed{}" in INSTRUCTION
    bare = tasks.build_task("aime24(instruction='')").problems("test")
    assert {p.prompt for p in bare} == set(invented.ROWS)
    other = tasks.build_task("aime24(instruction='Think, then answer.')").problems("test")
    assert [p.prompt for p in other] == [f"{p.prompt}\n\nThink, then answer." for p in bare]
    assert [p.id for p in other] == [p.id for p in plain]


def test_with_instruction_of_a_model() -> None:
    short = Chat(instruction="Box it.")
    assert with_instruction(tasks.build_task("aime24"), short) == tasks.build_task("aime24(instruction='Box it.')")
    assert with_instruction(tasks.build_task("countdown(count=4)"), short) == tasks.build_task("countdown(count=4)")
    without = tasks.build_task("aime24(instruction='')")
    assert with_instruction(without, short) == without
    assert with_instruction(tasks.build_task("aime24"), Chat(system="s")) == tasks.build_task("aime24")

    class Fixed(Countdown):
        instruction = "Go."

    with pytest.raises(UserError, match=r"^task countdown has an instruction that is not an option, which the model's"):
        with_instruction(Fixed(), short)


TEMPLATE = "{% for m in messages %}({{ m['content'] }}){% endfor %}{{ end }}{% if add_generation_prompt %}={% endif %}"


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    model = tmp_path / "wordy.yaml"
    chat = {"path": str(models.resolve("countdown-tiny").folder()), "system": "4", "template": TEMPLATE}
    model.write_text(json.dumps({**chat, "template_options": {"end": "6"}}))
    short = ["eval.problems=6", "eval.samples=2", "eval.k=1", "eval.split=train", "train.prompts=6", "train.group=2"]
    short += [f"models=[{model}]", "rollout.max_new_tokens=4", f"results={tmp_path}"]
    settings = config.load_config("demo", short)
    planned = matrix.cells(settings)[0]
    assert planned.identity["model"]["chat"] == {"system": "4", "template": TEMPLATE, "template_options": {"end": "6"}}
    planned.spec.write(planned.folder)
    built = Trainer(parts.build_parts(CellSpec.read(planned.folder), VerifierPool()), planned.folder)
    built.engine.load(built.policy.module)
    return built


@pytest.mark.processes  # renders the template of its model
def test_training_and_evaluation_show_a_model_the_same(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = trainer.parts.task.problems("train")[:6]
    monkeypatch.setattr(trainer.collector, "problems", lambda step, places: problems)
    with mock.patch.object(trainer.engine, "generate", wraps=trainer.engine.generate) as generate:
        sampled(trainer, 1)
        trainer.evaluate(0)
    trained, evaluated = (call.args[0] for call in generate.call_args_list)
    assert evaluated == trained
    expected = [f"(4)({problem.prompt})6=" for problem in problems]
    assert trained == [trainer.parts.tokenizer(text)["input_ids"] for text in expected]
    evaluator = Evaluator(trainer.engine, trainer.parts.tokenizer, trainer.parts.verifier, trainer.parts.chat)
    assert [evaluator.rendered(problem) for problem in problems] == trained


def test_flags_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "flags", lambda name: [f"{name} is known by heart"])

    class Own(Math):
        name = "own"  # no set of `entrobench data`

    for trained_on in (None, "dapo_math"):
        assert tasks.build_task("amc23(instruction=Go)").flags(trained_on) == ["amc23 is known by heart"]
        assert tasks.build_task("countdown").flags(trained_on) == Own().flags(trained_on) == []
    for trained_on in ("countdown", "gsm8k", "own"):
        assert tasks.build_task("amc23").flags(trained_on) == []


@pytest.mark.processes
def test_flags_by_the_training_set(trainer: Trainer, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "flags", lambda name: [f"{name} is known by heart"])
    evaluated = {name: tasks.build_task(name) for name in ("amc23", "countdown")}
    trainer.parts = dataclasses.replace(trainer.parts, evaluation_tasks=evaluated)
    trainer.config.eval.problems, trainer.config.eval.split = 2, "test"

    def flags() -> dict[str, list[str]]:
        trainer.evaluate(0)
        records = (json.loads(path.read_text()) for path in (trainer.folder / "evals").glob("*.json"))
        return {record["task"]: record["flags"] for record in records}

    assert flags() == {"amc23": [], "countdown": []}
    trainer.parts = dataclasses.replace(trainer.parts, task=tasks.build_task("dapo_math"))
    assert flags() == {"amc23": ["amc23 is known by heart"], "countdown": []}


# Names of evaluations

OF_TEXT = sha256(b'"a/b"').hexdigest()[:12]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("countdown", "countdown"),
        ("countdown(count=3)", "countdown"),  # which is the default
        ("countdown(target=100, count=4)", "countdown(count=4,target=100)"),
        ("aime24(instruction=Go)", "aime24(instruction=Go)"),
        ("amc23(reward=strings)", "amc23(reward=strings)"),
        ("aime24(instruction='a/b')", f"aime24(instruction={OF_TEXT})"),
    ],
)
def test_evaluation_name(spec: str, name: str) -> None:
    assert tasks.evaluation_name(tasks.build_task(spec)) == name


def test_evaluation_name_is_short() -> None:
    @dataclasses.dataclass(frozen=True)
    class Many:
        name: ClassVar[str] = "many"
        splits: ClassVar[tuple[str, ...]] = ("test",)
        a: int = 0
        b: int = 0
        c: int = 0
        d: int = 0
        e: list[float] = dataclasses.field(default_factory=list)

    long = [Many(10**19, 10**19, 10**19, 10**19 + number, [0.1]) for number in range(2)]
    names = [tasks.evaluation_name(task) for task in long]  # type: ignore[arg-type]
    assert len({*names}) == 2
    assert all(re.fullmatch(r"many\([0-9a-f]{12}\)", name) for name in names)


def test_evaluate_tasks_with_options(tmp_path: Path) -> None:
    built = build(tmp_path, "grpo", "eval.tasks=[countdown, 'countdown(count=4)']").parts.evaluation_tasks
    assert built == {"countdown": Countdown(), "countdown(count=4)": Countdown(count=4)}


@pytest.mark.processes  # renders the template of its model
def test_evaluate_writes_files_per_option(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["countdown", "countdown(count=4)"]
    built = {name: tasks.build_task(name) for name in names}
    trainer.parts = dataclasses.replace(trainer.parts, evaluation_tasks=built)
    trainer.config.eval.problems = 5
    trainer.config.eval.by_task = {names[1]: {"problems": 3}}
    split = trainer.config.eval.split
    right = {problem.id for problem in built["countdown"].problems(split)}

    def verdicts(task: Countdown, pairs: Sequence[tuple[Problem, str]], verifier: VerifierPool) -> list[Verdict]:
        return [Verdict.RIGHT if problem.id in right else Verdict.WRONG for problem, _ in pairs]

    monkeypatch.setattr(Countdown, "verdicts", verdicts)
    metrics = trainer.evaluate(0)
    assert {name: metrics[f"eval/{name}/avg"] for name in names} == {names[0]: 1.0, names[1]: 0.0}
    for name, problems, share in zip(names, (5, 3), (1, 0), strict=True):
        record = json.loads((trainer.folder / "evals" / f"{name}-000000.json").read_text())
        expected = [problem.id for problem in built[name].problems(split)[:problems]]
        assert (record["task"], record["problems"]) == (name, expected)
        assert {verdict for row in record["right"] for verdict in row} == {share}
        assert (trainer.folder / "samples" / f"evaluate-{name}-000000.jsonl").exists()


# Verdicts and votes


@pytest.mark.processes
def test_train_step_with_a_failing_verifier(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = asked(trainer, 7)[:3]

    def verdicts(task: Countdown, pairs: Sequence[tuple[Problem, str]], verifier: VerifierPool) -> list[Verdict]:
        assert verifier is trainer.parts.verifier
        return [Verdict.ERROR if problem in hard else Verdict.WRONG for problem, _ in pairs]

    monkeypatch.setattr(Countdown, "verdicts", verdicts)
    with pytest.raises(TooManyFailures, match=r"6 of 12 answers \(50.0%\)"):
        trainer.train_step(7, Stopwatch())
    kept = (trainer.folder / "samples" / "train-000007.jsonl").read_text().splitlines()
    assert [v for line in kept for v in json.loads(line)["verdicts"]].count(Verdict.ERROR) == 6
    trainer.config.verify.max_failures = 0.5
    assert trainer.train_step(7, Stopwatch())["verdicts/error"] == 0.5


@pytest.mark.processes
def test_verdicts_are_the_verifiers_in_the_order_of_the_pairs() -> None:
    asked = [("025", r"\boxed{25}"), ("7", r"\boxed{8}"), (r"\frac{1}{2}", r"\boxed{0.5}"), ("7", "7")]
    pairs = [(Problem("p", "", answer), response) for answer, response in asked]
    with VerifierPool() as verifier:
        assert tasks.build_task("math500").verdicts(pairs, verifier) == ["right", "wrong", "right", "unparsed"]
        assert tasks.build_task("math500").verdicts([], verifier) == []


def test_majority() -> None:
    rng = random.Random(0)
    for _ in range(300):
        votes = [rng.choice(["a", "b", "c", None]) for _ in range(rng.randint(1, 7))]
        verdicts = [Verdict.RIGHT if vote == "a" else Verdict.WRONG if vote else Verdict.UNPARSED for vote in votes]
        most = max((votes.count(v) for v in votes if v), default=0)
        # Every voter for a leading answer may be the one that is drawn; each answer has as many.
        drawn = [v == "a" for v in votes if v and votes.count(v) == most]
        assert majority(votes, verdicts) == pytest.approx(sum(drawn) / len(drawn) if drawn else 0.0)
    # Two ways of writing the right answer do not join forces against a wrong one.
    assert majority(["1/2", "0.5", "2", "2"], [Verdict.RIGHT, Verdict.RIGHT, Verdict.WRONG, Verdict.WRONG]) == 0


@pytest.mark.parametrize(
    ("response", "text", "answered"),
    [
        (r"\boxed{1{,}025}", "1025", r"\boxed{1{,}025}"),
        (r"so \boxed{9} or \boxed{ 1025 }.", "1025", r"so \boxed{9} or \boxed{ 1025 }"),
        (r"\boxed{01,025} $", "1025", r"\boxed{01,025}"),
        (r"\boxed{1025.}", "1025", r"\boxed{1025.}"),
        (r"\boxed{\dfrac12}", r"\frac{1}{2}", r"\boxed{\dfrac12}"),
        (r"\boxed{ \frac{1}{2} }", r"\frac{1}{2}", r"\boxed{ \frac{1}{2} }"),
        (r"\boxed{0.5}", "0.5", r"\boxed{0.5}"),
        (r"\boxed 5 or so", "5", r"\boxed 5"),
        (r"\boxed{7} and \boxed{8", None, r"\boxed{7}"),
        (r"\boxed{}!", None, r"\boxed{}"),
    ],
)
def test_math_answers(response: str, text: str | None, answered: str) -> None:
    problem = Problem("p", "", "5")
    assert tasks.build_task("math500").answers([(problem, response)]) == [Answer(text, len(answered))]
    assert response.startswith(answered)


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (r"\boxed{1} or \boxed{42}", Verdict.RIGHT),
        (r"\boxed{ 4 2\! }", Verdict.RIGHT),
        (r"\boxed{\$42\%}", Verdict.RIGHT),
        (r"\boxed{42^\circ}", Verdict.RIGHT),
        (r"\boxed{42^{\circ}}", Verdict.RIGHT),
        (r"\boxed{42\text{ cm}}", Verdict.RIGHT),
        (r"\boxed{\left.42\right.}", Verdict.WRONG),
        (r"\boxed{n = 42}", Verdict.RIGHT),
        (r"\boxed{sum = 42}", Verdict.WRONG),
        (r"\boxed{042}", Verdict.WRONG),
        (r"\boxed{+42}", Verdict.WRONG),
        (r"\boxed{42.0}", Verdict.WRONG),
        (r"\boxed{42}\boxed{84/2}", Verdict.WRONG),
        (r"\boxed{}", Verdict.UNPARSED),
        ("42", Verdict.UNPARSED),
    ],
)
def test_math_verdicts_by_strings(response: str, verdict: Verdict) -> None:
    pair = (Problem("p", "", "42"), response)
    for name in ("dapo_math", "amc23"):
        assert tasks.build_task(f"{name}(reward=strings)").verdicts([pair], VerifierPool()) == [verdict]


def test_math_rewards_in_identities() -> None:
    plain = {"component": "DapoMath", "instruction": INSTRUCTION}
    assert identities.component_identity(tasks.build_task("dapo_math")) == plain
    by_strings = identities.component_identity(tasks.build_task("dapo_math(reward=strings)"))
    assert by_strings == plain | {"reward": "strings"}


def test_diversity_is_counted_in_answers() -> None:
    """Of 6 7 3 = 39: brackets and spaces make no answer distinct, and text after the box makes none at all."""
    responses = [
        r"\boxed{(6*7)-3}",
        r"\boxed{6*7 - 3}",
        r"\boxed{7*6-3}",
        r"\boxed{6*7-3}56-3*1}",
        r"\boxed{6+7+3}",
        r"\boxed{(6+7)+3}",
        r"\boxed{6*7-3",
        r"7\boxed{6*7-3}",
    ]
    task, problem = tasks.build_task("countdown"), Problem("3,6,7=39", "6 7 3=39:", "3,6,7=39")
    scores = scoring.score({"spec": "countdown", **vars(problem)}, [responses])
    assert scores["avg"] == ["right"] * 3 + ["unparsed", "wrong", "wrong", "unparsed", "unparsed"]
    assert scores["right_distinct"] == 2  # 6*7-3, 7*6-3
    assert scores["distinct_answers"] == 3 / 8  # these and 6+7+3
    assert scores["after_answer"] == 1 / 8
    assert isinstance(task, Countable)
    assert task.solutions(problem) == 6  # and 3*(6+7) in four orders
    assert scores["coverage"] == 2 / 6
    assert scores["maj@8"] == 0.5  # 6*7-3 and 6+7+3 have two votes each
    repeated = scoring.score({"spec": "countdown", **vars(problem)}, [responses[:2]])
    assert (repeated["right_distinct"], repeated["distinct_answers"], repeated["coverage"]) == (1, 0.5, 1 / 6)


@pytest.mark.parametrize("number", [None, 0, 2.0])
def test_solutions_of_a_plugin_that_are_no_number(number: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list without some problem's would give their numbers to other problems."""
    monkeypatch.setattr(Countdown, "solutions", lambda self, problem: number)
    task = Countdown()
    with pytest.raises(UserError, match=rf"^task countdown counts {number or '.*'} solutions of '.*'; allowed: whole"):
        scoring.solutions(task, task.problems("test")[0])


def test_solutions_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Countdown, "solutions", lambda self, problem: np.int64(3))
    task = Countdown()
    number = scoring.solutions(task, task.problems("test")[0])
    assert (number, type(number)) == (3, int)


def test_scores_without_coverage() -> None:
    assert scoring.solutions(tasks.build_task("math500"), Problem("p", "", "5")) is None
    scores = scoring.scores(["a", "b"], [Verdict.RIGHT, Verdict.RIGHT], ["5", "5"], [False, True], None)
    assert "coverage" not in scores
    assert (scores["right_distinct"], scores["distinct_answers"], scores["after_answer"]) == (1, 0.5, 0.5)


@pytest.mark.processes
def test_lm_evals_command_has_one_verifier_which_ends_with_it() -> None:
    """It starts when the first answer needs it, and leaves no process behind."""
    code = (
        "from tasks import scoring\n"
        "doc = {'spec': 'math500', 'id': 'a', 'prompt': '', 'answer': '5'}\n"
        "print(scoring.score(doc, [[r'\\boxed{5}'] * 2])['avg'])\n"
        "assert all(worker.process is None for worker in scoring.verifier().workers)\n"
        "print(scoring.score(doc, [[r'\\boxed{10/2}'] * 2])['avg'])\n"
        "print(*(worker.process.pid for worker in scoring.verifier().workers if worker.process))\n"
    )
    quick, slow, worker = run_python("-c", code, cwd=REPOSITORY).stdout.splitlines()
    assert quick == slow == "['right', 'right']"
    assert not Path(f"/proc/{int(worker)}").exists()


# lm-eval's own command


@pytest.mark.processes
def test_lm_evals_own_command_runs_the_tasks(prepared: Path, commands: Commands, tmp_path: Path) -> None:
    asked = ["run", "--include_path", str(REPOSITORY / "tasks"), "--model", "dummy", "--tasks", "aime24,dapo500"]
    commands.lm_eval(*asked, "--limit", "3", "--output_path", str(tmp_path / "out"), "--log_samples")
    (results,) = (json.loads(path.read_text())["results"] for path in tmp_path.glob("out/**/results_*.json"))
    for name, repeats in (("aime24", 32), ("dapo500", 8)):
        scores = {key.removesuffix(",all"): value for key, value in results[name].items() if key.endswith(",all")}
        expected = {f"pass@{2**i}": 0.0 for i in range(repeats.bit_length())} | {"avg": 0.0, f"maj@{repeats}": 0.0}
        expected |= {"unparsed": 1.0, "characters": 3.0}  # the dummy always says lol
        expected |= {"after_answer": 0.0, "distinct_answers": 0.0, "right_distinct": 0.0}
        assert {key: value for key, value in scores.items() if "stderr" not in key} == expected
        (path,) = tmp_path.glob(f"out/**/samples_{name}_*.jsonl")
        samples = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        problems = tasks.build_task(name).problems("test")[:3]
        assert [sample["arguments"]["gen_args_0"]["arg_0"] for sample in samples] == [p.prompt for p in problems]
        assert [sample["resps"] for sample in samples] == [[["lol"] * repeats]] * 3


def documented() -> list[str]:
    """Lists lm-eval's commands as the files of the tasks and the documentation say them."""
    places = ("tasks/math.yaml", "tasks/countdown/countdown.yaml", "docs/add-a-task.md")
    texts = [(REPOSITORY / place).read_text() for place in places]
    commands = [re.findall(r"^[# ]*(lm_eval run .*)$", text, re.MULTILINE) for text in texts]
    assert [len(lines) for lines in commands] == [1, 1, 1]
    return sorted({line for (line,) in commands})


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.parametrize("written", documented())
def test_lm_evals_documented_command_runs_a_model(
    written: str, prepared: Path, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written, with a model of ours in the place of FOLDER; it is only cut short."""
    pytest.importorskip("accelerate", reason="accelerate is not installed; pip install -e '.[lm-eval]'")
    model = shutil.copytree(models.resolve("countdown-tiny").folder(), tmp_path / "model")
    if "--apply_chat_template" in written:
        (model / "chat_template.jinja").write_text(TEMPLATE)
    program, *arguments = written.replace("FOLDER", str(model)).split()
    assert program == "lm_eval"
    monkeypatch.chdir(REPOSITORY)
    arguments += ["--limit", "2", "--gen_kwargs", "max_gen_toks=20", "--device", "cpu"]
    commands.lm_eval(*arguments, "--output_path", str(tmp_path / "out"), "--log_samples")
    (path,) = tmp_path.glob("out/**/samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert [len(responses) for sample in samples for responses in sample["resps"]] == [32, 32]
    verdicts = [verdict for sample in samples for verdict in sample["avg"]]
    assert set(verdicts) <= {"right", "wrong", "unparsed"}
    responses = {text for sample in samples for responses in sample["resps"] for text in responses}
    assert len(responses) > 10, "it samples"
    if "countdown" in written:
        assert "wrong" in verdicts
    else:
        assert all(sample["arguments"]["gen_args_0"]["arg_0"].startswith("(") for sample in samples)


# Adding a task


ADD_A_TASK = (REPOSITORY / "docs" / "add-a-task.md").read_text()


def entrobench(*arguments: str, cwd: Path) -> str:
    """Return the output of the command, which finds packages of the current folder first."""
    return run_python("-m", "entrobench", *arguments, cwd=cwd, PYTHONPATH=f"{cwd}:{REPOSITORY}").stdout


@pytest.mark.processes
@pytest.mark.long
def test_example_of_the_documentation(tmp_path: Path) -> None:
    """One folder and one line, in a copy of the tasks."""
    files = re.findall(r"`(tasks/sums/[\w.]+)`:\n\n```\w+\n(.*?)```", ADD_A_TASK, re.DOTALL)
    assert [name for name, _ in files] == ["tasks/sums/__init__.py", "tasks/sums/sums.yaml"]
    shutil.copytree(REPOSITORY / "tasks", tmp_path / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tasks" / "sums").mkdir()
    for name, text in files:
        (tmp_path / name).write_text(text)
    line = '    "sums": Sums,\n'
    assert line.strip() in ADD_A_TASK
    table = tmp_path / "tasks" / "__init__.py"
    start = "TASKS: dict[str, type[Task]] = {\n"
    text = table.read_text().replace(start, start + line)
    imported = "from harness.base.task import"
    table.write_text(text.replace(imported, f"from tasks.sums import Sums\n{imported}"))
    assert "Sums of two numbers" in entrobench("list", "tasks", cwd=tmp_path)
    command = re.findall(r"^    entrobench (eval .*sums.*)$", ADD_A_TASK, re.MULTILINE)[0]
    # Every fifth of the 16 problems is for testing; each gets four samples.
    assert re.search(r"^sums\(largest=4\) +4 +4 ", entrobench(*shlex.split(command), cwd=tmp_path), re.MULTILINE)
    (path,) = tmp_path.glob("results/eval/countdown-tiny-*/sums(largest=4)-*/samples/0000.jsonl")
    prompts = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
    assert prompts == ["1+1=", "2+2=", "3+3=", "4+4="]
