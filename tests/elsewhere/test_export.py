"""A cell's model as a folder: the card states what the leaderboard does, and the model gives the cell's own answers."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import end_of, refusal, run_command, run_python
from huggingface_hub import metadata_load
from loopback import TOKEN, inbox
from transformers import AutoTokenizer

from harness import runs
from harness.base import files
from harness.cells import evaluations, state
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.config import Config, Lora, load_config
from harness.elsewhere import card, export
from harness.launch import cell
from harness.matrix import cells, claim
from harness.rollout import models
from harness.rollout.rendering import Chat
from harness.rollout.warm_start import WarmStart

SMALL = ["methods=[grpo]", "train.steps=2", "train.prompts=4", "train.group=4", "train.updates=2", "seeds=[0,1]"]
SMALL += ["eval.problems=3", "eval.samples=4", "eval.k=2", "rollout.max_new_tokens=12", "dynamics.every=0"]
# Greedy on the first task, so that plain transformers must give the same, and sampled on the second.
TASKS = ["countdown", "countdown(target=50)"]
SMALL += [f"eval.tasks=[{','.join(TASKS)}]", "eval.by_task={countdown: {temperature: 0}}"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> tuple[Config, Path]:
    """The configuration of two seeds, and the folder of the one that is done."""
    place = tmp_path_factory.mktemp("trained")
    store = shutil.copy(migrated, place / "mlflow.db")
    config = load_config("smoke", [*SMALL, f"results={place / 'results'}", f"tracking.uri=sqlite:///{store}"])
    claim(config)
    first, *_ = matrix = cells(config)
    first.spec.write(first.folder)
    cell.work(first.folder)
    runs.conclude(config, matrix)
    return config, first.folder


@pytest.fixture(scope="module")
def exported(trained: tuple[Config, Path]) -> Path:
    """The folder of its model."""
    folder = trained[1].parents[2] / "out"
    printed = run_command("export", str(trained[1]), str(folder))
    assert printed.startswith(f"wrote {folder}: ")
    return folder


def answers(folder: Path, task: str) -> list[list[str]]:
    """Return the responses of a cell's last evaluation, by problem."""
    path = evaluations.answers_path(evaluations.evaluation_path(folder, task, 2))
    return [record["responses"] for record in files.read_lines(path)]


def block(text: str, begin: str) -> str:
    return text.partition(f"{begin}\n")[2].partition("\n```")[0]


@pytest.mark.slow
def test_card_states_what_the_leaderboard_does(trained: tuple[Config, Path], exported: Path) -> None:
    config, folder = trained
    tags = ["entrobench", "reinforcement-learning", "grpo"]
    assert metadata_load(exported / "README.md") == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags,
    }
    text = (exported / "README.md").read_text()
    shown = ",".join(card.COLUMNS)
    where = ("--experiment", config.name, "--uri", config.tracking_uri, "--format", "md", "--columns", shown)
    rows = [line for line in run_command("leaderboard", *where).splitlines() if line.startswith("| ")]
    assert len(rows) == 8
    assert set(rows) <= set(text.splitlines())
    for task in TASKS:
        right = evaluations.read_evaluation(evaluations.evaluation_path(folder, task, 2))["right"]
        average = sum(map(sum, right)) / 12
        passed = sum(1 - (4 - sum(row)) * (3 - sum(row)) / 12 for row in right) / 3
        assert f"| {task} | 3 | 4 | {average:.3f} | 2 | {passed:.3f} |" in text
    made = Made.read(folder)
    assert made is not None
    assert f"- **Code**: entrobench {made.version}, commit {made.commit}" in text
    for line in (
        "- **Verdict**: none, as this is the baseline",
        "- **Seeds**: 1 of 2 done",
        "- **Ruleset**: published",
    ):
        assert line in text.splitlines()


@pytest.mark.slow
def test_plain_transformers_give_the_answers_of_the_cell(trained: tuple[Config, Path], exported: Path) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block((exported / "README.md").read_text(), "```python"), {})
    assert {printed.getvalue()} == {f"{response}\n" for response in answers(trained[1], TASKS[0])[0]}


@pytest.mark.slow
def test_eval_gives_the_answers_of_the_cell(trained: tuple[Config, Path], exported: Path, tmp_path: Path) -> None:
    lines = [line for line in (exported / "README.md").read_text().splitlines() if line.startswith("    entrobench")]
    for task, line in zip(TASKS, lines, strict=True):
        _, *words = shlex.split(line)
        out = tmp_path / task
        run_command(*words, "--out", str(out))
        [kept] = out.glob("*/samples/*.jsonl")
        assert [record["responses"] for record in files.read_lines(kept)] == answers(trained[1], task)


