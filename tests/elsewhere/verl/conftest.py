"""Configurations of verl, composed from its own files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import baselines
from harness.methods.composition import Method


@pytest.fixture(scope="session")
def composed() -> Iterator[Callable[..., Any]]:
    """A function that composes a configuration of verl from overrides."""
    hydra = pytest.importorskip("hydra", reason="needs the package verl; make test-verl runs it")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        yield lambda *overrides: hydra.compose("ppo_trainer", overrides=list(overrides))


@pytest.fixture
def settings(composed: Callable[..., Any]) -> Callable[..., Any]:
    """A function that composes the configuration of a spec."""
    from verl_batches import SETTINGS  # which imports verl

    whole = composed(*SETTINGS, "+entrobench.method=grpo")

    def of(spec: str) -> Any:
        config = copy.deepcopy(whole)
        config.entrobench.method = spec
        needs = Method.of(spec, baselines.table()).needs
        config.actor_rollout_ref.actor.use_kl_loss = "ref_logp" in needs
        config.algorithm.adv_estimator = "gae" if "values" in needs else "grpo"
        return config

    return of
