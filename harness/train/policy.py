"""The policy, its critic, and their optimizers: token batches in, TokenStats out, losses back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from harness import ranks
from harness.base import devices, files
from harness.base.errors import CellFailure, UserError
from harness.base.shape import recomputed_layers
from harness.config import Hardware, Train
from harness.methods.batch import TokenBatch, TokenStats
from harness.rollout.merged import MergedWeights
from harness.rollout.protocol import no_progress
from harness.tokens.head import Head, wide
from harness.tokens.statistics import token_stats
from harness.train import invariants, lora, packing, weights
from harness.train.hidden import hidden_states, response_tokens
from harness.train.optimizer import build_optimizer, fresh_state, plain_tensors, take_step


class Learner:
    """A model with its optimizer. `backward` adds up gradients; `step` applies them.

    `module` is the model. `network` is the model with the computation on its hidden states: the unit of one forward
    pass, for which several ranks gather their weights. With `train.lora` its adapters alone are trained, and `seed`
    determines their first values.
    """

    module: nn.Module

    def __init__(
        self,
        network: nn.Module,
        folder: Path,
        train: Train,
        lr: float,
        device: str,
        dtype: torch.dtype,
        hardware: Hardware,
        on_progress: Callable[[], None],
        seed: int,
    ) -> None:
        self.on_progress = on_progress
        self.network = network.train()
        self.train, self.lr, self.device, self.dtype = train, lr, device, dtype
        self.micro, self.recompute = hardware.micro_tokens, hardware.recompute
        model = next(part for part in network.modules() if isinstance(part, PreTrainedModel))
        if train.lora is not None:
            lora.add_adapters(model, train.lora, seed, dtype)
        self.dropout = weights.without_dropout(model)
        self.packing = packing.prepare_for_packing(model)
        if self.recompute:
            recompute_layers(model, self.recompute)
        if hardware.compile:
            compile_parts(model)
        # The order matters: weights are sharded before they are read, so that no rank ever holds a whole model, and the
        # optimizer comes last, since sharding replaces the parameters.
        self.sharded = ranks.several()
        if self.sharded:
            head = [part for part in network.children() if part is not model]  # a critic's, which computes in float32
            ranks.shard(network, layers_of(model), device, dtype, wide=head)
        if model.device.type == "meta":
            weights.settle(network, model, folder, device)
        else:
            network.to(device)
        named = self.module.named_parameters()  # a tied head once
        self.weights = {name: weight for name, weight in named if weight.requires_grad}  # the trained ones
        # The tensors that the optimizer updates: the weights, or with offload copies on the CPU, where its moments lie.
        self.masters: Mapping[str, Tensor] = self.weights
        # This rank's part of the machine's cores.
        self.machine_threads = max(int(devices.usable_cores() * hardware.share) // hardware.ranks, hardware.threads)
        if hardware.offload:
            self.masters = {name: ranks.on_cpu(x) for name, x in self.weights.items()}
        self.optimizer = build_optimizer(self.masters.values(), train, lr)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.dtype == torch.float32 or self.sharded:  # weights of shards are gathered in the type of the computation
            return contextlib.nullcontext()
        # The cache holds the casts of all weights until a pass ends, as much memory as a second model. So it is off
        # wherever memory is saved in other ways.
        return torch.autocast(self.device, self.dtype, cache_enabled=not self.recompute)

    def micro_batches(self, batch: TokenBatch) -> list[TokenBatch]:
        """Return the micro-batches of a batch, equally many on every rank: ranks with fewer add idle ones.

        Each pass gathers weights from all ranks, so all must make the same number of passes.
        """
        parts = list(batch.micro_batches(self.micro, packing=self.packing))
        lacking = ranks.most(len(parts)) - len(parts)
        return parts + [batch.idle()] * lacking if lacking else parts

    def backward(self, loss: Tensor) -> float:
        """Add the gradient of a loss, and return its value; one that is not finite ends the cell before any update."""
        if not torch.isfinite(loss):
            raise CellFailure(f"the loss of the {type(self).__name__.lower()} is {loss.item()}")
        self.on_progress()
        loss.backward()
        return loss.item()

    def step(self, step: int) -> float:
        """Apply the gradient at the learning rate of a training step; return the gradient's norm."""
        return self.apply(self.lr * min(1.0, step / max(self.train.warmup_steps, 1)))

    def apply(self, lr: float) -> float:
        """Take one optimizer step; return the norm of the gradient before clipping."""
        norm = ranks.whole_weight(clip_grad_norm_(self.module.parameters(), self.train.grad_clip)).item()
        if not torch.isfinite(torch.tensor(norm)):
            raise CellFailure(f"the gradient of the {type(self).__name__.lower()} is not finite (its norm is {norm})")
        if self.masters is not self.weights:
            for name, weight in self.weights.items():
                self.masters[name].grad = None if weight.grad is None else ranks.on_cpu(weight.grad)
        # An optimizer of other tensors, for example of parameters that sharding has replaced, would raise no error.
        before = invariants.sampled_numbers(self.masters)
        with self.threads_of_machine():
            take_step(self.optimizer, lr, self.device)
        invariants.check_changed(before, self.masters, norm, lr)
        # With offload the masters have gradients of their own.
        self.optimizer.zero_grad(set_to_none=True)
        self.network.zero_grad(set_to_none=True)
        self.publish()
        return norm

    @contextlib.contextmanager
    def threads_of_machine(self) -> Iterator[None]:
        """Let AdamW use more cores where it works on the CPU while a GPU waits; its numbers do not depend on that."""
        own = torch.get_num_threads()
        if self.device == "cuda" and self.masters is not self.weights:
            torch.set_num_threads(self.machine_threads)
        yield
        torch.set_num_threads(own)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters to the weights, where they are two."""
        if self.masters is not self.weights:
            for name, weight in self.weights.items():
                ranks.here(weight).copy_(ranks.here(self.masters[name]))

    def state(self) -> dict[str, Tensor]:
        """Return weights and moments, not copied; on several ranks each has its shards."""
        tensors = {f"weight.{name}": master.detach() for name, master in self.masters.items()}
        for name, master in self.masters.items():
            # Not by index: the optimizer's dict would make an entry for a weight that never had a gradient.
            state = plain_tensors(self.optimizer.state.get(master, {}))
            tensors |= {f"{kind}.{name}": x for kind, x in state.items()}
        return tensors

    def load_state(self, names: Collection[str], fill: Callable[[dict[str, Tensor]], None]) -> None:
        """Take over a state with these names of tensors, which `fill` writes into the tensors that it receives."""
        for name, master in self.masters.items():
            # An optimizer makes a weight's state in its first step, so that a fresh one has nothing to write into. A
            # weight that never had a gradient has no state in the checkpoint either.
            has_state = f"step.{name}" in names
            self.optimizer.state[master] = fresh_state(self.optimizer, master) if has_state else {}
        fill(self.state())
        self.publish()


def head_of(model: PreTrainedModel) -> Head:
    """Return the head of a language model; `with_linear_head` has made sure that it is linear."""
    linear = model.get_output_embeddings()
    return Head(linear.weight, linear.bias, getattr(model.config, "final_logit_softcapping", None))


def check_vocabulary(tokenizer: Any, model: PreTrainedModel, folder: Path) -> None:
    """Raise UserError where the tokenizer has tokens for which the model gives no logit."""
    highest, rows = max(tokenizer.get_vocab().values()), len(head_of(model).weight_VD)
    if highest >= rows:
        raise UserError(
            f"the tokenizer of model {folder} has tokens up to {highest}, but its head gives only {rows} logits; they "
            "must be of one model"
        )


def context_of(config: PreTrainedConfig) -> int | None:
    """Return the most tokens of prompt and response that a model was made for, if its configuration says so."""
    return getattr(config, "max_position_embeddings", None)


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the repeated layers, by the class names that transformers lists for this purpose."""
    names = model._no_split_modules or ()
    return [module for module in model.modules() if type(module).__name__ in names]


