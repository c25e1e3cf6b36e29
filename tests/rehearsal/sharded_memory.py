"""The memory of one of 8 ranks that train a model of its true size, without a GPU and without the values of tensors.

    python tests/rehearsal/sharded_memory.py FIGURES [LAYERS]

The process group is torch's fake one, the tensors are fake, and torch's MemTracker counts their bytes. All layers are
alike, so a few of them show whether `plan` counts right; 28 make the whole model, and take a minute.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools import fake_collectives  # noqa: F401, teaches fake tensors the collectives
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.gpu.common import config_of
from harness import config, ranks
from harness.base.shape import Shape
from harness.config import Config
from harness.methods.batch import Rollout, TokenBatch
from harness.plan import cost
from harness.rollout import models
from harness.tokens import streaming
from harness.train import weights
from harness.train.policy import Policy, layers_of

RANKS = 8
aten = torch.ops.aten
PROMPT, RESPONSE = 24, 1000
SETTINGS = ["models=[qwen2.5-7b-instruct]", f"hardware.ranks={RANKS}", "hardware.device=cuda", "train.dtype=bfloat16"]
SETTINGS += ["train.prompts=8", "train.group=8", "train.updates=1", "hardware.micro_tokens=8192"]
SETTINGS += [f"rollout.max_prompt_tokens={PROMPT}", f"rollout.max_new_tokens={RESPONSE}"]
CASES = {"recomputed": ["hardware.recompute=true"], "activations kept": []}

ANSWERS = {aten._local_scalar_dense.default: 1, aten.equal.default: False}


class RealIntegers(TorchDispatchMode):
    """Leaves the integers of a batch real, since sizes depend on them, and answers where a fake value is read."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if DTensor in types:
            return NotImplemented
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        fake = any(isinstance(x, FakeTensor) for x in tensors)
        if fake and func in ANSWERS:
            return ANSWERS[func]
        if fake or not (tensors or func._schema.name == "aten::arange"):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)


@contextmanager
def rank(number: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=RANKS)
    yield
    dist.destroy_process_group()


def as_named(model: PreTrainedModel, folder: Path) -> dict[str, str]:
    """Return the names of weights in files that nobody reads."""
    return {name: name for name, _ in model.named_parameters()}


def shard_of(number: int, shape: Shape) -> int:
    """Return how many parameters a rank holds."""
    with rank(number), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(shape))
        ranks.shard(model, layers_of(model), "cpu")
        return sum(ranks.here(parameter).numel() for parameter in model.parameters())


def update(policy: Policy, batch: TokenBatch) -> None:
    for part in policy.micro_batches(batch):
        policy.backward(policy.current(part, frozenset()).logp.sum())
    policy.step(1)


def peak(shape: Shape, settings: Config) -> int:
    """Return the bytes at the peak of the second update."""
    response = Rollout([1] * PROMPT, [2] * RESPONSE, [0.0] * RESPONSE, finished=True)
    different = [Rollout(response.prompt, [number, *response.response[1:]], response.logp, True) for number in range(8)]
    batch = TokenBatch.of([different], [0.0] * 8, RESPONSE, "cpu")
    with ExitStack() as stack:
        enter = stack.enter_context
        folder = Path(enter(tempfile.TemporaryDirectory()))
        config_of(shape).save_pretrained(folder)
        enter(rank(0))
        # As on a GPU; and nothing is read from files or asked of other ranks.
        enter(mock.patch.object(FakeTensor, "is_cuda", property(lambda self: True), create=True))
        enter(mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)))
        enter(mock.patch.dict(streaming.BLOCK, cpu=streaming.BLOCK["cuda"]))
        enter(mock.patch.object(weights, "stored", as_named))
        enter(mock.patch.object(weights, "fill"))
        enter(mock.patch.object(ranks, "each", lambda value, group=None: [value] * RANKS))
        enter(FakeTensorMode(allow_non_fake_inputs=True))
        enter(RealIntegers())
        policy = Policy(folder, settings.train, 1.0, "cpu", torch.bfloat16, settings.hardware)
        # The first update makes AdamW's moments. Torch meets every operator, and holds its tensors longer than later.
        update(policy, batch)
        gc.collect()
        tracker = MemTracker()
        tracker.track_external(policy.network, policy.optimizer)
        enter(tracker)
        update(policy, batch)
        return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def main(path: str, layers: str = "4") -> None:
    whole = models.resolve("qwen2.5-7b-instruct").shape()
    assert whole is not None
    shape = dataclasses.replace(whole, layers=int(layers))
    figures: dict[str, Any] = {
        "parameters": shape.parameters,
        "shards": [shard_of(number, shape) for number in range(RANKS)],
        "updates": {},
    }
    for name, more in CASES.items():
        settings = config.load_config("standard", [*SETTINGS, *more])
        plan = cost.memory_estimate(shape, settings, frozenset(), 2, cost.EMBEDDED)
        planned = sum(plan.training.values()) - plan.training["engine"]
        figures["updates"][name] = {"peak": peak(shape, settings), "plan": planned}
    Path(path).write_text(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
