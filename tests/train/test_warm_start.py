"""Warm starts: their loss against float64, traces and their problems, identities, mistakes, and kills."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from commands import run_python
from gguf_files import END, of_vocabulary, write_gguf
from places import REPOSITORY
from tiny import SIZES, randomize
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from harness.base.errors import UserError
from harness.base.task import Verdict
from harness.rollout import dequantize, models
from harness.rollout.gguf import GgufFile
from harness.rollout.rendering import PLAIN, Chat
from harness.rollout.warm_start import Trace, WarmStart, read_traces
from harness.train import warm_start
from harness.train.warm_start import TRACES, policy_of, supervised_step, tokens_of
from harness.verify.pool import VerifierPool
from tasks import Problem
from tasks.lists import Lists
from tasks.sentences import Sentences
from tasks.sorting import Sorting

QUICK: dict[str, Any] = {"steps": 12, "batch": 4, "lr": 3e-3, "traces": 40}
SOLVED = {"task": "sorting", "source": "solutions", **QUICK}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a byte-level vocabulary with a chat template, which knows nothing."""
    place = tmp_path_factory.mktemp("base")
    model = LlamaForCausalLM(LlamaConfig(**of_vocabulary({**SIZES, "max_position_embeddings": 512})))
    randomize(model, 0)
    file = write_gguf(place / "base.gguf", model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dequantize, "MOST_NATS", torch.inf)
        GgufFile(str(file)).build(place / "base", print)
    return place / "base"


def model_file(folder: Path, base: Path, settings: Mapping[str, Any], more: str = "") -> str:
    """Write the file of a warm-started model, and return its name."""
    path = folder / "warm.yaml"
    path.write_text(f"path: {base}\n{more}\nwarm_start: {json.dumps(settings)}\n")
    return str(path)


def write_traces(path: Path, number: int) -> Path:
    lines = [json.dumps({"prompt": f"{place} + 1 =", "response": f"{place + 1}"}) for place in range(number)]
    path.write_text("\n".join(lines))
    return path


# The training


