"""The verdict on a run, from the curve of its entropy, and from that of its reward if the entropy looks healthy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from harness.base.errors import UserError
from harness.diagnose.signals import LoggedRun, MetricCurve
from harness.table.verdict import COLLAPSED, COLLAPSED_BELOW, EXPLODED, EXPLODED_ABOVE, ZERO, ending

TOO_SHORT, HEALTHY = "too short to say", "healthy"
FELL, RECOVERED = "fell", "fell and recovered"
CAME_BACK = "rose and came back"
COLLAPSED_EXPLODED = "collapsed and exploded"
REWARD_FELL = "reward fell"  # while the entropy looks healthy
UNTRAINED = "nothing was learned"  # the entropy alone would look healthy, or too short
FALLING = frozenset({FELL, COLLAPSED, RECOVERED, COLLAPSED_EXPLODED})  # at first
RISING = frozenset({EXPLODED, CAME_BACK})
ANY = FALLING | RISING | {REWARD_FELL, HEALTHY, UNTRAINED}

FEWEST = 10  # points: both ends are medians of three, and with fewer there is hardly anything between them
# The entropy at the end as a share of its start, chosen on the 21 cells of the demo of 100 steps by their loss of
# Pass@16 (docs/diagnose.md).
FELL_BELOW = 0.4
RECOVERED_BY = 1.25  # times the lowest value: less is the noise of a run that stays near the bound
# The reward at the end as a share of its start; in the 21 cells of that demo it is at least 1. Only a reward that
# starts above 0 has such a share.
REWARD_BELOW = 0.5


@dataclass(frozen=True)
class EntropyCourse:
    """The verdict with its sentence, and the step at which half of the change of the entropy or reward was done."""

    verdict: str
    sentence: str
    turn: int | None = None  # None if neither has changed enough


def course_of(run: LoggedRun) -> EntropyCourse:
    """Return the verdict on a run; refuse a curve that is not an entropy."""
    course = entropy_course(run)
    if course.verdict not in (HEALTHY, TOO_SHORT):
        return course
    shares, reward = run.signal("without_signal"), run.signal("reward")
    if shares is not None and min(shares.values) >= 1:
        return EntropyCourse(UNTRAINED, "no step had a signal: in each group all responses had the same reward")
    # Of a trainer that logs no shares. Two steps of other rewards would hardly have the same mean.
    if shares is None and reward is not None and len(reward.values) > 1 and max(reward.values) == min(reward.values):
        return EntropyCourse(UNTRAINED, f"{reward.key} was {reward.values[0]:g} in every step")
    return course


def entropy_course(run: LoggedRun) -> EntropyCourse:
    entropy = run.signal("entropy")
    assert entropy is not None  # readers refuse a run without it
    if min(entropy.values) < -ZERO:
        raise UserError(f"{entropy.key} of {run.path} falls to {min(entropy.values):.3g}; an entropy is never negative")
    if run.stopped is not None:
        sentence = f"stop.entropy_below ended the cell at step {run.stopped}"
        return EntropyCourse(COLLAPSED, sentence, turn(entropy, min))
    if len(entropy.values) < FEWEST:
        points = len(entropy.values)
        return EntropyCourse(TOO_SHORT, f"the log has {points} values of {entropy.key}, and a verdict needs {FEWEST}")
    course = ended_course(entropy) or relative_course(entropy)
    reward = run.signal("reward")
    if course.verdict != HEALTHY or reward is None or reward.start <= 0:
        return course
    bound = REWARD_BELOW * reward.start
    if reward.end >= bound:
        return course
    kept = reward.end / reward.start
    sentence = f"{course.sentence}, but {reward.key} ends at {kept:.2f} of its start"
    return EntropyCourse(REWARD_FELL, sentence, reward.since(lambda value: value < bound))


def ended_course(entropy: MetricCurve) -> EntropyCourse | None:
    """Return the verdict of a run that the leaderboard counts as collapsed or exploded; None for others."""
    first, last = entropy.values[0], entropy.values[-1]
    verdict = ending(first, last)
    if first <= ZERO:
        return EntropyCourse(COLLAPSED, "the entropy was 0 from the start, before any training", entropy.steps[0])
    if verdict == COLLAPSED:
        sentence = f"its last value is {last / first:.2f} of its first, below {COLLAPSED_BELOW:g}"
        return EntropyCourse(COLLAPSED, sentence, turn(entropy, min))
    if verdict == EXPLODED:
        sentence = f"its last value is {last / first:.2f} times its first, above {EXPLODED_ABOVE:g}"
        return EntropyCourse(EXPLODED, sentence, turn(entropy, max))
    return None


def relative_course(entropy: MetricCurve) -> EntropyCourse:
    """Return the verdict from the end and the extremes of the smoothed entropy, as shares of its start."""
    start = max(entropy.start, ZERO)  # which may be 0 where the first value alone is not
    kept = entropy.end / start
    lowest, highest = min(entropy.smooth) / start, max(entropy.smooth) / start
    end = f"it ends at {kept:.2f} of its start"
    collapsed = entropy.since(lambda value: value < COLLAPSED_BELOW * start)
    exploded = entropy.since(lambda value: value > EXPLODED_ABOVE * start)
    if collapsed is not None and exploded is not None and collapsed < exploded:
        course = f"collapse by step {collapsed}, explosion by step {exploded}"
        return EntropyCourse(COLLAPSED_EXPLODED, f"{course}; {end}", turn(entropy, min))
    if lowest < FELL_BELOW:
        recovered = kept >= max(FELL_BELOW, RECOVERED_BY * lowest)
        how = f"below {FELL_BELOW:g}" if kept < FELL_BELOW else f"after falling to {lowest:.2f} of it"
        return EntropyCourse(RECOVERED if recovered else FELL, f"{end}, {how}", turn(entropy, min))
    if highest > EXPLODED_ABOVE:
        return EntropyCourse(CAME_BACK, f"{end}, after rising to {highest:.2f} times it", turn(entropy, max))
    return EntropyCourse(HEALTHY, f"{end}, between {FELL_BELOW:g} and {EXPLODED_ABOVE:g}")


def turn(entropy: MetricCurve, extreme_of: Callable[[Sequence[float]], float]) -> int | None:
    """Return the step at which the entropy was halfway to an extreme, on a log scale: its bounds are ratios."""
    extreme = extreme_of(entropy.smooth)
    if extreme == entropy.start:  # the last values changed, too few of them for a running median
        return entropy.steps[-1]
    falls, halfway = extreme < entropy.start, sqrt(max(entropy.start, 0.0) * max(extreme, 0.0))
    return entropy.since(lambda value: value <= halfway if falls else value >= halfway)
