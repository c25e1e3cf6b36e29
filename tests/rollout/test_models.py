import dataclasses
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from math import prod
from pathlib import Path

import loopback
import pytest
import torch
from commands import run_python
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import is_progress_bar_enabled

from harness import config, matrix
from harness.base.errors import UserError
from harness.rollout import models
from harness.rollout.models import Model
from harness.train.weights import shapes_in
from tasks import base_model
from tasks.coloring.recipe import ColoringRecipe
from tasks.countdown import Countdown, examples
from tasks.countdown.recipe import CountdownRecipe as Recipe

TINY = Recipe(hidden=16, layers=1, steps=2, batch=4)


def stub(recipe: Recipe, folder: Path) -> None:
    """Takes its time, and leaves a line for each model that is made."""
    folder.mkdir()
    time.sleep(0.3)
    with open(folder.parent / "log", "a") as log:
        log.write(f"{os.getpid()}\n")
    (folder / "config.json").write_text("{}")


def test_shipped_models_have_a_recipe_or_a_path() -> None:
    for name in models.model_names():
        model = models.resolve(name)
        assert (model.recipe is None) != (model.path is None)
        assert model.name == name
    assert models.resolve("countdown-tiny").recipe == Recipe()
    small = models.resolve("countdown-small").recipe
    assert isinstance(small, Recipe)
    assert small.countdown == Countdown(count=4, largest=20, target=100)


SHAPE = "architecture: qwen2, vocabulary: 9, hidden: 28, heads: 28, head_dim: 1, mlp: 9"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("path: a\nrecipe: {}", "must have exactly one of the keys path .* and recipe"),
        ("- path", "must have exactly one of the keys path .* and recipe"),
        ("path: [", "cannot be read"),
        ("recipe: 5", "recipe of .*mine.yaml is 5; it must be a mapping of keys"),
        ("path: a\nshape: 5", "shape of .*mine.yaml is 5; it must be a mapping of keys"),
        ("recipe: {}", "recipe.task is missing; allowed: coloring, countdown"),
        ("recipe: {task: 5}", "'5' is not a valid spec"),
        ("recipe: {task: gsm8k}", "recipe.task is 'gsm8k', a task without recipes; allowed: coloring, countdown"),
        ("recipe: {task: countdown(count=9)}", "countdown.count is 9; allowed: 2 to 5"),
        ("recipe: {task: countdown, stepps: 3}", r"unknown key recipe.stepps; .*did you mean 'steps'"),
        ("recipe: {task: countdown, heads: 3}", r"recipe.heads is 3; each head needs an even share of recipe.hidden"),
        ("path: a\nshape: {architecture: llama}", "shape.mlp, shape.vocabulary must be given"),
        ("path: ./nowhere", "path of .*mine.yaml is './nowhere', and there is no such folder$"),
        ("path: a\nshape: {layer: 3}", "unknown key shape.layer; .*did you mean 'layers'"),
        ("recipe: {}\nshape: {}", "states the shape of a model that its recipe or its GGUF"),
        (f"path: a\nshape: {{{SHAPE}, layers: 2, kv_heads: 5}}", "shape.kv_heads is 5; it must divide shape.heads"),
        (f"path: a\nshape: {{{SHAPE}, layers: 0, kv_heads: 4}}", r"shape.layers is 0; allowed: 1 to 1e\+09"),
    ],
)
def test_read_model_file_mistakes(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=sentence):
        models.read_model_file(tmp_path / "mine.yaml").identity()


@pytest.mark.parametrize("missing", ["config.json", "weights", "tokenizer"])
def test_folder_refuses_another_folder(missing: str, tmp_path: Path) -> None:
    files = {"config.json": "config.json", "weights": "model.safetensors", "tokenizer": "tokenizer.json"}
    for what, file in files.items():
        if what != missing:
            (tmp_path / file).touch()
    with pytest.raises(UserError, match=f"{tmp_path} is not a Hugging Face model, it has no {missing}"):
        models.resolve(str(tmp_path))
    (tmp_path / files[missing]).touch()
    assert models.resolve(str(tmp_path)).folder() == tmp_path