def recompute_layers(model: PreTrainedModel, share: float) -> None:
    """Let a share of a model's layers compute their activations again in the backward pass.

    The first layers: the backward pass reaches them when the later ones have released what they kept.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = layers_of(model)
    for layer in layers[recomputed_layers(len(layers), share) :]:
        layer.gradient_checkpointing = False  # type: ignore[assignment]


def compile_parts(model: PreTrainedModel) -> None:
    """Let one kernel compute what takes several in the norms and the MLP of each layer.

    Whole layers get other arguments with each packed row, for which torch would compile them again.
    """
    for layer in layers_of(model):
        for name, part in layer.named_children():
            if name != "self_attn":
                part.compile(dynamic=True)


class Scorer(nn.Module):
    """A language model whose output is the statistics of response tokens."""

    def __init__(self, model: PreTrainedModel, temperature: float, device: str) -> None:
        super().__init__()
        self.model, self.temperature, self.device = model, temperature, device

    def forward(self, batch: TokenBatch, **which: Any) -> tuple[Tensor | None, ...]:
        """Return the columns of TokenStats as a tuple: in a dataclass FSDP finds no tensors with a gradient.

        `which`: as of `token_stats`.

        Equal responses are computed once, and their statistics spread to all copies, whose gradients add up.
        """
        once, place_T = batch.without_copies()
        hidden_TD = hidden_states(self.model.base_model, once, self.device)
        head, targets_T = head_of(self.model), response_tokens(once, self.device)
        columns = vars(token_stats(hidden_TD, head, targets_T, self.temperature, **which)).values()
        return tuple(None if column_T is None else to_all_copies(column_T, place_T) for column_T in columns)


def columns_before(needs: frozenset[str]) -> dict[str, bool]:
    """Return which columns are computed before the update for a need alone."""
    return {name: name in needs for name in ("sum_p2", "min_p", "likeliest_entropy")}


def order_of(parts: Sequence[TokenBatch]) -> Tensor:
    """Return the places of tokens in all parts, in the order of the batch: parts may be sorted by length."""
    return torch.cat([part.index_T for part in parts]).argsort()


def to_all_copies(of_distinct_T: Tensor, place_T: Tensor) -> Tensor:
    """Return the number of each token, given those of the tokens of distinct responses.

    A copy even where all are distinct, since FSDP hangs its backward hooks on outputs, and these must not be views. Not
    indexing, of which the gradient is added up by several threads in any order, and so rounded differently each time.
    """
    return of_distinct_T.index_select(0, place_T)


class Policy(Learner):
    module: PreTrainedModel

    def __init__(
        self,
        folder: Path,
        train: Train,
        temperature: float,
        device: str,
        dtype: torch.dtype,
        hardware: Hardware,
        on_progress: Callable[[], None] = no_progress,
        seed: int = 0,
    ) -> None:
        model = weights.outline(folder, AutoModelForCausalLM)
        self.module = weights.with_linear_head(model, folder)
        # Granite divides its logits by a number of its configuration, as a temperature does.
        self.temperature = temperature * getattr(model.config, "logits_scaling", 1.0)
        scorer = Scorer(self.module, self.temperature, device)
        super().__init__(scorer, folder, train, train.lr, device, dtype, hardware, on_progress, seed)

    @property
    def vocabulary(self) -> int:
        """The number of tokens with a probability."""
        return len(head_of(self.module).weight_VD)

    def stats(self, batch: TokenBatch, needs: frozenset[str] = frozenset(), *, entropy: bool = True) -> TokenStats:
        """Return the statistics of the present policy, without gradient, in the order of the batch's tokens."""
        parts = self.micro_batches(batch)
        with torch.no_grad():
            by_part = [self._forward(part, entropy=entropy, **columns_before(needs)) for part in parts]
        return TokenStats.cat(by_part).at(order_of(parts))

    def logp_without_adapters(self, batch: TokenBatch) -> Tensor:
        """Return the log-probability of each token, without gradient, by the weights that are not adapters'."""
        with lora.without_adapters(self.module):
            return self.stats(batch, entropy=False).logp

    def current(self, batch: TokenBatch, needs: frozenset[str], *, before: bool = False) -> TokenStats:
        """Return the statistics of the present policy, with gradient; `before`: with the columns of `stats`, too."""
        grad = "entropy_grad" in needs
        more = columns_before(needs if before else needs & {"likeliest_entropy"})
        return self._forward(batch, entropy=before or grad or "entropy_now" in needs, entropy_grad=grad, **more)

    def save(self, folder: Path, *others: Any) -> None:
        """Save the model in float32, and others such as its tokenizer, as a folder in the format of transformers.

        Adapters are merged into its weights, so that it can be loaded like any other.
        """
        # save_pretrained recognizes tied weights by their memory, which copies gathered from shards do not share.
        once = dict(self.module.named_parameters())
        tied = dict(self.module.named_parameters(remove_duplicate=False)).keys() - once.keys()
        merged = MergedWeights(self.module)
        whole = {name: ranks.whole_on_first(wide(merged[name])) for name in merged if name not in tied}
        if ranks.own_rank() == 0:
            with files.atomic_folder(folder) as place:
                self.module.save_pretrained(place, state_dict=whole)
                # Again, since the above writes the type of frozen weights, to which a reader would round.
                self.module.config.dtype = torch.float32
                self.module.config.save_pretrained(place)
                for other in others:
                    other.save_pretrained(place)

    def _forward(self, batch: TokenBatch, **which: bool) -> TokenStats:
        self.on_progress()
        with self.autocast():
            return TokenStats(*self.network(batch, **which))