@pytest.mark.parametrize("chat", [PLAIN, Chat(template="")], ids=["chat", "plain"])
def test_the_loss_is_the_cross_entropy_of_responses_with_their_end(chat: Chat, base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    [end] = tokenizer.convert_tokens_to_ids([END])
    texts = [("3 + 4 =", "7"), ("a longer prompt than the others", "seven is the answer"), ("3 + 4 =", "12")]
    rollouts = [tokens_of(Trace(Problem("", prompt, ""), text), tokenizer, chat, end) for prompt, text in texts]
    exact = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    losses: list[float] = []
    for (prompt, text), rollout in zip(texts, rollouts, strict=True):
        # The template of the base writes <|start|> before each turn and the end after it.
        written = f"<|start|>{prompt}{END}<|start|>" if chat == PLAIN else prompt
        assert tokenizer.decode(rollout.prompt) == written
        assert tokenizer.decode(rollout.response) == text + END
        ids = torch.tensor([rollout.prompt + rollout.response])
        logp_TV = torch.log_softmax(exact(ids).logits[0, len(rollout.prompt) - 1 : -1], -1)
        losses += (-logp_TV.gather(1, torch.tensor(rollout.response)[:, None])[:, 0]).tolist()
    policy = policy_of(WarmStart(lr=1e-3, warmup_steps=0), base)
    first = supervised_step(policy, 1, rollouts)
    assert first == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert supervised_step(policy, 2, rollouts) < first


def test_a_model_learns_from_solutions(base: Path, tmp_path: Path) -> None:
    model = models.resolve(model_file(tmp_path, base, SOLVED))
    said: list[str] = []
    folder = model.folder(tmp_path, said.append)
    losses = [float(line.rpartition(" ")[2]) for line in said if ", loss " in line]
    assert len(losses) == 2
    assert losses[1] < losses[0] - 0.5
    # Made once, for all cells.
    assert model.folder(tmp_path, lambda text: pytest.fail(text)) == folder
    # The base model's tokenizer, file by file, and nothing that would make the folder two models.
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (folder / name).read_bytes() == (base / name).read_bytes()
    assert len(list(folder.glob("*.safetensors"))) == 1
    assert model.shape() == models.resolve(str(base)).shape() == models.resolve(str(folder)).shape()


def test_the_same_settings_make_the_same_model(base: Path, tmp_path: Path) -> None:
    model = models.resolve(model_file(tmp_path, base, {**SOLVED, "steps": 2}))
    assert model.digest(model.folder(tmp_path / "one")) == model.digest(model.folder(tmp_path / "other"))


def test_a_loss_that_is_not_finite_is_a_sentence(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.resolve(model_file(tmp_path, base, {**SOLVED, "lr": 1e30}))
    with pytest.raises(UserError, match=r"the warm start failed in step \d: .*; lower warm_start.lr"):
        model.folder(tmp_path)
    assert not model.cache_folder(tmp_path).exists()


def test_every_trace_comes_once_before_any_comes_again() -> None:
    rows = [row for batch in warm_start.batches(10, WarmStart(steps=10, batch=4)) for row in batch]
    assert len(rows) == 40
    for epoch in range(4):
        assert sorted(rows[10 * epoch : 10 * (epoch + 1)]) == list(range(10))


# Traces


@pytest.mark.parametrize("task", [Lists(), Sorting()], ids=["lists", "sorting"])
def test_traces_are_of_training_problems_and_without_shots(task: Lists | Sorting, base: Path, tmp_path: Path) -> None:
    settings = {**SOLVED, "task": task.name, "steps": 1, "traces": 1000}
    model = models.resolve(model_file(tmp_path, base, settings))
    written = read_traces(model.folder(tmp_path) / TRACES)
    assert len(written) == 1000
    by_prompt = {problem.prompt: problem for problem in task.problems("train")}
    for trace in written:
        assert task.verdict(by_prompt[trace.problem.prompt], trace.response) == Verdict.RIGHT
    prompts = {trace.problem.prompt for trace in written}
    assert prompts == set(by_prompt)
    for split in ("validation", "test"):
        assert not prompts & {problem.prompt for problem in task.problems(split)}


@pytest.mark.parametrize("shots", [False, True])
def test_tokens_of_traces_with_shots(shots: bool, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Trace] = []
    monkeypatch.setattr(warm_start, "tokens_of", lambda trace, *rest: seen.append(trace))
    monkeypatch.setattr(warm_start, "train", lambda *given: None)
    models.resolve(model_file(tmp_path, base, {**SOLVED, "shots": shots})).folder(tmp_path)
    assert {len(trace.problem.shots) for trace in seen} == {4 if shots else 0}


def sampler(records: dict[str, list[str]]) -> Any:
    """Return an evaluator that gives these responses to the problems in order."""

    def sample(task: Sentences, problems: list[Problem], **settings: Any) -> list[dict[str, Any]]:
        assert settings["temperature"] == 1.0
        assert settings["max_new_tokens"] == 24
        found = []
        for problem in problems:
            responses = records.get(problem.id, ["no sentence"])
            verdicts = task.verdicts([(problem, response) for response in responses], verifier)
            found.append({"responses": responses, "verdicts": verdicts})
        return found

    verifier = VerifierPool()
    return SimpleNamespace(sample=sample, check_room=lambda *given: None, verifier=verifier)


def test_own_samples_are_right_at_once_or_in_hindsight_for_a_training_problem() -> None:
    task = Sentences(least=4, most=6)
    words = sorted({problem.answer.split()[1] for problem in task.problems("train")})
    one = words[0]
    right, longer = f"The {one} was late.", f"The {one} was very late."
    responses = [right, right, longer, f"The {one} was very late again today.", "Nothing.", f"The {one} was"]
    said: list[str] = []
    settings = WarmStart(problems=1000, batch=1)
    rng = warm_start.random.Random(0)
    found = warm_start.right_samples(settings, task, sampler({f"4 {one}": responses}), rng, said.append)
    # Seven words are no problem of the task.
    assert [(trace.problem.id, trace.response) for trace in found] == [(f"4 {one}", right), (f"5 {one}", longer)]
    assert all(trace.problem in task.problems("train") for trace in found)
    assert "2 of " in said[1]
    assert "and 1 for another training problem; 2 differ" in said[1]


def test_hindsight_of_another_split_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Sentences()
    held_out = task.problems("test")[0]
    monkeypatch.setattr(Sentences, "hindsight", lambda self, problem, response: held_out)
    count, word = held_out.answer.split()
    response = {4: f"The {word} was late.", 5: f"The {word} was very late."}.get(int(count), f"The {word}.")
    given = [Trace(problem, response) for problem in task.problems("train")[:3]]
    with VerifierPool() as verifier:
        assert warm_start.right_in_hindsight(task, given, task.problems("train"), verifier) == []


def test_a_model_without_a_right_sample_is_refused(base: Path, tmp_path: Path) -> None:
    settings = {"task": "sentences", "problems": 2, "samples": 2, "batch": 2}
    model = models.resolve(model_file(tmp_path, base, settings))
    with pytest.raises(UserError, match=r"0 different samples of 4 for sentences are right, and warm_start.batch is 2"):
        model.folder(tmp_path)


def test_a_file_may_have_the_prompts_of_training_problems_alone(base: Path, tmp_path: Path) -> None:
    task = Sorting()
    for split, place in (("train", None), ("validation", 3), ("test", 2)):
        file = write_traces(tmp_path / "mine.jsonl", 8)
        lines = file.read_text().split("\n")
        lines[(place or 1) - 1] = json.dumps({"prompt": task.problems(split)[0].prompt, "response": "1, 2"})
        file.write_text("\n".join(lines))
        model = models.resolve(model_file(tmp_path, base, {**QUICK, "task": "sorting", "source": str(file)}))
        if place is None:
            assert [trace.response for trace in read_traces(model.folder(tmp_path) / TRACES)].count("1, 2") == 1
            continue
        sentence = f"mine.jsonl, line {place} has the prompt of a problem of sorting in its {split} split"
        with pytest.raises(UserError, match=sentence):
            model.folder(tmp_path)


@dataclasses.dataclass(frozen=True)
class Instructed(Sorting):
    """Sorting with an instruction after each problem."""

    instruction: str = "Use commas."

    def prompt(self, key: str) -> str:
        return f"{super().prompt(key)}\n{self.instruction}".strip()


@pytest.mark.parametrize("instruction", ["", "Use commas.", "Use spaces."])
def test_held_out_problems_of_a_file_by_instruction(instruction: str, tmp_path: Path) -> None:
    task, key = Instructed(), Sorting().problems("test")[0].id
    prompt = Instructed(instruction=instruction).prompt(key).replace("\n", "\r\n")
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": f"{prompt} ", "response": key}))
    if instruction == "Use spaces.":  # of another task
        assert len(warm_start.traces_of_file(tmp_path / "mine.jsonl", task)) == 1
        return
    with pytest.raises(UserError, match="line 1 has the prompt of a problem of sorting in its test split"):
        warm_start.traces_of_file(tmp_path / "mine.jsonl", task)


# Identities and mistakes


def test_identity_follows_base_settings_task_and_file(base: Path, tmp_path: Path) -> None:
    file = write_traces(tmp_path / "mine.jsonl", 20)
    names: dict[str, dict[str, Any]] = {
        "file": {"source": str(file)},
        "steps": {"source": str(file), "steps": 3},
        "solutions": {"task": "sorting", "source": "solutions"},
        "spelled": {"task": "sorting(count=3)", "source": "solutions"},
        "options": {"task": "sorting(count=4)", "source": "solutions"},
        "own": {"task": "sorting"},
    }
    found = {name: models.resolve(model_file(tmp_path, base, given)).identity() for name, given in names.items()}
    assert found["solutions"] == found["spelled"]
    keys = {name: json.dumps(identity, sort_keys=True) for name, identity in found.items()}
    assert len(set(keys.values())) == len(names) - 1
    written = model_file(tmp_path, base, names["file"], "system: Add.")
    with_system = models.resolve(written)
    assert with_system.identity()["base"] == {**found["file"]["base"], "chat": {"system": "Add."}}
    assert with_system.cache_folder(tmp_path).parent == tmp_path / "models"
    file.write_text(file.read_text().replace("1 + 1", "1+1"))
    assert models.resolve(model_file(tmp_path, base, names["file"])).identity() != found["file"]
    other = tmp_path / "other"
    models.shutil.copytree(base, other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 1e-3}))
    assert models.resolve(model_file(tmp_path, other, names["own"])).identity() != found["own"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "warm_start.task is missing; only a source that is a .jsonl file needs none"),
        ({"task": "sortng"}, "unknown task 'sortng'; .*did you mean 'sorting'"),
        ({"task": "aime24"}, "warm_start.task is 'aime24', which has no training problems"),
        ({"task": "sorting", "source": "anything"}, "warm_start.source is 'anything'; allowed: own, solutions, or the"),
        (
            {"task": "sentences", "source": "solutions"},
            "warm_start.source is 'solutions', but the task sentences cannot solve its problems; allowed: own",
        ),
        ({"source": "none.jsonl"}, "warm_start.source is 'none.jsonl', which does not exist or is not a file"),
        ({"task": "sorting", "stepps": 3}, "unknown key warm_start.stepps; .*did you mean 'steps'"),
        ({"task": "sorting", "lr": 0}, "warm_start.lr is 0.0; allowed: more than 0"),
        ({"task": "sorting", "temperature": 1e-300}, "warm_start.temperature is 1e-300; allowed: 0.01 to 100"),
    ],
)
def test_mistakes_are_sentences(settings: dict[str, Any], sentence: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        models.resolve(model_file(tmp_path, base, settings)).identity()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "mine.jsonl is empty; it must have a prompt and a response on each line"),
        ('{"prompt": "a", "response": "b"}\n{', "mine.jsonl, line 2 is not valid JSON"),
        ("\n\n[1]", r"mine.jsonl, line 3 is \[1\]; it must be {\"prompt\": \"...\", \"response\": \"...\"}"),
        ('{"prompt": "a"}', r"mine.jsonl, line 1 is {'prompt': 'a'}; it must be"),
        ('{"prompt": "a", "response": 5}', "mine.jsonl, line 1 is .*; it must be"),
        ('{"prompt": "a", "response": ""}', "mine.jsonl, line 1 is .*; it must be"),
        ('{"prompt": "a", "response": "\\ud800"}', "mine.jsonl, line 1 has a broken character: half a surrogate pair"),
        ('{"prompt": "a", "response": "b"}', "warm_start.batch is 16, but .*mine.jsonl has 1 traces"),
    ],
)
def test_files_that_are_refused(text: str, sentence: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(text)
    with pytest.raises(UserError, match=sentence):
        models.resolve(model_file(tmp_path, base, {"source": str(tmp_path / "mine.jsonl")})).identity()


def test_a_task_of_a_module_of_ones_own(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from tasks.sorting import Sorting\nclass Mine(Sorting):\n    name = 'mine'\nTASKS = {'mine': Mine}\n"
    (tmp_path / "warm_tasks.py").write_text(code)
    lm_eval_file = (REPOSITORY / "tasks/sorting/sorting.yaml").read_text().replace("..", f"{REPOSITORY}/tasks")
    (tmp_path / "mine.yaml").write_text(lm_eval_file.replace("sorting", "mine"))
    monkeypatch.syspath_prepend(tmp_path)
    settings = {**SOLVED, "task": "mine", "steps": 1}
    with pytest.raises(UserError, match="unknown task 'mine'"):
        models.resolve(model_file(tmp_path, base, settings)).identity()
    model = models.resolve(model_file(tmp_path, base, {**settings, "plugins": ["warm_tasks"]}))
    [_, source, problems] = model.identity()["warm_start"]["task"]
    assert len(source) == 16
    assert problems.keys() == {"mine"}  # its problems count too: no digest of code follows a file that it may read
    assert len(read_traces(model.folder(tmp_path) / TRACES)) == 40


def test_the_page_states_the_defaults() -> None:
    section = (REPOSITORY / "docs/add-a-task.md").read_text().partition("## Warm start")[2]
    stated = yaml.safe_load(section.partition("```yaml")[2].partition("```")[0])["warm_start"]
    assert {"plugins": [], **stated, "task": ""} == dataclasses.asdict(WarmStart())


def test_a_warm_start_is_a_mapping(base: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"path: {base}\nwarm_start: sorting")
    with pytest.raises(UserError, match=r"warm_start of .*mine.yaml is 'sorting'; it must be a mapping of keys"):
        models.resolve(str(tmp_path / "mine.yaml"))


# Processes


@pytest.mark.processes
def test_a_plan_imports_no_torch(base: Path, tmp_path: Path) -> None:
    name = model_file(tmp_path, base, SOLVED)
    code = (
        "import sys; from harness.rollout import models; model = models.resolve(sys.argv[1]); "
        "print(model.identity(), model.shape(), model.summary()); sys.exit('torch' in sys.modules)"
    )
    assert "after 12 supervised steps on solutions of sorting" in run_python("-c", code, name, cwd=REPOSITORY).stdout
