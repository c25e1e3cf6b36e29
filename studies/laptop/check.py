"""What the page on a real language model says besides its tables: of tokens, and of training for longer."""

from __future__ import annotations

import pandas

from harness.table.statistics import Estimate, mean_interval
from studies.checks import Page
from studies.laptop import picture, tokens

PAGE = Page("docs/evidence/laptop.md")


def shown(part: Estimate) -> str:
    return f"{part.mean:+.3f} [{part.low:+.3f}, {part.high:+.3f}]"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def check_the_parts_of_grpo_s_fall() -> None:
    own, clip_b, drawn = (tokens.mean_of(name, "without") for name in (tokens.NOTHING, "clip_b", tokens.NEGATIVE))
    PAGE.states(
        f"Without Clip_B's {percent(tokens.mean_of('clip_b', 'share'), 1)} of the tokens",
        f"falls {percent(clip_b / own)} as far as with them",
        f"of negative advantage, {percent(drawn / own)} as far",
        f"{percent(tokens.mean_of('clip_b', 'there') / own)} of it is at Clip_B's tokens",
    )
    Page("README.md").states(f"lower the entropy by {percent(1 - clip_b / own)} less")


def check_the_masks_touch_the_tokens_that_the_change_comes_from() -> None:
    for clip, words in {"clip_b": "Clip_B", "clip_v": "Clip_V"}.items():
        part = tokens.part_of_tokens(clip, tokens.NEGATIVE)
        assert part.low is not None
        assert part.low > 0
        PAGE.states(f"{shown(part)} ({words})")


def passed_after(matrix: str, step: int) -> pandas.Series:
    """Return the Pass@8 of the evaluation after a step, by method and seed."""
    evaluated = pandas.read_csv(picture.evaluations_of(matrix))
    chosen = evaluated[(evaluated["metric"] == picture.pass_of(matrix)) & (evaluated["step"] == step)]
    return chosen.set_index(["method", "seed"])["value"].sort_index()


def check_what_longer_training_changes() -> None:
    pass_12, pass_36 = (passed_after(picture.LONGER, step) for step in (12, 36))
    grpo = mean_interval((pass_36["grpo"] - pass_12["grpo"]).to_numpy())
    gain_12, gain_36 = (passed["clip_b"] - passed["grpo"] for passed in (pass_12, pass_36))
    gain = mean_interval((gain_36 - gain_12).to_numpy())
    PAGE.states(f"changes by {shown(grpo)} from step 12 to step 36", f"it changes by {shown(gain)}")


def check_grpo_loses_nothing_in_small_batches() -> None:
    before, after = (passed_after(picture.SMALL, step)["grpo"] for step in (0, 24))
    change = mean_interval((after - before).to_numpy())
    PAGE.states(f"GRPO's Pass@8 changes by {shown(change)}")


def check_what_a_high_rate_loses() -> None:
    before, after = (passed_after(picture.HIGH, step) for step in (0, 24))
    lower = after["grpo(lr=3.0e-5)"]
    grpo, clip_b, clip_v, slow, behind, behind_v = (
        shown(mean_interval(difference.to_numpy()))
        for difference in (
            after["grpo"] - before["grpo"],
            after["clip_b"] - before["grpo"],
            after["clip_v"] - before["grpo"],
            lower - before["grpo"],
            after["clip_b"] - lower,
            after["clip_v"] - lower,
        )
    )
    PAGE.states(
        f"GRPO's Pass@8 changes by {grpo} from before training, Clip_B's by {clip_b} and Clip_V's by {clip_v}",
        f"At 3e-5, GRPO's changes by {slow}. Clip_B's at 1e-4 differs from it by {behind}, and Clip_V's by {behind_v}",
    )


def changes_of(matrix: str) -> dict[str, Estimate]:
    """Return by how much each method's Pass@8 changes from before training."""
    before, after = (passed_after(matrix, step) for step in (0, 24))
    return {name: mean_interval((after[name] - before["grpo"]).to_numpy()) for name in after.index.unique("method")}


def check_what_other_methods_lose() -> None:
    after = passed_after(picture.FOUR, 24)
    assert ((after["entropy_bonus"] == 0).sum(), (after["ce_gppo"] == 0).sum()) == (6, 4)
    changes = changes_of(picture.FOUR)
    PAGE.states(f"their Pass@8 changes by {shown(changes.pop('entropy_bonus'))} and {shown(changes.pop('ce_gppo'))}")
    new, controls = changes_of(picture.NEW), changes_of(picture.CONTROLS)
    PAGE.states(f"BBG's changes by {shown(new.pop('bbg'))} from before")
    PAGE.states(f"theirs change by {shown(controls['clip_b'])} and {shown(controls['clip_v'])}")
    for method, change in (*changes.items(), *new.items(), *controls.items()):
        assert change.high is not None, method
        assert change.high > 0, f"it is open whether {method} loses"