def test_folder_refuses_an_adapter_next_to_a_whole_model(tmp_path: Path) -> None:
    """Also one that is older than the weights: transformers with peft would read the adapter, and we the weights."""
    for name in ("adapter_config.json", "config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"an adapter next to a whole model, and no date shows which .* move the adap"):
        models.resolve(str(tmp_path))
    (tmp_path / "model.safetensors").rename(tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match="holds an adapter and no whole model; merge it into its base with"):
        models.resolve(str(tmp_path))


def test_cache_folder_of_the_tiny_model() -> None:
    """Its name in the cache, and so the model itself, changes only with a new VERSION."""
    assert models.resolve("countdown-tiny").cache_folder(Path()) == Path("models/countdown-tiny-bba151cd5a4b")


def test_identity_of_a_recipe() -> None:
    model = Model("mine", recipe=TINY)
    same = Model("mine", recipe=dataclasses.replace(TINY, task="countdown(count=3)"))
    assert model.identity() == same.identity()
    for changed in (
        dataclasses.replace(TINY, seed=1),
        dataclasses.replace(TINY, steps=3),
        dataclasses.replace(TINY, task="countdown(count=4)"),
    ):
        assert Model("mine", recipe=changed).identity() != model.identity()
        assert Model("mine", recipe=changed).cache_folder(Path()) != model.cache_folder(Path())


@pytest.mark.processes
def test_folder_is_made_once_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "build_base_model", stub)
    model = Model("mine", recipe=TINY)
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork in a process with threads; the stub has none
        processes = [context.Process(target=model.folder, args=(tmp_path,)) for _ in range(3)]
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len((tmp_path / "models" / "log").read_text().splitlines()) == 1
    assert (model.folder(tmp_path) / "config.json").exists()


def test_folder_after_an_interrupted_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(recipe: Recipe, folder: Path) -> None:
        folder.mkdir()
        (folder / "junk").touch()
        raise KeyboardInterrupt

    model = Model("mine", recipe=TINY)
    monkeypatch.setattr(base_model, "build_base_model", killed)
    with pytest.raises(KeyboardInterrupt):
        model.folder(tmp_path)
    assert not model.cache_folder(tmp_path).exists()
    monkeypatch.setattr(base_model, "build_base_model", stub)
    assert sorted(file.name for file in model.folder(tmp_path).iterdir()) == ["config.json", "sums.json"]


def test_folder_in_a_read_only_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the cache .* cannot be written \(Not a directory\); set ENTROBENCH_CACHE"):
        Model("mine", recipe=TINY).folder(tmp_path / "file")


def test_build_base_model_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    before, bars = torch.get_rng_state(), is_progress_bar_enabled()
    base_model.build_base_model(TINY, tmp_path / "one")
    base_model.build_base_model(TINY, tmp_path / "two")
    base_model.build_base_model(dataclasses.replace(TINY, seed=1), tmp_path / "three")
    assert torch.equal(before, torch.get_rng_state())
    assert is_progress_bar_enabled() == bars
    assert capfd.readouterr() == ("", "")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "three")]
    assert weights[0] == weights[1] != weights[2]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
        encoder = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert "warn" not in capfd.readouterr().err.lower()
    assert type(network).__name__ == "Qwen2ForCausalLM"
    assert network.config.vocab_size == len(encoder) == 73
    assert encoder.get_vocab() == base_model.tokenizer(TINY).get_vocab()
    shapes = shapes_in(tmp_path / "one")
    assert sum(map(prod, shapes.values())) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("recipe", "tokens"),
    [
        (Recipe(solving=0.5), 18),  # a token for each number, sign, bracket and blank, and for the box
        (Recipe(task="countdown(count=4, largest=99, target=30)", solving=0.5), 24),
        (ColoringRecipe(solving=0.5), 15),  # a row for each node but one, the colon, the box and six colors in it
    ],
    ids=lambda value: getattr(value, "task", value),
)
def test_tokenizer_spells_the_text(recipe: Recipe | ColoringRecipe, tokens: int) -> None:
    encoder = base_model.tokenizer(recipe)
    for prompt, response in islice(recipe.examples(), 500):
        text = prompt + response + base_model.END
        ids = encoder(text)["input_ids"]
        assert encoder.decode(ids) == text
        assert encoder.decode(encoder(response + base_model.END)["input_ids"], skip_special_tokens=True) == response
        assert len(ids) == tokens
    assert len(encoder) == recipe.shape().vocabulary


