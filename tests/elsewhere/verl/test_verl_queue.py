"""Runs every method through verl's TransferQueue in actors of Ray, where the other tests have a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ragged import case

import baselines
from harness.methods.composition import Method
from harness.methods.refusals import verl_refusal

pytest.importorskip("verl.trainer.ppo.v1", reason="needs the package verl; make test-verl runs it")

import ray
import transfer_queue
from omegaconf import OmegaConf
from verl_batches import BUDGET, RayQueue, Run, close, direct

pytestmark = [pytest.mark.slow, pytest.mark.processes]
RUNNING = [name for name in baselines.METHODS if verl_refusal(Method.of(name, baselines.table())) is None]


@pytest.fixture(scope="module")
def queue() -> Iterator[RayQueue]:
    # A core each for the controller and the storage, also on a machine with fewer.
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield RayQueue()
    transfer_queue.close()
    ray.shutdown()


@pytest.mark.parametrize("spec", RUNNING)
def test_a_signal_arrives_through_the_queue_of_a_run(
    spec: str, queue: RayQueue, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    run = Run(c, settings(spec), monkeypatch, ranks=2, padding=8, queue=queue)
    try:
        (arrived,) = run.step()
    finally:
        transfer_queue.kv_clear(list(run.batch.keys), "train")
    (expected,) = direct(c, spec, [row for row in run.order if row >= 0], [list(range(32))])
    close(arrived, expected)


def test_responses_of_one_length_arrive_as_ragged_ones_do(
    queue: RayQueue, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue could stack rows of one length to a tensor that is not nested."""
    c = case(4, groups=4, size=8, longest=1)
    assert c.batch.lengths_B.tolist() == [1] * 32
    run = Run(c, settings("clip_b(share=0.3)"), monkeypatch, queue=queue)
    try:
        (arrived,) = run.step()
    finally:
        transfer_queue.kv_clear(list(run.batch.keys), "train")
    (expected,) = direct(c, "clip_b(share=0.3)", run.order, [list(range(32))])
    close(arrived, expected)
    assert torch.count_nonzero(arrived)