class ValueModel(nn.Module):
    """The base model's body under a scalar head that starts at zero: the value of each token's context."""

    def __init__(self, folder: Path, device: str) -> None:
        super().__init__()
        self.device = device
        self.body = weights.outline(folder, AutoModel)
        self.head = nn.Linear(self.body.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: TokenBatch) -> Tensor:
        once, place_T = batch.without_copies()
        hidden_TD = hidden_states(self.body, once, self.device)
        # In float32 at least: values are rewards of 0 to 1, of which bfloat16 keeps two or three digits.
        with torch.autocast(hidden_TD.device.type, enabled=False):
            return to_all_copies(self.head(wide(hidden_TD)).squeeze(-1), place_T)


class Critic(Learner):
    module: ValueModel

    def __init__(
        self,
        folder: Path,
        train: Train,
        lr: float,
        device: str,
        dtype: torch.dtype,
        hardware: Hardware,
        on_progress: Callable[[], None] = no_progress,
        seed: int = 0,
    ) -> None:
        self.module = ValueModel(folder, device)
        super().__init__(self.module, folder, train, lr, device, dtype, hardware, on_progress, seed)

    def values(self, batch: TokenBatch) -> Tensor:
        """Return the value of each token's context, without gradient, in the order of the batch's tokens."""
        parts = self.micro_batches(batch)
        with torch.no_grad():
            values_T = torch.cat([self.current(part) for part in parts])
        return values_T[order_of(parts)]

    def current(self, batch: TokenBatch) -> Tensor:
        with self.autocast():
            return self.network(batch)
