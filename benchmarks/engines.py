"""Speed of the rollout engines by model size, and the overhead of evaluation through lm-eval, in one run.

    make bench-vllm

The first table is the basis of `rollout.engine: auto`: embedded, vLLM and transformers' generate sample the same
number of tokens from the same random Qwen2 models at temperature 1, with log-probabilities. The second table gives vLLM
the requests of an evaluation of countdown, once directly, by its own `LLM.generate`, and once as `entrobench eval`
does, which keeps the samples.
The overhead is a small difference of long times, which other work on the machine can hide. The time that an evaluation
spends outside the engine's `generate`, as a share of the direct time, is that difference without the noise of sampling.
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
from benchmarks.rollout import NEVER, Setting, interleaved_seconds, transformers_generate
from harness.elsewhere.assess import BATCH, KeepingEvaluator
from harness.methods.batch import Rollout
from harness.rollout import models
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.protocol import Engine
from harness.rollout.vllm import VllmEngine
from harness.verify.pool import VerifierPool
from tasks.countdown import Countdown

SIZES = (
    Setting("0.2 M parameters", 64, 2, 64, 16, 9, 11),
    Setting("5 M parameters", 256, 8, 32, 8, 65, 32, layers=5),
    Setting("50 M parameters", 512, 8, 16, 8, 65, 32, layers=12),
)


class EndlessEngine(VllmEngine):
    """A vLLM engine that samples every response to the limit."""

    def _params(self, *settings: Any) -> Any:
        params = super()._params(*settings)
        params.stop_token_ids = []
        return params


def row_of_size(setting: Setting, repeats: int, folder: Path) -> list[str]:
    """Return the speeds of the engines on a model of one size."""
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
        "embedded": sampling(EmbeddedEngine([NEVER])),
        "vLLM": sampling(EndlessEngine(folder, [0])),
        "generate": lambda: transformers_generate(model, ids_BL, setting.new_tokens),
    }
    with torch.inference_mode():
        seconds = interleaved_seconds(contenders, repeats)
    best = {name: times[0] for name, times in seconds.items()}
    tokens = len(ids_BL) * setting.new_tokens
    speeds = [f"{tokens / time_s:,.0f}" for time_s in best.values()]
    batch = f"{setting.prompts} x {setting.group} x {setting.new_tokens}"
    return [setting.name, batch, *speeds, f"{best['embedded'] / best['vLLM']:.2f} x"]


def evaluation(name: str, model: PreTrainedModel, problems: int, length: int, repeats: int, folder: Path) -> list[str]:
    """Return the seconds of an evaluation directly and through lm-eval.

    Each round loads the same weights again, so that vLLM's cache of prompts is empty.
    """
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("countdown-tiny").folder())
    model.save_pretrained(folder)
    engine = VllmEngine(folder, [tokenizer.eos_token_id])
    request: dict[str, Any] = {}
    inside_s: list[float] = []
    outside_s: list[float] = []

    class RecordingEngine:
        """The engine, which records its last request and the seconds of each."""

        def generate(self, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Rollout]]:
            request.update(settings, prompts=prompts, n=n)
            start = time.perf_counter()
            groups = engine.generate(prompts, n, **settings)
            inside_s.append(time.perf_counter() - start)
            return groups

    def through_lm_eval() -> None:
        engine.load(model)
        start = time.perf_counter()
        evaluator = KeepingEvaluator(
            RecordingEngine(),
            tokenizer,
            VerifierPool(),
            max_failures=1.0,
            folder=Path(tempfile.mkdtemp(dir=folder)),
            together=BATCH["vllm"],
            on_batch=lambda done, of: None,
        )
        evaluator.evaluate(
            Countdown(), 0, split="test", problems=problems, samples=32, temperature=1.0, max_new_tokens=length
        )
        outside_s.append(time.perf_counter() - start - inside_s[-1])

    def directly() -> None:
        engine.load(model)
        prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        params = [engine._params(request["n"], seed, request["temperature"], length) for seed in request["seeds"]]
        engine.llm.generate(prompts, params, use_tqdm=False)

    # In this order, since the direct way repeats the request that was recorded.
    seconds = interleaved_seconds({"through lm-eval": through_lm_eval, "directly": directly}, repeats)
    through, direct = seconds["through lm-eval"], seconds["directly"]
    spans = [f"{times[0]:.2f} to {times[-1]:.2f}" for times in (direct, through)]
    return [name, *spans, f"{through[0] / direct[0] - 1:+.1%}", f"{min(outside_s) / direct[0]:.1%}"]


def evaluations(repeats: int, folder: Path) -> list[list[str]]:
    tiny = AutoModelForCausalLM.from_pretrained(models.resolve("countdown-tiny").folder(say=print), dtype=torch.float32)
    # Random weights seldom sample the end, so that this model's answers are long.
    larger = Setting("", 256, 8, 0, 0, 0, 0, layers=5, vocabulary=tiny.config.vocab_size).model()
    return [
        evaluation("0.2 M parameters, 256 x 32 answers of about 10 tokens", tiny, 256, 20, repeats, folder / "tiny"),
        evaluation("5 M parameters, 16 x 32 answers of up to 100 tokens", larger, 16, 100, repeats, folder / "larger"),
    ]


def main(repeats: int = 3, threads: int = 2) -> None:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row_of_size(setting, repeats, Path(folder) / str(number)) for number, setting in enumerate(SIZES)]
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