def test_tokenizer_of_countdown() -> None:
    encoder = base_model.tokenizer(Recipe())
    assert encoder.tokenize(r"\boxed{(12+7)*30}") == [r"\boxed{", "(", "12", "+", "7", ")", "*", "30", "}"]
    assert encoder.tokenize("12 7=30:") == ["12", base_model.BYTE_LEVEL_SPACE, "7", "=", "30", ":"]


def test_batches_learn_the_response_alone() -> None:
    encoder = base_model.tokenizer(TINY)
    recipe = dataclasses.replace(TINY, batch=16)
    expected = examples(Countdown(), recipe.seed, recipe.solving)
    for ids_BT, targets_BT in base_model.batches(recipe, encoder):
        assert len(ids_BT) == len(targets_BT) == 16
        for ids_T, targets_T, (prompt, response) in zip(ids_BT, targets_BT, expected, strict=False):
            assert encoder.decode(ids_T[ids_T != encoder.pad_token_id]) == prompt + response + base_model.END
            assert encoder.decode(targets_T[targets_T != -100]) == response + base_model.END
            assert torch.equal(ids_T[targets_T != -100], targets_T[targets_T != -100])


def test_learning_rate() -> None:
    recipe = Recipe(steps=110, warmup_steps=10, lr=1.0)
    rates = [base_model.learning_rate(recipe, step) for step in (0, 9, 10, 60, 109, 110)]
    assert rates[:4] == pytest.approx([0.1, 1.0, 1.0, 0.55])
    assert 0.1 < rates[4] < 0.101
    assert rates[5] == pytest.approx(0.1)


def test_training_reaches_the_weights() -> None:
    """After a few steps, the likelihood of the very examples that it saw is well above chance."""
    recipe = Recipe(hidden=32, heads=1, layers=1, steps=40, batch=32, warmup_steps=5, lr=1e-2)
    encoder = base_model.tokenizer(recipe)
    network = base_model.train(recipe, encoder, "cpu")
    ids_BT, targets_BT = next(base_model.batches(recipe, encoder))
    with torch.no_grad():
        logp_BTV = network(ids_BT).logits.log_softmax(-1)[:, :-1]
    counted_BT = targets_BT[:, 1:] != -100
    logp = logp_BTV[counted_BT].gather(1, targets_BT[:, 1:][counted_BT][:, None]).mean().item()
    assert logp > -1.5  # -4.3 is chance


# By a name on the hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("name", "path", "revision"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", None),
        ("Qwen/Qwen2.5-0.5B-Instruct@main", "Qwen/Qwen2.5-0.5B-Instruct", "main"),
        (f"me/tiny_model@{COMMIT}", "me/tiny_model", COMMIT),
        ("me/tiny@refs/pr/1", "me/tiny", "refs/pr/1"),
    ],
)
def test_resolve_a_name_on_the_hub(name: str, path: str, revision: str | None) -> None:
    model = models.resolve(name)
    assert (model.path, model.revision, model.address, model.name) == (path, revision, name, Path(path).name)
    assert model.identity() == {"path": path} | ({"revision": revision} if revision else {})
    assert model.summary() == f"the Hugging Face model {name}"


def test_cells_of_a_hub_name_and_its_file(tmp_path: Path) -> None:
    """In whose identity the name of the file has no part; the shape that a shipped file states is known for both."""
    named, filed = models.resolve("Qwen/Qwen2.5-0.5B-Instruct"), models.resolve("qwen2.5-0.5b-instruct")
    assert named.identity() == filed.identity()
    assert named.shape() == filed.shape() is not None
    assert models.resolve("Qwen/Qwen2.5-0.5B-Instruct@main").shape() == named.shape()
    both = config.load_config("smoke", [f"models=[qwen2.5-0.5b-instruct,{named.path}]"])
    with pytest.raises(UserError, match=f"models 'qwen2.5-0.5b-instruct' and '{named.path}' are the same"):
        matrix.cells(both)
    (tmp_path / "mine.yaml").write_text(f"path: Qwen/Qwen2.5-0.5B-Instruct@{COMMIT}\nsystem: Be brief.")
    mine = models.resolve(str(tmp_path / "mine.yaml"))
    assert mine.identity() == {"path": named.path, "revision": COMMIT, "chat": {"system": "Be brief."}}
    assert models.resolve(str((tmp_path / "mine.yaml").rename(tmp_path / "mine.yml"))) == mine


