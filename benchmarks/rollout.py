"""Speed of the embedded rollout engine against decoding with transformers, in one run.

All of them sample the same number of tokens (no end of sequence) from the same random Qwen2 model at temperature 1 and
keep their log-probabilities. Repeats are interleaved, so that other work on the machine slows all of them equally; the
table shows the best repeat of each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import show
from harness.rollout.embedded import EmbeddedEngine

LOOP = "loop over transformers, DynamicCache"
NEVER = -1  # an end of sequence that is never sampled


@dataclass(frozen=True)
class Setting:
    """A model and a batch to sample."""

    name: str
    hidden: int
    heads: int
    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int
    layers: int = 3
    vocabulary: int = 30

    def model(self) -> Qwen2ForCausalLM:
        """Return a random model of this size."""
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=4 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
        return Qwen2ForCausalLM(config).eval()


SETTINGS = (
    Setting("0.8 M parameters, batch of 128, 48 new tokens", 128, 4, 16, 8, 12, 48),
    Setting("demo, training: 0.2 M parameters, 64 x 16, 11 new tokens", 64, 2, 64, 16, 9, 11),
    Setting("demo, evaluation: 0.2 M parameters, 256 x 32, 11 new tokens", 64, 2, 256, 32, 9, 11),
)


def decode_loop(model: Qwen2ForCausalLM, ids_BL: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
    """Sample with a plain loop over the model's own forward pass; return tokens and log p."""
    cache, tokens, logp = DynamicCache(config=model.config), [], []
    step_ids = ids_BL
    for _ in range(new_tokens):
        logits = model(input_ids=step_ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        logp_BV = torch.log_softmax(logits, -1)
        step_ids = torch.multinomial(logp_BV.exp(), 1)
        tokens.append(step_ids)
        logp.append(logp_BV.gather(1, step_ids))
    return torch.cat(tokens, 1), torch.cat(logp, 1)


def transformers_generate(model: Qwen2ForCausalLM, ids_BL: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
    """Sample with transformers' generate; return sequences and log p."""
    settings = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=0,
    )
    out = model.generate(ids_BL, attention_mask=torch.ones_like(ids_BL), generation_config=settings)
    return out.sequences, model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)


def interleaved_seconds(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each contender in interleaved rounds, sorted, without a first round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: sorted(times) for name, times in seconds.items()}


def compare(setting: Setting, repeats: int) -> None:
    """Print the speeds of the engine and its alternatives in one setting."""
    model = setting.model()
    prompts = torch.randint(model.config.vocab_size, (setting.prompts, setting.prompt_tokens))
    ids_BL = prompts.repeat_interleave(setting.group, 0)
    engine = EmbeddedEngine([NEVER])
    engine.load(model)

    def embedded() -> None:
        seeds = range(setting.prompts)
        engine.generate(
            prompts.tolist(), setting.group, seeds=seeds, temperature=1.0, max_new_tokens=setting.new_tokens
        )

    contenders: dict[str, Callable[[], object]] = {
        "embedded engine": embedded,
        LOOP: lambda: decode_loop(model, ids_BL, setting.new_tokens),
        "transformers generate": lambda: transformers_generate(model, ids_BL, setting.new_tokens),
    }
    with torch.inference_mode():
        seconds = interleaved_seconds(contenders, repeats)
    best = {name: times[0] for name, times in seconds.items()}
    tokens = len(ids_BL) * setting.new_tokens
    show(
        f"Rollout, {setting.name}; {torch.get_num_threads()} threads, best of {repeats}",
        ["", "tokens/s", "to the loop", "ms"],
        [[name, f"{tokens / s:,.0f}", f"{best[LOOP] / s:.2f} x", f"{s * 1e3:.1f}"] for name, s in best.items()],
    )


def main(repeats: int = 7, threads: int = 2) -> None:
    torch.set_num_threads(threads)
    for setting in SETTINGS:
        compare(setting, repeats)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
