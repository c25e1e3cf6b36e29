"""The measurement of bfloat16 on a CPU, and the compute type that follows from it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import matrix
from harness.base import matmul
from harness.base.shape import Shape
from harness.config import Config

SMALL = Shape(architecture="llama", vocabulary=49152, hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64, mlp=1536)


MEASURED = matmul.bfloat16_speed  # which other tests do without (tests/conftest.py)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(matmul, "bfloat16_speed", MEASURED)
    MEASURED.cache_clear()
    yield
    MEASURED.cache_clear()


def test_bfloat16_speed_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [3.0, 1.0]
    monkeypatch.setattr(matmul, "measured_apart", measured.pop)
    assert [matmul.bfloat16_speed(), matmul.bfloat16_speed()] == [1.0, 1.0]
    matmul.bfloat16_speed.cache_clear()  # as in another process
    assert matmul.bfloat16_speed() == 1.0
    monkeypatch.setattr(matmul.devices, "processor", lambda: "another processor")
    matmul.bfloat16_speed.cache_clear()
    assert matmul.bfloat16_speed() == 3.0


def test_bfloat16_speed_of_a_damaged_record_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "measured_apart", lambda: 2.0)
    matmul.bfloat16_speed()
    [record] = tmp_path.rglob("*.json")
    record.write_text(record.read_text().replace("2.0", "9.0"))
    matmul.bfloat16_speed.cache_clear()
    assert matmul.bfloat16_speed() == 2.0


def test_bfloat16_speed_with_a_read_only_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(matmul, "measured_apart", lambda: 2.0)
    monkeypatch.setattr(Path, "mkdir", fail)
    assert matmul.bfloat16_speed() == 2.0


@pytest.mark.processes
def test_measured_apart_is_the_ratio_of_two_products() -> None:
    assert 0.001 < matmul.measured_apart() < 50


@pytest.mark.processes
def test_measured_apart_of_a_processor_that_ends_the_process_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "python_command", lambda *_: ["sh", "-c", "kill -ILL $$"])
    assert matmul.measured_apart() == 0.0


@pytest.mark.parametrize(
    ("speed", "hidden", "device", "dtype"),
    [
        (1.5, 576, "cpu", "bfloat16"),
        (1.49, 576, "cpu", "float32"),
        (4.0, 512, "cpu", "float32"),
        (0.002, 576, "cuda", "bfloat16"),
        (4.0, None, "cpu", "float32"),
    ],
)
def test_settle_auto_takes_the_type_that_is_fast(
    speed: float, hidden: int | None, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "bfloat16_speed", lambda: speed)
    config = Config()
    config.hardware.device, config.rollout.engine = device, "embedded"
    shape = None if hidden is None else Shape(**{**vars(SMALL), "hidden": hidden})
    assert matrix.settle_auto(config, shape).train.dtype == dtype
    config.train.dtype = "float32"
    assert matrix.settle_auto(config, shape).train.dtype == "float32"
