"""The causes that diagnose knows: one small function each over curves, and the table RULES.

A function gets the curves that its rule needs, in the same order, and returns the first step at which its cause holds,
or None. RULES are in the order of likelihood: a cause comes before others that it may bring about. A broken gradient
may truncate responses, but truncated responses do not break a gradient.

Bounds come from three sources, which their comments name: the cells of the demo and the broken ones (docs/diagnose.md),
a bound that this harness or a trainer uses elsewhere, or a convention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median

from harness.cells import log
from harness.diagnose.course import ANY, FALLING, HEALTHY, RISING, TOO_SHORT, UNTRAINED, EntropyCourse, course_of
from harness.diagnose.signals import OURS, TRAINERS, LoggedRun, MetricCurve, signal_keys

# The 99th percentile that the embedded engine has in bfloat16 (docs/rollouts.md): a mean beyond it is not rounding.
MISMATCH = 0.03
GRADIENT_SPIKE = 10.0  # times the median of the run and times the start; a convention
STEP_KL = 0.1  # nats per token; a convention, twice to ten times the bounds at which PPO is usually stopped early
REFERENCE_KL = 1.0  # nats per token: a sampled token is e times less likely to the reference; a convention
CLIPPED = 0.03  # share of tokens: no step of the 21 cells of the demo of 100 steps has as much
RISE = 0.1  # share of responses
UNREADABLE = 0.5  # share of responses: fewer readable answers than unreadable ones
SATURATED = 0.9  # share of right answers: in a group of 16, about one wrong answer or none
WITHOUT_SIGNAL = 0.5  # share of groups: the batch has half of its size
HALVED = 0.5  # times the start
IMBALANCE = 1.5  # times the other sign; objectives that center advantages within groups have 1
CONSTANT = 1e-9  # rounding of a mean of equal rewards

Find = Callable[..., int | None]


@dataclass(frozen=True)
class Rule:
    """A cause: the curves that show it, the verdicts that it explains, and its remedy."""

    name: str
    sentence: str
    needs: tuple[str, ...]  # names of signals; the arguments of `find`
    find: Find
    remedy: str
    verdicts: frozenset[str] = ANY
    smoothed: bool = True  # whether it looks at the smoothed curve, whose values are then shown


@dataclass(frozen=True)
class FoundCause:
    """A rule that holds in a run, the first step at which it holds, and the curves that show it."""

    rule: Rule
    since: int
    curves: tuple[MetricCurve, ...]


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on a run, with its causes and effects, and the rules whose curves are missing."""

    run: LoggedRun
    course: EntropyCourse
    causes: list[FoundCause] = field(default_factory=list)  # they hold before the entropy was halfway
    effects: list[FoundCause] = field(default_factory=list)  # they hold only after that
    unchecked: list[Rule] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.course.verdict


# Functions of the rules


def lost_numbers(curve: MetricCurve) -> int | None:
    return curve.lost


def never_rewarded(reward: MetricCurve) -> int | None:
    constant = max(reward.values) - min(reward.values) < CONSTANT
    return reward.steps[0] if constant else None


def reaches(bound: float) -> Find:
    """Return the function of a curve that is at a bound or above it."""
    return lambda curve: curve.since(lambda value: value >= bound)


def has_bonus(coefficient: MetricCurve) -> int | None:
    """Any bonus counts: the entropy of this run exploded while the bonus was paid."""
    return coefficient.since(lambda value: value > 0)


def gradient_spikes(gradient: MetricCurve) -> int | None:
    """Spikes are single steps, which the smoothed curve would hide."""
    # Also of the start: once all rewards are equal the gradient is 0, and so would be the median of many broken runs.
    bound = GRADIENT_SPIKE * max(median(gradient.values), gradient.start)
    return next((step for step, norm in zip(gradient.steps, gradient.values, strict=True) if norm > bound), None)


