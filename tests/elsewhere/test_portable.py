"""Tests that a method is the same function of plain tensors as it is of the trainer's batches."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from places import REPOSITORY
from ragged import Case, case
from torch import Tensor

import baselines
import entrobench
from harness import ranks
from harness.elsewhere.portable import PortableMethod, PortableSignal
from harness.methods.composition import Method, Signal

PORTABLE = [name for name in baselines.METHODS if not Method.of(name, baselines.METHODS).base_share]
SPECS = [*PORTABLE, "ppo+clip_b", "grpo(normalise=constant, kl_coef=0.1)+clip_v+entropy_bonus"]
PAGE = REPOSITORY / "docs" / "elsewhere.md"


def padded(c: Case, x_T: Tensor) -> Tensor:
    """Return values of tokens as rows, padded on the right with 7."""
    rows = x_T.split(c.batch.lengths_B.tolist())
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=7.0)


def mask_of(c: Case) -> Tensor:
    return padded(c, torch.ones(len(c.targets_T))) == 1


def given(method: PortableMethod, c: Case) -> dict[str, Any]:
    """Return the columns that a method needs, flat."""
    of_needs: dict[str, dict[str, Any]] = {
        **{name: {name: vars(c.old)[name]} for name in ("entropy", "values", "ref_logp")},
        "sum_p2": {"sum_p2": c.old.sum_p2, "sum_p2_logp": c.old.sum_p2_logp},
        "min_p": {"min_p_logp": c.old.min_p_logp},
        "likeliest_entropy": {"likeliest_entropy": c.old.likeliest_entropy},
        "behaviour_logp": {"behaviour_logp": c.batch.behaviour_logp_T},
    }
    needed = [columns for need, columns in of_needs.items() if need in method.needs]
    return {name: x_T for columns in needed for name, x_T in columns.items()}


def present_of(c: Case) -> dict[str, Tensor]:
    """Return the statistics of the present policy, flat."""
    return {name: c.current().columns[name] for name in ("logp", "entropy", "likeliest_entropy")}


def of_rows(method: PortableMethod, c: Case, row_B: Tensor) -> dict[str, Any]:
    """Return the columns of responses that a method needs, of rows in this order."""
    numbers = c.batch.answers_B[row_B].tolist()
    groups = c.batch.groups_B[row_B].tolist()
    answers = [None if number < 0 else f"{group}/{number}" for number, group in zip(numbers, groups, strict=True)]
    columns = {"answers": answers, "base_right": c.batch.base_right_B[row_B]}
    return {name: x for name, x in columns.items() if name in method.needs}


def a_case(seed: int = 3) -> Case:
    return case(seed, groups=6, size=8)  # the largest group that a method asks for


def signal_of(method: PortableMethod, c: Case, row_B: Tensor, parts: list[list[int]] | None) -> PortableSignal:
    """Returns the signal of the case's rows in another order, padded."""
    columns: dict[str, Any] = {name: padded(c, x_T)[row_B] for name, x_T in given(method, c).items()}
    return method.signal(
        padded(c, c.old.logp)[row_B],
        c.batch.rewards_B[row_B],
        [f"prompt {number}" for number in c.batch.groups_B[row_B].tolist()],
        mask=mask_of(c)[row_B],
        budget=c.batch.budget,
        minibatches=parts,
        **of_rows(method, c, row_B),
        **columns,
    )


def gradient(loss: Tensor, c: Case) -> Tensor:
    (slope_TV,) = torch.autograd.grad(loss, c.logits_TV)
    return slope_TV


