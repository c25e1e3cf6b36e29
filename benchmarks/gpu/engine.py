"""vLLM on a GPU: agreement with the trained model after every update, memory freed by a rest, and speed.

    python -m benchmarks.gpu.engine [updates]

A random Qwen2 model of 0.5 B parameters (tied head) is changed, synchronized and sampled, with a rest before each
synchronization. Log-probabilities are compared with transformers in float32 and in bfloat16, the engine's type.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import show
from harness.methods.batch import Rollout
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.protocol import Engine
from harness.rollout.vllm import VllmEngine
from harness.tokens.head import wide_product

EOS = 0
PROMPTS = [[(7 * i + j) % 1000 + 1 for i in range(100)] for j in range(64)]
SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


def sample(engine: Engine) -> tuple[list[list[Rollout]], float]:
    """Return responses, and their tokens per second."""
    start = time.perf_counter()
    groups = engine.generate(PROMPTS, 8, seeds=range(len(PROMPTS)), temperature=1.0, max_new_tokens=256)
    tokens = sum(len(rollout.response) for group in groups for rollout in group)
    return groups, tokens / (time.perf_counter() - start)


@torch.no_grad()
def differences(model: PreTrainedModel, groups: list[list[Rollout]]) -> torch.Tensor:
    """Return the differences of log p between the engine and the model, on some of the responses."""
    differences_of_responses = []
    for rollout in (group[0] for group in groups[:16]):
        ids = torch.tensor([rollout.prompt + rollout.response], device="cuda")
        hidden_TD = model.model(input_ids=ids).last_hidden_state[0, len(rollout.prompt) - 1 : -1]
        logp_TV = torch.log_softmax(wide_product(hidden_TD, model.lm_head.weight.T), -1)
        targets_T1 = torch.tensor(rollout.response, device="cuda")[:, None]
        engine_logp_T = torch.tensor(rollout.logp, device="cuda")
        differences_of_responses.append((logp_TV.gather(1, targets_T1)[:, 0] - engine_logp_T).abs())
    return torch.cat(differences_of_responses)


def used_gib() -> float:
    """Return the used memory of the device, of all processes together."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def main(updates: int = 5) -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).cuda().eval()
    with tempfile.TemporaryDirectory() as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        model.float()
        engine = VllmEngine(Path(folder), EOS, "cuda", torch.bfloat16)
    rows = []
    for update in range(updates):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * weight.std() * torch.randn_like(weight))
        awake = used_gib()
        engine.rest()
        resting = used_gib()
        start = time.perf_counter()
        engine.load(model)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        groups, speed = sample(engine)
        again, _ = sample(engine)
        to_float32 = differences(model, groups)
        to_bfloat16 = differences(copy.deepcopy(model).to(torch.bfloat16), groups)
        repeated = 0
        for group, same_group in zip(groups, again, strict=True):
            for rollout, same_rollout in zip(group, same_group, strict=True):
                repeated += rollout.response == same_rollout.response
        rows.append(
            [
                str(update),
                f"{to_float32.mean():.4f} / {to_float32.max():.3f}",
                f"{to_bfloat16.mean():.4f} / {to_bfloat16.max():.3f}",
                f"{repeated} of {8 * len(PROMPTS)}",
                f"{1000 * seconds:.0f}",
                f"{awake:.1f} / {resting:.1f}",
                f"{speed:,.0f}",
            ]
        )
    columns = [
        "update",
        "to float32, mean / max",
        "to bfloat16",
        "repeat",
        "load, ms",
        "GiB awake / resting",
        "tokens/s",
    ]
    show(f"vLLM on {torch.cuda.get_device_name()}", columns, rows)
    engine.rest()
    embedded = EmbeddedEngine(EOS, "cuda", torch.bfloat16)
    embedded.load(model)
    sample(embedded)
    show("The embedded engine on the same", ["", "tokens/s"], [["0.5 B parameters", f"{sample(embedded)[1]:,.0f}"]])
    engine.load(model)  # vLLM warns about memory if it ends while asleep


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