def large_step(step_kl: MetricCurve) -> int | None:
    return step_kl.since(lambda kl: abs(kl) >= STEP_KL)  # this estimate of a KL may be negative


def clip_never_active(clipped: MetricCurve) -> int | None:
    return None if any(clipped.values) else clipped.steps[0]


def outweighs(larger: MetricCurve, smaller: MetricCurve) -> int | None:
    """Return the first step if one mass is larger than the other over the whole run."""
    if fmean(larger.values) > IMBALANCE * fmean(smaller.values):
        return larger.steps[0]
    return None


def share_rises(share: MetricCurve) -> int | None:
    return share.since(lambda value: value >= share.start + RISE)


def halved(curve: MetricCurve) -> int | None:
    return curve.since(lambda value: value <= HALVED * curve.start)


def pushes_more(push: MetricCurve, other_push: MetricCurve) -> int | None:
    """Return the first step if one predicted change of the entropy is the more negative one over the run."""
    total, other_total = sum(push.values), sum(other_push.values)
    return push.steps[0] if total < min(other_total, 0.0) else None


SLOWER = "lower the learning rate, warm it up, or take fewer updates from each rollout batch"

RULES = (
    Rule(
        "entropy_not_finite",
        "the entropy stops being a finite number",
        ("entropy",),
        lost_numbers,
        f"look for an overflow at this step, and {SLOWER}",
    ),
    Rule(
        "gradient_not_finite",
        "the gradient stops being a finite number",
        ("gradient",),
        lost_numbers,
        f"look for an overflow at this step, and {SLOWER}",
    ),
    Rule(
        "constant_reward",
        "the reward never varies, so no response is better than another",
        ("reward",),
        never_rewarded,
        log.CONSTANT,
    ),
    Rule(
        "engine_mismatch",
        "the engine that samples and the trainer disagree on log-probabilities",
        ("mismatch",),
        reaches(MISMATCH),
        "compare temperatures, weights and number types of both (docs/rollouts.md); sample from newer weights, or "
        "correct with importance ratios",
    ),
    Rule(
        "strong_bonus",
        "an entropy bonus is paid while the entropy explodes",
        ("bonus",),
        has_bonus,
        "lower its coefficient, or use a bonus that switches off above a target entropy",
        RISING,
    ),
    Rule(
        "negative_mass",
        "wrong responses weigh more than right ones: penalties take probability from everything that is sampled",
        ("negative_mass", "positive_mass"),
        outweighs,
        "center advantages within groups as GRPO does, or weigh wrong responses less",
        ANY - {HEALTHY},
    ),
    Rule(
        "positive_mass",
        "right responses weigh more than wrong ones: tokens that are already likely are reinforced",
        ("positive_mass", "negative_mass"),
        outweighs,
        "center advantages within groups as GRPO does, or weigh right responses less (w_reinforce)",
        FALLING,
    ),
    Rule(
        "gradient_spikes",
        f"the norm of the gradient spikes to {GRADIENT_SPIKE:g} times its median and its start",
        ("gradient",),
        gradient_spikes,
        f"{SLOWER}; clip the norm of the gradient",
        smoothed=False,
    ),
    Rule("large_steps", "the policy moves far within one step", ("step_kl",), large_step, SLOWER),
    Rule(
        "clip_often_active",
        f"the clip acts on at least {CLIPPED:.0%} of the tokens, so the policy moves far within one step of training",
        ("clipped",),
        reaches(CLIPPED),
        f"{SLOWER}; if the objective clips by sequence ratios (GSPO), such shares are normal",
    ),
    Rule(
        "far_from_reference",
        "the policy has moved far from the reference model",
        ("reference_kl",),
        reaches(REFERENCE_KL),
        f"{SLOWER}; or raise the coefficient of the KL term",
    ),
    Rule(
        "unreadable_answers",
        "at least half of the answers cannot be read, so rewards are about the format",
        ("unparsed",),
        reaches(UNREADABLE),
        log.UNREADABLE,
    ),
    Rule(
        "truncated_responses",
        "more and more responses are cut off, and are judged without their end",
        ("truncated",),
        share_rises,
        log.TRUNCATED,
    ),
    Rule(
        "text_after_answer",
        "text follows more and more answers; its tokens raise the entropy and change no reward",
        ("after_answer",),
        share_rises,
        "end a response at its answer, and read entropy/answer, which leaves that text out",
        RISING,
    ),
    Rule(
        "saturated_reward",
        f"at least {SATURATED:.0%} of the answers are right, so advantages vanish",
        ("right",),
        reaches(SATURATED),
        log.SATURATED,
        FALLING | {HEALTHY, UNTRAINED},
    ),
    Rule(
        "few_signals",
        "in at least half of the groups, all responses have the same reward, so few signals remain",
        ("without_signal",),
        reaches(WITHOUT_SIGNAL),
        log.FEW_SIGNALS,
        FALLING | {HEALTHY, UNTRAINED},
    ),
    Rule(
        "fewer_distinct_answers",
        "the share of distinct answers has halved, though the entropy has not fallen as far",
        ("distinct",),
        halved,
        "look at Pass@K on held-out problems, which tells more than the entropy",
        frozenset({HEALTHY}),
    ),
    Rule(
        "clip_never_active",
        "the clip never acts: with one update per rollout batch the ratio is 1, and controls that act through the "
        "ratio (raised clips, CE-GPPO, KL-Cov) have no effect",
        ("clipped",),
        clip_never_active,
        "use a control that acts at a ratio of 1, such as Clip_B or Clip_V",
        FALLING | RISING,
    ),
    Rule(
        "unlikely_wrong_tokens",
        "penalties on unlikely tokens of wrong responses lower the entropy most",
        ("push_unlikely_wrong", "push_likely_right"),
        pushes_more,
        "drop the strongest of these penalties: Clip_B and Clip_V do",
        FALLING,
    ),
    Rule(
        "likely_right_tokens",
        "rewards on likely tokens of right responses lower the entropy most",
        ("push_likely_right", "push_unlikely_wrong"),
        pushes_more,
        "weigh right responses less, or hold the entropy at a target",
        FALLING,
    ),
)


