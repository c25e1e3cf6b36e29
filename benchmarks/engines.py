"""Speed of the rollout engines by size of the model, and what evaluation through lm-eval adds, in one run.

    make bench-vllm

The first table is what `rollout.engine: auto` rests on: embedded, vLLM and transformers' generate sample the same
number of tokens from the same random Qwen2 models at temperature 1, with log-probabilities. The second table gives vLLM
the very requests of an evaluation of countdown, once directly, by its own `LLM.generate`, and once as `entrobench eval`
does, which keeps what was sampled.
What is added is a small difference of long times, which a busy machine blurs; what an evaluation spends outside the
engine's `generate`, in shares of the direct way, is that difference without the noise of the sampling.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.common import show
from benchmarks.rollout import NEVER, Setting, transformers_generate
from harness.batch import Rollout
from harness.rollout import models
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.protocol import Engine
from harness.rollout.vllm import VllmEngine
from harness.study.assess import BATCH
from harness.train.evaluate import Sampler, evaluate_task
from harness.verify.pool import VerifierPool
from tasks.countdown import Countdown

SIZES = (
    Setting("0.2 M parameters", 64, 2, 64, 16, 9, 11),
    Setting("5 M parameters", 256, 8, 32, 8, 65, 32, layers=5),
    Setting("50 M parameters", 512, 8, 16, 8, 65, 32, layers=12),
)


class Endless(VllmEngine):
    """Which samples every response to the limit."""

    def _params(self, *asked: Any) -> Any:
        params = super()._params(*asked)
        params.stop_token_ids = []
        return params


def timed(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, interleaved, from the quickest to the slowest, without a first round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: sorted(times) for name, times in seconds.items()}


def by_size(setting: Setting, repeats: int, folder: Path) -> list[str]:
    model = setting.model()
    model.save_pretrained(folder)
    prompts = torch.randint(model.config.vocab_size, (setting.prompts, setting.prompt_tokens))
    ids_BL = prompts.repeat_interleave(setting.group, 0)

    def sampling(engine: Engine) -> Callable[[], object]:
        engine.load(model)
        return lambda: engine.generate(
            prompts.tolist(),
            setting.group,
            seeds=range(setting.prompts),
            temperature=1.0,
            max_new_tokens=setting.new_tokens,
        )

    contenders: dict[str, Callable[[], object]] = {
        "embedded": sampling(EmbeddedEngine(NEVER)),
        "vLLM": sampling(Endless(folder, 0)),
        "generate": lambda: transformers_generate(model, ids_BL, setting.new_tokens),
    }
    with torch.inference_mode():
        found = {name: seconds[0] for name, seconds in timed(contenders, repeats).items()}
    tokens = len(ids_BL) * setting.new_tokens
    speeds = [f"{tokens / seconds:,.0f}" for seconds in found.values()]
    batch = f"{setting.prompts} x {setting.group} x {setting.new_tokens}"
    return [setting.name, batch, *speeds, f"{found['embedded'] / found['vLLM']:.2f} x"]


def evaluation(name: str, model: PreTrainedModel, problems: int, length: int, repeats: int, folder: Path) -> list[str]:
    """Both forget the prompts of the round before, by a load of the same weights."""
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("countdown-tiny").folder())
    model.save_pretrained(folder)
    engine = VllmEngine(folder, tokenizer.eos_token_id)
    asked: dict[str, Any] = {}
    sampling: list[float] = []
    outside: list[float] = []

    class Overheard:
        def generate(self, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Rollout]]:
            asked.update(settings, prompts=prompts, n=n)
            start = time.perf_counter()
            groups = engine.generate(prompts, n, **settings)
            sampling.append(time.perf_counter() - start)
            return groups

    def through_lm_eval() -> None:
        engine.load(model)
        start = time.perf_counter()
        evaluate_task(
            Countdown(),
            Sampler(Overheard(), tokenizer, 0, kept=Path(tempfile.mkdtemp(dir=folder)), together=BATCH["vllm"]),
            VerifierPool(),
            split="test",
            problems=problems,
            samples=32,
            temperature=1.0,
            max_new_tokens=length,
            max_failures=1.0,
        )
        outside.append(time.perf_counter() - start - sampling[-1])

    def directly() -> None:
        engine.load(model)
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        params = [engine._params(asked["n"], seed, asked["temperature"], length) for seed in asked["seeds"]]
        engine.llm.generate(prompts, params, use_tqdm=False)

    found = timed({"through lm-eval": through_lm_eval, "directly": directly}, repeats)
    through, direct = found["through lm-eval"], found["directly"]
    spans = [f"{times[0]:.2f} to {times[-1]:.2f}" for times in (direct, through)]
    return [name, *spans, f"{through[0] / direct[0] - 1:+.1%}", f"{min(outside) / direct[0]:.1%}"]


def evaluations(repeats: int, folder: Path) -> list[list[str]]:
    tiny = AutoModelForCausalLM.from_pretrained(models.resolve("countdown-tiny").folder(say=print), dtype=torch.float32)
    larger = Setting("", 256, 8, 0, 0, 0, 0, layers=5, vocabulary=tiny.config.vocab_size).model()  # goes on for long
    return [
        evaluation("0.2 M parameters, 256 x 32 answers of about 10 tokens", tiny, 256, 20, repeats, folder / "tiny"),
        evaluation("5 M parameters, 16 x 32 answers of up to 100 tokens", larger, 16, 100, repeats, folder / "larger"),
    ]


def main(repeats: int = 3, threads: int = 2) -> None:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = [by_size(setting, repeats, Path(folder) / str(number)) for number, setting in enumerate(SIZES)]
        rows_of_evaluation = evaluations(repeats, Path(folder))
    show(
        f"Rollout engines, tokens/s, float32; {threads} threads, best of {repeats}",
        ["", "prompts x group x tokens", "embedded", "vLLM", "generate", "vLLM to embedded"],
        rows,
    )
    show(
        f"Evaluation with vLLM, seconds; {threads} threads, the best of {repeats} to the worst",
        ["", "directly", "through lm-eval", "added", "outside the engine"],
        rows_of_evaluation,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