@pytest.mark.parametrize("spec", SPECS)
def test_padded_rows_in_any_order_give_the_trainers_gradient(spec: str) -> None:
    """Two mini-batches, each in two parts with a padding of their own."""
    c = a_case()
    method, trained = PortableMethod(spec), Method.of(spec, baselines.table())
    generator = torch.Generator().manual_seed(0)
    # Groups keep their order, by which random draws and ties are numbered; rows within and between them are mixed.
    first = torch.arange(0, 48, 8)
    rest = torch.tensor([row for row in range(48) if row % 8])
    row_B = torch.cat([first, rest[torch.randperm(42, generator=generator)]])
    within = [row_B[(row_B // 8) == group] for group in range(6)]
    sorted_rows = torch.cat(within).tolist()
    where = {row: place for place, row in enumerate(row_B.tolist())}
    halves = [[row for row in sorted_rows if row < 24], [row for row in sorted_rows if row >= 24]]
    parts = [[where[row] for row in half] for half in halves]

    # The trainer's own way: the same rows in whole groups.
    reordered = c.batch.take(sorted_rows)
    index_T = reordered.index_T
    batch = dataclasses.replace(reordered, index_T=torch.arange(len(index_T)), places_B=c.batch.places_B)
    old = c.old.at(index_T)
    minibatches = list(batch.split(2))
    theirs = trained.signal(old, batch, minibatches)
    signal = signal_of(method, c, row_B, parts)
    for part, rows in zip(minibatches, parts, strict=True):
        now = c.current().at(index_T[part.index_T])
        expected = trained.loss(now, trained.for_step(now, theirs, part).at(part.index_T), part)
        rows_B = row_B[torch.tensor(rows)]
        columns = {name: padded(c, x_T)[rows_B] for name, x_T in present_of(c).items()}
        if method.marks_steps:
            signal = method.for_step(signal, rows=rows, **columns)
        losses = []
        for some in (slice(0, 5), slice(5, None)):
            longest = int(c.batch.lengths_B[rows_B[some]].max())
            of_part = {name: x[some, :longest] for name, x in columns.items()}
            mask = mask_of(c)[rows_B[some], :longest]
            losses.append(method.loss(signal, rows=rows[some], mask=mask, **of_part))
        mine = losses[0] + losses[1]
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(gradient(mine, c), gradient(expected, c), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_signal_empty_responses(spec: str) -> None:
    """Expect nothing from responses without tokens, right and wrong ones, and of these alone a loss of 0."""
    method, c = PortableMethod(spec), a_case()
    rows = torch.arange(len(c.batch))
    for empty in ([0, 1, 2, 7, 20, len(rows) - 1], rows.tolist()):
        mask = mask_of(c).clone()
        mask[empty] = False
        columns: dict[str, Any] = {name: padded(c, x_T) for name, x_T in given(method, c).items()}
        present = {name: padded(c, c.old.columns[name]) for name in ("entropy", "likeliest_entropy")}
        columns["entropy"] = present["entropy"]
        signal = method.signal(
            padded(c, c.old.logp),
            c.batch.rewards_B,
            c.batch.groups_B,
            mask=mask,
            **of_rows(method, c, rows),
            **columns,
        )
        logp = padded(c, c.current().logp.detach()).requires_grad_()
        if method.marks_steps:
            signal = method.for_step(signal, logp, **present)
        loss = method.loss(signal, logp, **present)
        (slope,) = torch.autograd.grad(loss, logp)
        assert torch.isfinite(slope).all()
        assert not slope[~mask].any()
        assert not signal.weights[~mask].any()
        assert all(map(math.isfinite, method.metrics(signal).values()))
        state = method.state()
        method.observe(method.metrics(signal))
        if not mask.any():
            assert loss == 0
            assert method.state() == state


@pytest.mark.parametrize("spec", SPECS)
def test_flat_tensors_and_columns_are_the_same_bit_for_bit(spec: str) -> None:
    c = a_case(5)
    method, trained = PortableMethod(spec), Method.of(spec, baselines.table())
    fixed = trained.signal(c.old, c.batch, [c.batch])
    signal = method.signal(
        c.old.logp,
        c.batch.rewards_B,
        c.batch.groups_B,
        lengths=c.batch.lengths_B,
        budget=c.batch.budget,
        **of_rows(method, c, torch.arange(len(c.batch))),
        **given(method, c),
    )
    assert_same(signal.fixed, fixed)
    assert signal.advantages.equal(fixed.advantages_T)
    assert signal.weights.equal(fixed.weights_T)
    if method.marks_steps:
        fixed = trained.for_step(c.current(), fixed, c.batch)
        signal = method.for_step(signal, **present_of(c))
    mine = method.loss(signal, **present_of(c))
    expected = trained.loss(c.current(), fixed, c.batch)
    assert mine.item() == expected.item()
    travelled = method.of_columns(signal.columns(), lengths=c.batch.lengths_B)
    assert_same(travelled.fixed, signal.fixed)
    travelled = dataclasses.replace(travelled, marked=signal.marked)
    assert method.loss(travelled, **present_of(c)).item() == expected.item()


def assert_same(mine: Signal, theirs: Signal) -> None:
    assert mine.advantages_T.equal(theirs.advantages_T)
    assert mine.weights_T.equal(theirs.weights_T)
    assert mine.scale_T.equal(theirs.scale_T)
    assert mine.marks.keys() == theirs.marks.keys()
    for name, marks in theirs.marks.items():
        assert mine.marks[name].keys() == marks.keys()
        for key, x in marks.items():
            assert mine.marks[name][key].equal(x)


def test_columns_of_some_rows_are_their_signal() -> None:
    c, method = a_case(), PortableMethod("clip_cov+clip_b")
    signal = signal_of(method, c, torch.arange(48), None)
    rows = [20, 3, 7]
    columns = {name: x[rows] if x.ndim else x for name, x in signal.columns().items()}
    mask = mask_of(c)[rows]
    part = method.of_columns(columns, mask=mask)
    with pytest.raises(entrobench.UserError, match=r"^the columns of the signal lack old/logp, seed; give all"):
        method.of_columns({name: x for name, x in columns.items() if name not in ("old/logp", "seed")}, mask=mask)
    now = padded(c, c.current().logp)[rows]
    assert method.loss(part, now).item() == pytest.approx(method.loss(signal, now, rows).item(), rel=1e-12)


def test_needs_of_portable_methods() -> None:
    assert PortableMethod("grpo").needs == {}
    assert list(PortableMethod("clip_b").needs) == ["entropy"]
    assert list(PortableMethod("clip_v").needs) == ["entropy", "sum_p2"]
    assert list(PortableMethod("ppo").needs) == ["values"]
    assert list(PortableMethod("grpo(kl_coef=0.1)+entropy_bonus").needs) == ["entropy_grad", "ref_logp"]
    assert list(PortableMethod("bapo").needs) == ["minibatch"]
    assert PortableMethod("tre").needs == {
        "likeliest_entropy": "the entropy among the two likeliest tokens: likeliest_entropy= of signal, "
        "likeliest_entropy= of loss and for_step"
    }
    assert "entropy" in PortableMethod("adaptive_entropy").needs  # whose memory follows it
    for spec in PORTABLE:
        for meaning in PortableMethod(spec).needs.values():
            assert ": " in meaning


def test_portable_method_state(monkeypatch: pytest.MonkeyPatch) -> None:
    c, method = a_case(), PortableMethod("clip_servo(target=0.1)")
    before = method.state()
    signal = signal_of(method, c, torch.arange(48), None)
    method.observe(method.metrics(signal))
    assert method.state() != before
    with pytest.raises(entrobench.UserError, match="observes 'entropy/mean', which is not among the metrics that it g"):
        method.observe({"responses/length": 7.0})

    def mistaken(self: Any, metrics: Any) -> None:
        raise KeyError(metrics["entropy/mean"])

    monkeypatch.setattr(type(method.composed.controls["clip_servo"]), "observe", mistaken)
    with pytest.raises(KeyError, match=r"^0\.5$"):
        method.observe({"entropy/mean": 0.5})
    other = PortableMethod("clip_servo(target=0.1)")
    other.load_state(method.state())
    assert other.state() == method.state()
    with pytest.raises(entrobench.UserError, match=r"state of the controls \['clip_servo'\] does not fit method grpo"):
        PortableMethod("grpo").load_state(method.state())


def test_metrics_are_those_of_the_trainer() -> None:
    c, method = a_case(), PortableMethod("clip_b(share=0.1)")
    record = method.metrics(signal_of(method, c, torch.arange(48), None))
    assert record["entropy/mean"] == pytest.approx(c.old.entropy.mean().item())  # type: ignore[union-attr]
    assert 0 < record["weights/clip_b/dropped"] < 0.2


def test_numbers_of_other_frameworks_will_do() -> None:
    c, method = a_case(), PortableMethod("clip_b")
    expected = signal_of(method, c, torch.arange(48), None)
    numbers: dict[str, Any] = {"entropy": padded(c, c.old.entropy).numpy(), "mask": mask_of(c).int().numpy()}  # type: ignore[arg-type]
    signal = method.signal(
        padded(c, c.old.logp).numpy(),
        c.batch.rewards_B.numpy(),
        c.batch.groups_B.numpy(),
        budget=c.batch.budget,
        **numbers,
    )
    assert signal.weights.equal(expected.weights)
    assert not signal.advantages[~mask_of(c)].any()


def test_halves_give_the_numbers_of_float64() -> None:
    """Denominators, advantages and ratios of halves would be wrong by a percent, and infinite in float16."""
    c, rows = a_case(), torch.arange(48)
    method, rewards_B = PortableMethod("grpo+clip_b"), c.batch.rewards_B + 0.01 * rows
    columns = {"logp": padded(c, c.old.logp), "entropy": padded(c, c.old.entropy), "now": padded(c, c.current().logp)}  # type: ignore[arg-type]
    columns["now"][0, 0] = columns["logp"][0, 0] + 20
    for half in (torch.bfloat16, torch.float16):
        results = []
        for dtype in (half, torch.float64):
            logp, entropy, now = (x.detach().to(half).to(dtype) for x in columns.values())
            rewards = rewards_B.to(half).to(dtype)
            signal = method.signal(logp, rewards, c.batch.groups_B, mask=mask_of(c), entropy=entropy)
            loss = method.loss(signal, now.requires_grad_())
            results.append([loss, torch.autograd.grad(loss, now)[0], signal.advantages])
        for mine, expected in zip(*results, strict=True):
            tolerance = 1e-5 if mine.dtype == torch.float32 else torch.finfo(half).eps  # a gradient is a half again
            torch.testing.assert_close(mine.double(), expected, rtol=tolerance, atol=1e-6)


def test_signal_has_no_gradient_of_rewards() -> None:
    rewards = torch.tensor(GOOD["rewards"], requires_grad=True)
    signal = entrobench.Method("grpo").signal(LOGP, **{**GOOD, "rewards": rewards})
    assert not signal.advantages.requires_grad


def test_tensors_name_groups_and_answers() -> None:
    method = entrobench.Method("outcome_exploration")
    names = {"groups": [7, 7, 8, 8], "answers": [5, 5, 5, 6]}
    expected = method.signal(LOGP, **{**GOOD, **names}).advantages
    assert expected[0, 0] < expected[3, 0]
    as_tensors = {name: torch.tensor(values) for name, values in names.items()}
    for given in (as_tensors, {name: list(x) for name, x in as_tensors.items()}):
        assert method.signal(LOGP, **{**GOOD, **given}).advantages.equal(expected)


LOGP = -torch.rand(4, 3)
GOOD: dict[str, Any] = {"rewards": [1.0, 0, 0, 1], "groups": [0, 0, 1, 1], "mask": torch.ones(4, 3)}


@pytest.mark.parametrize(
    ("spec", "changes", "sentence"),
    [
        ("ppo", {}, "method ppo needs a critic's values; give values"),
        ("clip_v", {}, "method clip_v needs the sums over squared probabilities; give sum_p2 and sum_p2_logp"),
        ("a2po", {}, "method a2po reads how often the model before training was right; give base_right"),
        (
            "a2po",
            {"ref_logp": LOGP, "base_right": [5, 5, 0, 0]},
            "base_right holds numbers that are no shares; allowed: above 0 to 1",
        ),
        ("clip_b", {}, "ClipB reads entropy of the policy before the update, and the batch lacks it; give entropy"),
        ("grpo", {"rewards": [1, 0, float("nan"), 1]}, "the reward of response 2 is nan; allowed: finite numbers"),
        ("grpo", {"rewards": [1, 0]}, "rewards has the shape [2]; by mask it must be [4]"),
        ("rloo", {"groups": [0, 1, 2, 3]}, "groups have 1 response(s); method rloo learns from groups of 2 and more"),
        ("grpo", {"groups": [0, 0, 0, 1]}, "groups have 1 to 3 responses; all must be of one size"),
        ("grpo", {"groups": [0, 0]}, "groups has the shape [2]; by mask it must be [4]"),
        ("grpo", {"mask": torch.ones(4, 2)}, "logp has the shape [4, 3]; by mask it must be [4, 2]"),
        ("grpo", {"mask": torch.ones(4)}, "mask has the shape [4]; it must be [B, T]"),
        ("grpo", {"mask": None}, "give either mask, for padded tensors [B, T], or lengths, for flat ones [T]"),
        ("grpo", {"mask": None, "lengths": [3, 3]}, "logp has the shape [4, 3]; by lengths it must be [6]"),
        (
            "grpo",
            {"entropy": torch.full((4, 3), float("nan"))},
            "entropy holds NaN or infinity at a response token; allowed: finite numbers",
        ),
        ("grpo", {"entropy": torch.ones(4)}, "entropy has the shape [4]; by mask it must be [4, 3]"),
        ("grpo", {"minibatches": [[0, 1], [2]]}, "row 3 is in 0 of the minibatches; each of 4 rows must be in one"),
        (
            "grpo",
            {"minibatches": [[0, 1], [1, 2, 3]]},
            "row 1 is in 2 of the minibatches; each of 4 rows must be in one",
        ),
        ("grpo", {"minibatches": [0, 1, 2, 3]}, "rows is 0; it must be a list of the numbers of rows"),
        (
            "grpo",
            {"rewards": [1, None, 0, 1]},
            "rewards is not a tensor, nor numbers of one shape: Could not infer dtype of NoneType",
        ),
        (
            "grpo",
            {"groups": [[1], [1], [2], [2]]},
            "groups must have a number, a text or a tuple for each response (unhashable type: 'list')",
        ),
        (
            "grpo",
            {"mask": None, "lengths": [[3], [3]]},
            "lengths is [[3], [3]]; allowed: a number of tokens, 0 and more, for each response",
        ),
        ("grpo", {"budget": 2}, "budget is 2, and a response has 3 tokens; allowed: 3 and more"),
        ("grpo", {"seed": 2**63}, f"seed is {2**63}; allowed: {-(2**63) + 1} to {2**63 - 1}"),
        ("grpo", {"progress": 7}, "progress is 7; allowed: 0 to 1, the share of the run's steps that are done"),
    ],
)
def test_portable_method_refuses_other_batches(spec: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(entrobench.UserError) as error:
        entrobench.Method(spec).signal(LOGP, **{**GOOD, **changes})
    assert str(error.value) == sentence


def test_portable_method_mistakes() -> None:
    with pytest.raises(entrobench.UserError, match=r"^a method is a text such as 'grpo\+clip_b', and not null$"):
        entrobench.Method(None)  # type: ignore[arg-type]
    with pytest.raises(entrobench.UserError, match=r"^method dph_rl trains on right responses of the model before"):
        entrobench.Method("dph_rl")
    with pytest.raises(entrobench.UserError, match=r"^plugin no_such_plugin cannot be imported"):
        entrobench.Method("grpo", plugins="no_such_plugin")
    with pytest.raises(entrobench.UserError, match=r"unknown method 'clip_a'; .*did you mean 'clip_v'"):
        entrobench.Method("grpo+clip_a")
    with pytest.raises(entrobench.UserError, match=r"unknown objective or control 'clip_c'; .*did you mean 'clip_cov'"):
        entrobench.Method("grpo+clip_v", options={"clip_c": {}})
    method = entrobench.Method("bapo")
    signal = method.signal(LOGP, **GOOD, minibatches=[[0, 2], [1, 3]])
    for stepped in (signal, method.for_step(signal, LOGP[:2], [2, 0])):
        for verb in (method.loss, method.touched):
            with pytest.raises(entrobench.UserError, match=r"looks at each whole mini-batch .* call for_step first"):
                verb(stepped, LOGP[:2], [0, 1])
    for rows in ([0], [0, 1], None):
        with pytest.raises(entrobench.UserError, match=r"^for_step got \d row\(s\); allowed: all rows of one of the"):
            method.for_step(signal, LOGP if rows is None else LOGP[: len(rows)], rows)
    for rows, sentence in (([0, 4], "rows has 4; allowed: 0 to 3"), ([0, -1], "rows has -1; allowed: 0 to 3")):
        for step in (method.for_step, method.loss):
            with pytest.raises(entrobench.UserError, match=f"^{sentence}, the rows of the signal's batch$"):
                step(signal, LOGP[:2], rows)
    with pytest.raises(entrobench.UserError, match=r"^rows is \[True, False, False, True\]; it must be a list of the"):
        method.loss(signal, LOGP[:2], [True, False, False, True])
    with pytest.raises(entrobench.UserError, match="the rollout batch has no responses; allowed"):
        method.signal(LOGP[:0], [], [], mask=GOOD["mask"][:0])
    bonus = entrobench.Method("entropy_bonus")
    with pytest.raises(entrobench.UserError, match="needs the present entropy with gradient; give entropy"):
        bonus.loss(bonus.signal(LOGP, **GOOD), LOGP)
    plain = entrobench.Method("grpo")
    signal = plain.signal(LOGP, **GOOD)
    with pytest.raises(entrobench.UserError, match="mask has other numbers of response tokens"):
        plain.loss(signal, LOGP, mask=torch.eye(4, 3))
    with pytest.raises(entrobench.UserError, match="give entropy to signal"):
        plain.metrics(signal)
    with pytest.raises(entrobench.UserError, match="method grpo has no critic"):
        plain.value_loss(signal, LOGP)


def test_portable_method_waits_for_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert ranks.several()
    c, method = a_case(), PortableMethod("clip_b+top_entropy")
    method.loss(signal_of(method, c, torch.arange(48), None), padded(c, c.current().logp))
    assert ranks.several()


def test_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks[0].splitlines()) <= 12
    exec("\n".join(blocks), {})
    assert capsys.readouterr().out
