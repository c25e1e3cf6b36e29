"""The trainers of other projects that can run our methods, and the methods that each of them refuses."""

from __future__ import annotations

from collections.abc import Callable

from harness.composition import Method


def lr_refusal(method: Method) -> str | None:
    """Return why a trainer with an optimizer of its own cannot run a method, or None where it can."""
    if method.objective.lr is None:
        return None
    return (
        f"sets the learning rate {method.objective.lr:g}, which the trainer's own optimizer would ignore; leave lr "
        "out, and set the rate there (TRL: GRPOConfig.learning_rate, verl: actor_rollout_ref.actor.optim.lr)"
    )


def trl_refusal(method: Method) -> str | None:
    """Return why TRL's GRPOTrainer cannot run a method, or None where it can."""
    if refusal := lr_refusal(method):
        return refusal
    if "values" in method.needs:
        return "needs a critic, which GRPOTrainer lacks"
    if method.reads_answers:
        return "compares the answers of a group in their normal form, which GRPOTrainer does not know"
    if method.reads_sampler:
        return "reads the policy that sampled, which GRPOTrainer keeps only with some engines"
    return None


def verl_refusal(method: Method) -> str | None:
    """Return why verl's PPO trainer cannot run a method, or None where it can."""
    if refusal := lr_refusal(method):
        return refusal
    if "sum_p2" in method.needs:
        return "needs the sums over squared probabilities, which verl does not compute"
    if "min_p" in method.needs:
        return "needs log p among the likely tokens, which verl does not compute"
    if method.reads_answers:
        return "compares the answers of a group in their normal form, which verl does not know"
    if method.marks_steps:
        return "looks at each whole mini-batch before its update, for which verl has no step"
    return None


REFUSALS: dict[str, Callable[[Method], str | None]] = {"trl": trl_refusal, "verl": verl_refusal}