@pytest.mark.slow
def test_card_has_the_settings_of_prompts_that_no_folder_has(trained: tuple[Config, Path]) -> None:
    folder = trained[1]
    spec, tokenizer = CellSpec.read(folder), AutoTokenizer.from_pretrained(folder / "model")
    model = dataclasses.replace(models.resolve("countdown-tiny"), chat=Chat(system="4= 😀", end_tokens=["3"]))
    text = card.model_card(folder, spec, model, tokenizer, (1,), export.standing(folder, spec), "me/mine")
    assert block(text, "```yaml") == 'path: "me/mine"\nsystem: "4= 😀"'
    assert text.count("    entrobench eval --model model.yaml --tasks ") == 2
    assert "prompt = '4=" in block(text, "```python")


@pytest.mark.slow
def test_card_names_adapters_and_no_path(trained: tuple[Config, Path], exported: Path) -> None:
    folder = trained[1]
    spec, tokenizer = CellSpec.read(folder), AutoTokenizer.from_pretrained(folder / "model")
    base, named = models.resolve(str(folder / "model")), export.standing(folder, spec)
    rows = [dataclasses.replace(row, model=str(folder / "model")) for row in named.rows]
    standing = card.Standing(named.method, rows)
    problems = folder / "problems.jsonl"
    problems.write_text("".join(f'{{"problem": "{number} + 1?", "answer": "{number + 1}"}}\n' for number in range(9)))
    spec = dataclasses.replace(spec, key=dataclasses.replace(spec.key, task=f"problems(file={problems},validation=0)"))
    spec.config.train.lora = Lora(rank=4, targets=["q_proj", "v_proj"])
    traces = WarmStart(source=str(folder / "traces.jsonl"))
    warmed = models.Model("warmed", recipe=models.Warmed(base, traces))
    for model, ending in ((base, ""), (warmed, ", after 50 supervised steps on traces.jsonl")):
        text = " ".join(card.model_card(folder, spec, model, tokenizer, (1,), standing, "me/mine").split())
        assert f"- **Base model**: a Hugging Face folder named model{ending}, digest " in text
        assert str(folder) not in text
    assert "adapters (LoRA) of rank 4 and alpha 32 for q_proj, v_proj, merged" in text
    assert "LoRA" not in (exported / "README.md").read_text()


# Mistakes


def changed_model(folder: Path) -> None:
    path = folder / "model" / "config.json"
    path.write_text(path.read_text() + "\n")


def adopted(folder: Path) -> None:
    spec = CellSpec.read(folder)
    spec.identity["trained_elsewhere"] = {"trainer": "trl"}
    spec.write(folder)


def other_base_model(folder: Path) -> None:
    spec = CellSpec.read(folder)
    spec.identity["model"]["version"] = 0
    spec.write(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: state.change(folder, state="failed"), "is failed; `entrobench run` finishes it"),
        (lambda folder: shutil.rmtree(folder / "model"), "kept no model; with checkpoint.save_model=true"),
        (changed_model, "model/config.json is damaged: it is not as it was when the cell was done"),
        (adopted, "was trained elsewhere (trl), where its model is"),
        (other_base_model, "the model 'countdown-tiny' was changed since this cell was trained"),
        (
            lambda folder: (folder / "config.yaml").unlink(),
            "is not the folder of a cell; give one such as results/demo/",
        ),
    ],
)
def test_export_refuses_other_cells(
    spoil: Callable[[Path], None], sentence: str, trained: tuple[Config, Path], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(trained[1], tmp_path / "results" / "smoke" / trained[1].name))
    spoil(copy)
    assert sentence in refusal("export", str(copy), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{out}"], "exists; name a folder that does not, or remove it"),
        (["{out}/../no/such"], "no does not exist; make it first"),
        (["{out}/new", "--push", "mine"], "--push is 'mine'; write USER/NAME"),
        (["{out}/new", "--push", "me/mine"], "--push needs a token with the right to write: `hf auth login`"),
    ],
)
def test_export_command_mistakes(
    words: list[str], sentence: str, trained: tuple[Config, Path], exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    given = [word.format(out=exported) for word in words]
    assert sentence in refusal("export", str(trained[1]), *given)
    assert not (exported / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False])
