"""The verdict on invented entropies, on both sides of each bound."""

from __future__ import annotations

import dataclasses

import pytest
from logged_runs import geometric, line, logged_run
from pandas import DataFrame

from harness.base.errors import UserError
from harness.diagnose.course import course_of, entropy_course
from harness.diagnose.signals import OURS, VERL
from harness.table.verdict import collapsed_and_exploded


def ending(at: float) -> list[float]:
    """Return an entropy that starts at 1, and lies at another value for its last steps."""
    return [1.0] * 5 + geometric(1.0, at, 30) + [at] * 5


@pytest.mark.parametrize(
    ("entropy", "verdict"),
    [
        ([1.0] * 9, "too short to say"),
        ([1.0] * 10, "healthy"),
        (ending(0.401), "healthy"),
        (ending(0.399), "fell"),
        (ending(0.101), "fell"),
        (ending(0.099), "collapsed"),
        (ending(2.99), "healthy"),
        (ending(3.01), "exploded"),
        # Down to 0.3 and back: to 0.41, which is 1.37 times the lowest value; to 0.38, which is still below the bound.
        (geometric(1.0, 0.3) + geometric(0.3, 0.41) + [0.41] * 5, "fell and recovered"),
        (geometric(1.0, 0.3) + geometric(0.3, 0.38) + [0.38] * 5, "fell"),
        # Near the bound all the time: from 0.39 to 0.41 is no recovery.
        (geometric(1.0, 0.39) + [0.39] * 5 + [0.41] * 5, "fell"),
        (line(1.0, 3.5) + line(3.5, 2.0), "rose and came back"),
        (line(1.0, 2.9) + line(2.9, 2.0), "healthy"),
        ([1.0] * 5 + [0.099] * 5 + [3.01] * 5 + [2.0] * 5, "collapsed and exploded"),
        ([1.0] * 5 + [0.101] * 5 + [3.01] * 5 + [2.0] * 5, "fell and recovered"),
        ([1.0] * 5 + [0.099] * 5 + [2.99] * 5 + [2.0] * 5, "fell and recovered"),
        ([1.0] * 5 + [3.01] * 5 + [0.099] * 5 + [0.2] * 5, "fell"),
        ([0.0] * 20, "collapsed"),
    ],
)
def test_entropy_course_verdicts(entropy: list[float], verdict: str) -> None:
    assert entropy_course(logged_run(entropy=entropy)).verdict == verdict


@pytest.mark.parametrize(
    ("trainer", "signals", "verdict"),
    [
        (OURS, {"without_signal": [1.0] * 40}, "nothing was learned"),
        (OURS, {"without_signal": [1.0] * 39 + [0.99]}, "healthy"),
        (OURS, {"entropy": [1.0], "without_signal": [1.0]}, "nothing was learned"),
        (OURS, {"entropy": [1.0], "without_signal": [0.5]}, "too short to say"),
        (OURS, {"entropy": ending(0.099), "without_signal": [1.0] * 40}, "collapsed"),
        # A log whose reward never varies, and equal means with a signal
        (VERL, {"reward": [0.0] * 40}, "nothing was learned"),
        (VERL, {"reward": [0.0] * 39 + [0.01]}, "healthy"),
        (VERL, {"reward": [0.0]}, "healthy"),  # one value may be the mean of anything
        (OURS, {"reward": [0.5] * 40, "without_signal": [0.9] * 40}, "healthy"),
    ],
)
def test_course_of_a_run_without_a_signal(trainer: str, signals: dict[str, list[float]], verdict: str) -> None:
    assert course_of(logged_run(trainer, **{"entropy": [1.0] * 40, **signals})).verdict == verdict


@pytest.mark.parametrize(
    ("reward", "verdict"),
    [
        (line(0.4, 0.4), "healthy"),
        ([0.4] * 20 + [0.201] * 20, "healthy"),
        ([0.4] * 20 + [0.199] * 20, "reward fell"),
        ([-0.4] * 20 + [-1.0] * 20, "healthy"),  # of a scale without a zero it cannot be said
    ],
)
def test_entropy_course_with_a_falling_reward(reward: list[float], verdict: str) -> None:
    course = entropy_course(logged_run(entropy=[1.0] * 40, reward=reward))
    assert course.verdict == verdict
    assert course.turn == (21 if verdict == "reward fell" else None)
    falling = logged_run(entropy=geometric(1.0, 0.2), reward=reward)
    assert entropy_course(falling).verdict == "fell"


@pytest.mark.parametrize(
    ("entropy", "shares", "turn"),
    [
        ([1.0] * 39 + [0.099], (1.0, 0.0), 40),  # medians do not have it, but the table looks at the last step
        ([*ending(0.05)[:-1], 0.11], (0.0, 0.0), None),
        ([1.0] * 39 + [3.01], (0.0, 1.0), 40),
        ([3.5] + [1.0] * 39, (0.0, 0.0), None),
        ([0.0] * 40, (1.0, 0.0), 1),
        ([0.5] + [0.0] * 38 + [0.5], (0.0, 0.0), None),
    ],
)
def test_course_and_table_agree(entropy: list[float], shares: tuple[float, float], turn: int | None) -> None:
    row = {"entropy_first": [entropy[0]], "entropy_last": [entropy[-1]], "collapsed": [None]}
    assert collapsed_and_exploded(DataFrame(row)) == shares
    course = entropy_course(logged_run(entropy=entropy))
    assert (float(course.verdict == "collapsed"), float(course.verdict == "exploded")) == shares
    assert turn is None or course.turn == turn


def test_entropy_course_of_an_ended_cell() -> None:
    course = entropy_course(dataclasses.replace(logged_run(entropy=[1.0, 0.9, 0.4]), stopped=3))
    assert course.verdict == "collapsed"
    assert course.sentence == "stop.entropy_below ended the cell at step 3"


def test_entropy_course_turn() -> None:
    falling = entropy_course(logged_run(entropy=geometric(1.0, 0.01, 42)))
    rising = entropy_course(logged_run(entropy=geometric(1.0, 100.0, 42)))
    assert falling.turn == rising.turn == 22
    assert entropy_course(logged_run(entropy=[1.0] * 20)).turn is None


def test_entropy_course_refuses_negative_entropy() -> None:
    with pytest.raises(UserError, match=r"entropy/mean of run falls to -0\.5; an entropy is never negative"):
        entropy_course(logged_run(entropy=[1.0] * 10 + [-0.5]))