def test_resolve_prefers_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "me" / "tiny"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"the folder me/tiny is not a Hugging Face model, it has no config\.json"):
        models.resolve("me/tiny")
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / file).touch()
    assert models.resolve("me/tiny").path == str(folder)
    with pytest.raises(UserError, match="'me/tiny@main' names a revision, but me/tiny is a local folder, which has no"):
        models.resolve("me/tiny@main")
    (tmp_path / "me" / "tiny@main").symlink_to(folder)
    assert models.resolve("me/tiny@main").folder() == folder


@pytest.mark.parametrize("name", ["/a/b", "./a", "~/a", "me/mine.yaml", "mine.yml"])
def test_resolve_says_that_a_path_does_not_exist(name: str) -> None:
    with pytest.raises(UserError, match=rf"^model '{name}' does not exist; it must be a YAML file, a Hugging Face"):
        models.resolve(name)


@pytest.mark.parametrize("name", ["gpt2", "a/b/c", "me/.hidden", "me/ti ny", "me/", "gpt2@main"])
def test_resolve_refuses_other_names(name: str) -> None:
    with pytest.raises(UserError, match=r"^unknown model .*; allowed: .* or owner/name on the hub$"):
        models.resolve(name)


def test_resolve_refuses_an_empty_revision() -> None:
    with pytest.raises(UserError, match="model 'me/tiny@' has no revision after the @; write a branch, a tag"):
        models.resolve("me/tiny@")


FILES = {
    "config.json": json.dumps(
        {
            "model_type": "qwen2",
            "vocab_size": 73,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "intermediate_size": 8,
        }
    ).encode(),
    "model.safetensors": b"weights of the branch",
    "tokenizer.json": json.dumps({"model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}).encode(),
    "original/consolidated.bin": b"never asked for",
}


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    with loopback.hub("models", "me/tiny", FILES, COMMIT, ("main", "small")) as opened:
        yield opened


@pytest.mark.processes
@pytest.mark.long
def test_folder_fetches_a_revision(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = hub

    def python(*arguments: str, code: int = 0, **environment: str) -> str:
        places = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "COLUMNS": "300"}
        done = run_python(*arguments, cwd=tmp_path, code=code, **places, **environment)
        return done.stderr if code else done.stdout

    plan = ("-m", "entrobench", "plan", "smoke", f"results={tmp_path}")
    planned = python(*plan, "models=[me/tiny@small]")
    assert "- tiny is not on this machine; the first run downloads me/tiny@small" in planned
    assert "the shape of tiny is unknown until it is downloaded" in planned
    assert asked == [], "a plan asks nobody"

    fetch = "import sys; from harness.rollout import models; print(models.resolve(sys.argv[1]).folder(say=print))"
    lines, folder = python("-c", fetch, "me/tiny@small").splitlines()
    assert lines == "downloading the model me/tiny@small from the Hugging Face Hub"
    assert any(path.endswith("/revision/small") for path in asked)
    held = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    assert held == {name: content for name, content in FILES.items() if "/" not in name}
    assert python("-c", fetch, "me/tiny@small", HF_HUB_OFFLINE="1").splitlines() == [folder]

    planned = python(*plan, "models=[me/tiny@small,me/tiny@large]", HF_HUB_OFFLINE="1")
    assert planned.count("not on this machine") == 1
    assert "memory, me/tiny@small (" in planned
    assert "the first run downloads me/tiny@large" in planned, "another revision is another model"

    for name in ("me/tiny@large", "me/small"):
        run = ("-m", "entrobench", "run", "smoke", f"models=[{name}]", f"results={tmp_path}")
        (sentence,) = python(*run, code=2).splitlines()
        assert f"{name} is not a local folder, and could not be downloaded from the Hugging Face Hub: " in sentence