def test_export_needs_the_table(is_there: bool, trained: tuple[Config, Path], tmp_path: Path, migrated: Path) -> None:
    """Of results that were moved to a place with another store, or none."""
    copy = Path(shutil.copytree(trained[1], tmp_path / "results" / "smoke" / trained[1].name))
    if is_there:
        shutil.copy(migrated, tmp_path / "results" / "mlflow.db")
    spec = CellSpec.read(copy)
    spec.settings["tracking"]["uri"] = None
    spec.write(copy)
    assert "; `entrobench run` or `entrobench sync` " in refusal("export", str(copy), str(tmp_path / "out"))


# Settings of prompts, and licenses


@pytest.mark.slow
@pytest.mark.parametrize("template", [None, "", "{{ messages[0].content }}?"])
def test_prompt_settings_are_those_of_training(template: str | None, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models.resolve("countdown-tiny").folder(), tmp_path / "model"))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    export.write_prompt_settings(folder, AutoTokenizer.from_pretrained(folder), Chat(template=template), (1, 4))
    expected = "{{ messages[0].content }}!" if template is None else template or None
    assert AutoTokenizer.from_pretrained(folder).chat_template == expected
    assert files.read_json(folder / "generation_config.json")["eos_token_id"] == [1, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\n# A model\n", {"license": "apache-2.0"}),
        (
            "---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---\n",
            {"license": "other", "license_name": "own", "license_link": "LICENSE"},
        ),
        ("---\r\nlicense: mit\r\n---\r\n", {"license": "mit"}),
        ("# license: mit\n", {}),
        ("# A model\n---\nlicense: mit\n---\n", {}),
        ("---\nlicense: [mit\n---\n", {}),
        ("---\nlicense: mit\ndate: 2024-02-30\n---\n", {}),  # which is no day
        ("---\n- license\n---\n", {}),
        (None, {}),
    ],
)
def test_license_of_a_folder(text: str | None, said: dict[str, str], tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    if text is not None:
        (tmp_path / "README.md").write_text(text)
    mine = models.resolve(str(tmp_path))
    assert (card.license_of(mine), card.hub_name(mine)) == (said, None)


@pytest.mark.parametrize("said", [{"license": "apache-2.0"}, {}])
def test_license_of_a_gguf_file(said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.gguf").touch()
    settings = {f"general.{name}": value for name, value in said.items()}
    monkeypatch.setattr(card, "read_header", lambda path: SimpleNamespace(settings=settings))
    mine = models.resolve(str(tmp_path / "mine.gguf"))
    assert card.license_of(mine) == said
    assert card.without_paths(mine) == "the GGUF file mine.gguf"
    assert card.license_text(mine, said) == (
        "apache-2.0" if said else "not known here; look it up before you publish this model"
    )


def test_a_base_model_of_the_hub_is_named() -> None:
    assert card.hub_name(models.resolve("qwen2.5-0.5b-instruct")) == "Qwen/Qwen2.5-0.5B-Instruct"
    assert card.hub_name(models.resolve("countdown-tiny")) is None


# The Hub


@pytest.mark.long
@pytest.mark.processes
def test_push(trained: tuple[Config, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def words(folder: str) -> tuple[str, ...]:
        return "export", str(trained[1]), str(tmp_path / folder), "--push", "me/mine"

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with inbox("me/mine") as received:
        environment = {"HF_ENDPOINT": received.address, "HF_HOME": str(tmp_path / "hf")}
        printed = run_python("-m", "entrobench", *words("out"), cwd=tmp_path, code=0, **environment).stdout
        assert printed.endswith(f"sent it to {received.address}/me/mine\n")
        assert received.repositories == [{"name": "mine", "organization": "me"}], "the Hub decides who may read it"
        assert received.metadata.startswith("library_name: transformers\n")
        assert received.commits == ["A model trained by entrobench"]
        assert received.files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        assert b"from_pretrained('me/mine')" in received.files["README.md"]
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", received.address)  # as HF_ENDPOINT sets it
        monkeypatch.setenv("HF_TOKEN", "hf_of_another")
        refused = refusal(*words("other"))
        assert refused.startswith("entrobench: me/mine cannot be written on the Hugging Face Hub: Client error '401 ")
        assert not (tmp_path / "other").exists()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "Connection refused; `hf upload me/mine FOLDER` sends an exported folder later" in refusal(*words("other"))
    with inbox("me/mine", full=True) as received:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", received.address)
        full = end_of(*words("kept"))
        assert full.code == 2
        assert full.err.splitlines()[-1].startswith(
            "entrobench: me/mine cannot be written on the Hugging Face Hub: 403 Forbidden: No more room"
        )
    assert (tmp_path / "kept" / "README.md").is_file(), "an upload can be repeated"
