"""Digests of models, over weights, tokenizer and configuration: by brute force, and after edits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from harness import config, matrix
from harness.base import files
from harness.rollout import digests, models
from harness.rollout.models import Model
from tasks import base_model
from tasks.countdown.recipe import CountdownRecipe as Recipe

SETTINGS = {
    "model_type": "qwen2",
    "vocab_size": 73,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "intermediate_size": 8,
    "transformers_version": "5.0",
}
WEIGHTS = bytes(range(256)) * 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "cache"))
    digests.checksums_at_stamps.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path / "mine")


def filled(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SETTINGS))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("not of the model")
    return folder


def flip(path: Path, bit: int = 77) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def keys(*given: str) -> list[str]:
    return [cell.id for cell in matrix.cells(config.load_config("smoke", ["methods=[grpo]", *given]))]


def test_model_digest_by_brute_force(folder: Path) -> None:
    settings = json.dumps({key: value for key, value in SETTINGS.items() if key != digests.VERSION}, sort_keys=True)
    parts = {"config.json": sha256(settings.encode()), "model.safetensors": sha256(WEIGHTS)}
    parts["tokenizer.json"] = sha256(b"{}")
    expected = sha256(json.dumps(parts, sort_keys=True).encode())
    assert digests.digest_of_files(folder, digests.file_checksums(folder)) == digests.model_digest(folder) == expected
    (folder / "config.json").write_text(json.dumps({**SETTINGS, digests.VERSION: "6.0"}))
    (folder / "README.md").write_text("edited")
    assert digests.model_digest(folder) == expected, "neither is of the model"
    (folder / "config.json").write_text(json.dumps({**SETTINGS, "rope_theta": 7}))
    assert digests.model_digest(folder) != expected


def test_files_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    read = files.sha256_of

    def heard(path: Path) -> str:
        asked.append(path.name)
        return read(path)

    def again() -> str:
        """Return the digest as another process finds it."""
        digests.checksums_at_stamps.cache_clear()
        asked.clear()
        return digests.model_digest(folder)

    monkeypatch.setattr(files, "sha256_of", heard)
    first = again()
    assert asked == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (again(), asked) == (first, [])
    times = (folder / "model.safetensors").stat()
    flip(folder / "model.safetensors")
    os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))  # as `cp --preserve` does
    second = again()
    assert (second != first, asked) == (True, ["model.safetensors"])
    flip(folder / "model.safetensors")
    assert again() == first


@pytest.mark.parametrize("content", [None, "[]", "half a (", '{"model.safetensors": ["x"]}'])
def test_notes_that_are_lost_or_damaged_are_made_again(folder: Path, cache: Path, content: str | None) -> None:
    expected = digests.model_digest(folder)
    [notes] = (cache / "digests").iterdir()
    whole = notes.read_text()
    notes.unlink() if content is None else notes.write_text(content)
    digests.checksums_at_stamps.cache_clear()
    assert digests.model_digest(folder) == expected
    assert notes.read_text() == whole


def test_model_digest_without_a_cache(folder: Path, cache: Path) -> None:
    expected = digests.model_digest(folder)
    shutil.rmtree(cache / "digests")
    (cache / "digests").touch()  # a file, so that nothing can be written below it
    digests.checksums_at_stamps.cache_clear()
    assert digests.model_digest(folder) == expected


def test_cell_id_with_other_weights(folder: Path, tmp_path: Path) -> None:
    first = keys(f"models=[{folder}]")
    assert models.resolve(str(folder)).identity() == {"digest": digests.model_digest(folder)}
    moved = filled(tmp_path / "elsewhere")
    assert keys(f"models=[{moved}]") == first, "the path is no part of the model"
    (tmp_path / "named.yaml").write_text(f"path: {folder}\n")
    assert keys(f"models=[{tmp_path / 'named.yaml'}]") == first
    flip(folder / "model.safetensors")
    second = keys(f"models=[{folder}]")
    assert not set(first) & set(second)
    flip(folder / "model.safetensors")
    assert keys(f"models=[{folder}]") == first


def test_cell_id_of_models_that_are_not_here(cache: Path) -> None:
    """So a plan makes and fetches nothing, and results of another machine keep their keys."""
    recipe, hub = models.resolve("countdown-tiny"), models.resolve("Qwen/Qwen2.5-0.5B-Instruct@main")
    assert recipe.recipe is not None
    assert recipe.identity() == recipe.recipe.identity()
    assert hub.identity() == {"path": "Qwen/Qwen2.5-0.5B-Instruct", "revision": "main"}
    assert hub.digest(Path("snapshots/0123456789abcdef")) == "0123456789abcdef", "the commit"
    assert keys("models=[countdown-tiny]")
    assert not (cache / "models").exists()


# Of models that are made here


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "sums.json"])
@pytest.mark.parametrize("harm", ["flipped", "lost"])
def test_folder_of_a_changed_model(name: str, harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "build_base_model", lambda recipe, folder: filled(folder))
    model, messages = Model("mine", recipe=Recipe(hidden=16, layers=1, steps=2, batch=4)), list[str]()
    folder = model.folder(tmp_path, messages.append)
    digest = model.digest(folder)
    whole = (folder / name).read_bytes()
    assert digest == digests.digest_of_files(folder, digests.file_checksums(folder))
    messages.clear()
    assert model.folder(tmp_path, messages.append) == folder
    assert messages == []
    if harm == "flipped":
        times = (folder / name).stat()
        flip(folder / name, bit=4)
        os.utime(folder / name, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a disk does that loses a bit
    else:
        (folder / name).unlink()
    assert model.folder(tmp_path, messages.append) == folder
    assert len(messages) == 2
    if name == "sums.json":
        assert messages[0].startswith((f"{folder / name} is damaged", f"{folder / name} is missing", str(folder)))
    else:
        reason = "has changed since it was made" if harm == "flipped" else "is missing"
        assert messages[0].startswith(f"{folder / name} {reason}; ")
    assert messages[0].endswith("; the model mine is made again")
    assert messages[1].startswith("making the model mine ")
    assert ((folder / name).read_bytes(), model.digest(folder)) == (whole, digest)