def diagnose_run(run: LoggedRun) -> Diagnosis:
    """Return the verdict on a run and the rules that hold, divided into causes before its turn and effects after it."""
    course = course_of(run)
    diagnosis = Diagnosis(run, course)
    rules = [rule for rule in RULES if course.verdict in rule.verdicts]
    if course.verdict == TOO_SHORT:  # perhaps since the other numbers were lost
        rules = [rule for rule in RULES if rule.find is lost_numbers and run.signal(*rule.needs, finite=False)]
    for rule in rules:
        curves = [run.signal(name, finite=rule.find is not lost_numbers) for name in rule.needs]
        present = tuple(curve for curve in curves if curve is not None)
        if len(present) < len(curves):
            owners = {owner for owner, _ in needed_keys(rule, run.trainer)}
            if owners <= {run.trainer, OURS}:
                diagnosis.unchecked.append(rule)  # other rules need curves that this trainer never logs
            continue
        since = rule.find(*present)
        if since is None:
            continue
        cause = FoundCause(rule, since, tuple(curve for curve in present if curve.steps))  # others cannot be drawn
        before_turn = course.turn is None or since <= course.turn
        (diagnosis.causes if before_turn else diagnosis.effects).append(cause)
    return diagnosis


def needed_keys(rule: Rule, trainer: str) -> list[tuple[str, str]]:
    """Return the trainer and the key of each curve that a rule needs: another trainer if this one has no such curve."""
    keys = []
    for name in rule.needs:
        for owner in (trainer, *TRAINERS):
            if own_keys := signal_keys(name, owner):
                keys.append((owner, own_keys[0]))
                break
    return keys
