"""The model that is trained, its critic, and their optimisers: token batches in, TokenStats out, losses back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache, PreTrainedConfig, PreTrainedModel

from harness.base import files
from harness.base.errors import CellFailure, UserError
from harness.batch import TokenBatch, TokenStats
from harness.cells.heartbeat import no_progress
from harness.config import Hardware, Train
from harness.dist import ranks
from harness.tokens.head import Head
from harness.tokens.statistics import token_stats
from harness.train import invariants, packing, weights


class Learner:
    """A model with its optimiser. `backward` adds losses up; `step` applies them.

    `module` is the model. `network` is the model together with what turns its hidden states into numbers: one forward
    pass of it is what several ranks gather their weights for.
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
    ) -> None:
        self.on_progress = on_progress
        self.network = network.train()
        self.train, self.lr, self.device, self.dtype = train, lr, device, dtype
        self.micro, self.recompute = hardware.micro_tokens, hardware.recompute
        model = next(part for part in network.modules() if isinstance(part, PreTrainedModel))
        self.packing = packing.prepared(model)
        if self.recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if ranks.several():
            ranks.shard(network, layers_of(model), device)
        if model.device.type == "meta":
            weights.settle(network, model, folder, device)
        else:
            network.to(device)
        self.weights = dict(self.module.named_parameters())  # a tied head once
        # What the optimiser updates: the weights, or copies of them beside which its moments lie.
        self.masters = {name: ranks.on_cpu(x) for name, x in self.weights.items()} if hardware.offload else self.weights
        self.optimizer = torch.optim.AdamW(
            self.masters.values(),
            lr=lr,
            betas=(train.betas[0], train.betas[1]),
            weight_decay=train.weight_decay,
            fused=True,
        )

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        # The cache holds the casts of all weights until a pass ends, as much memory as a second model. So it
        # is off wherever memory is saved in other ways.
        return torch.autocast(self.device, self.dtype, cache_enabled=not self.recompute and not ranks.several())

    def micro_batches(self, batch: TokenBatch) -> list[TokenBatch]:
        """Splits a batch into as many micro-batches on every rank; ranks that have fewer add idle ones.

        Each pass gathers weights from all ranks, so all must make the same number of passes.
        """
        parts = list(batch.micro_batches(self.micro, packing=self.packing))
        return parts + [batch.idle()] * (ranks.most(len(parts)) - len(parts))

    def flat(self, batch: TokenBatch, of_tokens: Callable[[TokenBatch], Tensor]) -> Tensor:
        """Computes a function of each token, without gradient, micro-batch by micro-batch."""
        result = torch.empty(len(batch.index_T), device=self.device)
        for part in self.micro_batches(batch):
            result[part.index_T] = of_tokens(part)
        return result

    def backward(self, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            raise CellFailure(f"the loss of the {type(self).__name__.lower()} is {loss.item()}")
        self.on_progress()
        loss.backward()

    def step(self, step: int) -> float:
        """Applies what was added up, at the learning rate of a step; returns the norm of the gradient."""
        return self.apply(self.lr * min(1.0, step / max(self.train.warmup_steps, 1)))

    def apply(self, lr: float) -> float:
        """Takes one optimiser step on all that was added up; returns the norm of the gradient before clipping."""
        norm = ranks.whole(clip_grad_norm_(self.module.parameters(), self.train.grad_clip)).item()
        if not torch.isfinite(torch.tensor(norm)):
            raise CellFailure(f"the gradient of the {type(self).__name__.lower()} is not finite (its norm is {norm})")
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.masters is not self.weights:
            for name, weight in self.weights.items():
                self.masters[name].grad = None if weight.grad is None else ranks.on_cpu(weight.grad)
        before = invariants.sample(self.masters)
        self.optimizer.step()
        invariants.check_changed(before, self.masters, norm, lr)
        self.optimizer.zero_grad(set_to_none=True)
        self.network.zero_grad(set_to_none=True)
        self.publish()
        return norm

    @torch.no_grad()
    def publish(self) -> None:
        """Copies to the weights what was done to their masters."""
        if self.masters is not self.weights:
            for name, weight in self.weights.items():
                ranks.here(weight).copy_(ranks.here(self.masters[name]))

    def state(self) -> dict[str, Tensor]:
        """Returns weights and moments, themselves and no copies; of several ranks each has its shards."""
        moments = {
            f"{kind}.{name}": x
            for name, master in self.masters.items()
            for kind, x in self.optimizer.state.get(master, {}).items()
        }
        return {f"weight.{name}": master.detach() for name, master in self.masters.items()} | moments

    def load_state(self, names: Collection[str], fill: Callable[[dict[str, Tensor]], None]) -> None:
        """Takes over a state of these names, which `fill` writes into the tensors that it is given."""
        for name, master in self.masters.items():
            empty = {"step": torch.empty((), device=master.device)}
            empty |= {kind: torch.empty_like(master) for kind in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[master] = {k: x for k, x in empty.items() if f"{k}.{name}" in names}
        fill(self.state())
        self.publish()


def padded(rows: Sequence[Tensor], device: str) -> Tensor:
    """Pads on the right, where no mask is needed: under causal attention no real token sees the padding."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True).to(device, non_blocking=True)


def hidden_states(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Returns the hidden state from which each response token is predicted, flat."""
    if batch.packed:
        return packing.hidden_states(backbone, batch, device)
    # Sharing prompts takes two passes, a cache and a mask of ours. Ranks could not do it, since all must make the same
    # passes; nor a model whose layers are recomputed, which keeps no cache; nor one that reads only a window of its
    # context, which has a mask of its own.
    alone = not ranks.several() and not backbone.is_gradient_checkpointing and not windowed(backbone.config)
    if batch.prompts_weigh and alone:
        return hidden_after_shared_prompts(backbone, batch, device)
    hidden_BLD = backbone(input_ids=padded(batch.sequences, device), use_cache=False).last_hidden_state
    position_T = batch.prompt_lengths_B[batch.sequence_T] + batch.within_T - 1
    return hidden_BLD[batch.sequence_T, position_T]


def windowed(config: PreTrainedConfig) -> bool:
    return getattr(config, "sliding_window", None) is not None


def hidden_after_shared_prompts(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Returns the same as hidden_states, but runs each prompt once for all responses of its group here.

    Gradients flow through the cache of the prompts.
    """
    _, prompt_B, sizes_P = batch.groups_B.unique_consecutive(return_inverse=True, return_counts=True)
    first_P = sizes_P.cumsum(0) - sizes_P
    lengths_B, lengths = batch.prompt_lengths_B, batch.prompt_lengths_B.tolist()
    prompts = padded([batch.sequences[row][: lengths[row]] for row in first_P.tolist()], device)
    tails = padded([s[n:-1] for s, n in zip(batch.sequences, lengths, strict=True)], device)

    cache = DynamicCache()
    after_prompt = backbone(input_ids=prompts, past_key_values=cache, use_cache=True).last_hidden_state
    last_B1D = after_prompt[prompt_B, lengths_B - 1][:, None]
    if tails.shape[1] == 0:
        return last_B1D[batch.sequence_T, batch.within_T]
    cache.batch_select_indices(prompt_B)
    slots, places = torch.arange(prompts.shape[1], device=device), torch.arange(tails.shape[1], device=device)
    own_BRL = (slots < lengths_B[:, None])[:, None].expand(-1, len(places), -1)
    earlier_BRR = (places <= places[:, None]).expand(len(batch), -1, -1)
    hidden_BRD = backbone(
        input_ids=tails,
        past_key_values=cache,
        attention_mask=torch.cat([own_BRL, earlier_BRR], dim=2)[:, None],
        position_ids=lengths_B[:, None] + places,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([last_B1D, hidden_BRD], dim=1)[batch.sequence_T, batch.within_T]


def targets(batch: TokenBatch, device: str) -> Tensor:
    lengths = batch.prompt_lengths_B.tolist()
    return torch.cat([s[n:] for s, n in zip(batch.sequences, lengths, strict=True)]).to(device, non_blocking=True)


def head_of(model: PreTrainedModel) -> Head:
    linear = model.get_output_embeddings()
    return Head(linear.weight, linear.bias, getattr(model.config, "final_logit_softcapping", None))


def check_vocabulary(tokenizer: Any, model: PreTrainedModel, folder: Path) -> None:
    highest, rows = max(tokenizer.get_vocab().values()), len(head_of(model).weight_VD)
    if highest >= rows:
        raise UserError(
            f"the tokenizer of model {folder} has tokens up to {highest}, but its head gives only {rows} logits; they "
            "must be of one model"
        )


def context_of(config: PreTrainedConfig) -> int | None:
    """Returns how many tokens of prompt and response together the model was made for."""
    return getattr(config, "max_position_embeddings", None)


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the parts that repeat, by the names that transformers gives them for this purpose."""
    return [module for module in model.modules() if type(module).__name__ in (model._no_split_modules or ())]


class Scorer(nn.Module):
    """A language model whose output is the statistics of response tokens."""

    def __init__(self, model: PreTrainedModel, temperature: float, device: str) -> None:
        super().__init__()
        self.model, self.temperature, self.device = model, temperature, device

    def forward(
        self, batch: TokenBatch, *, entropy: bool, entropy_grad: bool = False, sum_p2: bool = False
    ) -> tuple[Tensor | None, ...]:
        """Returns the columns of TokenStats as a tuple, in which FSDP looks for tensors with a gradient."""
        hidden_TD = hidden_states(self.model.base_model, batch, self.device)
        head, wanted = head_of(self.model), targets(batch, self.device)
        found = token_stats(
            hidden_TD, head, wanted, self.temperature, entropy=entropy, entropy_grad=entropy_grad, sum_p2=sum_p2
        )
        # Copies: what is given back for backward hooks must not be views.
        return tuple(None if column_T is None else column_T.clone() for column_T in vars(found).values())


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
    ) -> None:
        model = weights.outline(folder, AutoModelForCausalLM)
        self.module, self.temperature = weights.checked(model, folder), temperature
        scorer = Scorer(self.module, temperature, device)
        super().__init__(scorer, folder, train, train.lr, device, dtype, hardware, on_progress)

    @property
    def vocabulary(self) -> int:
        """Returns how many tokens it gives a probability."""
        return len(head_of(self.module).weight_VD)

    def stats(self, batch: TokenBatch, needs: frozenset[str] = frozenset(), *, entropy: bool = True) -> TokenStats:
        """Returns the statistics of the present policy, without gradient."""
        parts = self.micro_batches(batch)
        with torch.no_grad():
            found = [self._forward(part, entropy=entropy, sum_p2="sum_p2" in needs) for part in parts]
        return TokenStats.cat(found).at(torch.cat([part.index_T for part in parts]).argsort())

    def current(self, batch: TokenBatch, needs: frozenset[str]) -> TokenStats:
        """Returns the statistics of the present policy, with gradient."""
        grad = "entropy_grad" in needs
        return self._forward(batch, entropy=grad or "entropy_now" in needs, entropy_grad=grad)

    def save(self, folder: Path, *others: Any) -> None:
        """Saves the model, and others such as its tokenizer, as a folder in the format of transformers."""
        tied = dict(self.module.named_parameters(remove_duplicate=False)).keys() - self.weights.keys()
        held = ranks.held(self.module)
        whole = ranks.whole_on_first({name: x for name, x in held.items() if name not in tied})
        if ranks.number() == 0:
            with files.atomic_folder(folder) as place:
                self.module.save_pretrained(place, state_dict=whole)
                for each in others:
                    each.save_pretrained(place)

    def _forward(self, batch: TokenBatch, **which: bool) -> TokenStats:
        self.on_progress()
        with self.autocast():
            return TokenStats(*self.network(batch, **which))


class ValueModel(nn.Module):
    """The base model's body under a scalar head that starts at zero; it gives the value of each token's context."""

    def __init__(self, folder: Path, device: str) -> None:
        super().__init__()
        self.device = device
        self.body = weights.outline(folder, AutoModel)
        self.head = nn.Linear(self.body.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: TokenBatch) -> Tensor:
        hidden_TD = hidden_states(self.body, batch, self.device)
        with torch.autocast(hidden_TD.device.type, enabled=False):
            return self.head(hidden_TD.float()).squeeze(-1).clone()


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
    ) -> None:
        self.module = ValueModel(folder, device)
        super().__init__(self.module, folder, train, lr, device, dtype, hardware, on_progress)

    def values(self, batch: TokenBatch) -> Tensor:
        with torch.no_grad():
            return self.flat(batch, self.current)

    def current(self, batch: TokenBatch) -> Tensor:
        with self.autocast():
            return self.network(batch)
