"""Options of training that are refused before anything starts, and the packages that some of them need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from absent import hide_package
from commands import refusal
from trainers import planned

from harness.train import parts

ADAPTERS, EIGHT_BITS = "train.lora.rank=4", "train.optimizer=adamw8bit"
REFUSED: dict[tuple[str, ...], str] = {
    ("train.lora.rank=0",): r"train.lora.rank is 0; allowed: 1 and more",
    ("train.lora.alpha=0",): r"train.lora.alpha is 0; allowed: 1 and more",
    ("train.lora.dropout=0.1",): r"unknown key train.lora.dropout; allowed: alpha, rank, targets",
    ("train.lora.targets=[]",): r"train.lora.targets is empty; allowed: one and more of q_proj, ",
    ("train.lora.targets=[q_proj,q_proj]",): r"train.lora.targets names 'q_proj' twice",
    ("train.lora.targets=[lm_head]",): r"names 'lm_head', but log p is computed from chunks .*; leave it out$",
    ("train.lora.targets=[query]",): r"train.lora.targets is 'query'; allowed: down_proj, .*",
    (
        "models=[qwen2.5-7b-instruct]",
        "train.lora.rank=513",
        "train.lora.targets=[up_proj]",
        "rollout.engine=vllm",
    ): r"train.lora.rank is 513; with rollout.engine=vllm, allowed: 1 to 512; set rollout.engine=embedded for more",
    (ADAPTERS, "hardware.ranks=2"): r"a cell has 2 ranks .* and train.lora is set, which trains on one; allowed: 1",
    (ADAPTERS, "train.backend=trl"): r"train.lora is set, which train.backend=trl cannot do; allowed: null",
    ("train.lora.rank=65", "train.lora.targets=[up_proj]"): r"train.lora.rank is 65, but up_proj .* only 64 inputs",
    ("train.lora.rank=65", "train.lora.targets=[down_proj]"): r"but down_proj .* only 64 outputs; allowed: 1 to 64",
    ("train.optimizer=adam",): r"train.optimizer is 'adam'; allowed: adamw, adamw8bit",
    (EIGHT_BITS, "hardware.ranks=2"): r"a cell has 2 ranks .* and train.optimizer is 'adamw8bit', which trains on one",
    (EIGHT_BITS, "hardware.nodes=2"): r"a cell has 2 ranks .* and train.optimizer is 'adamw8bit', which trains on one",
    (EIGHT_BITS, "hardware.offload=true"): r"hardware.offload is true, .*adamw8bit is slow .*; allowed: one of the two",
    (EIGHT_BITS, "train.backend=trl"): r"train.optimizer is adamw8bit, which train.backend=trl cannot do; .*: adamw$",
    ("train.filter=yes",): "train.filter is True",
    ("train.filter={low: 0.9, high: 0.1}",): "between low .0.9. and high .0.1.; allowed: low < high",
    (
        "methods=[grpo,a2po]",
    ): r"train.filter is null, but method 'a2po' reads .* write for example train.filter={n: 8}$",
    (
        "methods=[grpo,dph_rl]",
    ): r"train.filter is null, but method 'dph_rl' trains on right responses .* write for example train.filter={n: 8}$",
    ("train.filter.n=1",): "no share of 1 lies strictly between",
    ("train.filter={n: 16, low: 0.07, high: 0.1}",): "no share of 16 lies strictly between",
    ("hardware.recompute=1.5",): r"hardware\.recompute is 1\.5; allowed: 0 to 1",
    ("hardware.recompute=half",): r"hardware\.recompute is 'half'; it must be a number",
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_run_refuses(overrides: tuple[str, ...], tmp_path: Path) -> None:
    shared = ("tasks=[countdown]", "models=[countdown-tiny]", f"results={tmp_path / 'results'}")
    assert re.search(REFUSED[overrides], refusal("run", "demo", *shared, *overrides).strip())
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("package", "override", "reason", "extra"),
    [
        ("peft", ADAPTERS, "train.lora is set", "lora"),
        ("torchao", EIGHT_BITS, "train.optimizer is 'adamw8bit'", "adamw8bit"),
    ],
)
def test_run_without_a_package(
    package: str, override: str, reason: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_package(monkeypatch, package)
    sentence = refusal("run", "demo", "models=[countdown-tiny]", f"results={tmp_path / 'results'}", override)
    assert sentence == f"entrobench: {reason}, but {package} is not installed here; pip install -e '.[{extra}]'\n"
    assert not (tmp_path / "results").exists()


def test_run_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    sentence = refusal("run", "demo", f"results={tmp_path / 'results'}", "hardware.compile=true")
    assert sentence == (
        "entrobench: hardware.compile is true, but there is no C++ compiler here; Debian, Ubuntu: apt install g++\n"
    )
    assert not (tmp_path / "results").exists()


def test_record_attempt_with_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    monkeypatch.setattr(parts.provenance, "begin_attempt", lambda *given, **_: recorded.append(given[-1]))
    for overrides in ((), (ADAPTERS,), (EIGHT_BITS,)):
        parts.record_attempt(tmp_path, planned(*overrides).settled, {}, "digest")
    assert recorded == [[], ["peft"], ["torchao"]]
