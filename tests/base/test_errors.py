"""Error messages: the allowed values, and the nearest name."""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path

import pytest

from harness.base.errors import Damaged, Unwritten, UserError, at_least, nearest, short, shown


def test_nearest_follows_the_allowed_names() -> None:
    assert nearest("gpro", iter(["ppo", "grpo"])) == "allowed: grpo, ppo; did you mean 'grpo'?"
    assert nearest("zzz", ["ppo", "grpo"]) == "allowed: grpo, ppo"
    assert nearest("zzz", []) == "allowed: "


def test_nearest_of_many_names() -> None:
    names = [f"{letter * 20}_{i}" for letter in "abcd" for i in range(5)]
    message = nearest("c" * 20, names)
    listed = message.removeprefix("allowed: ").partition(" and ")[0].split(", ")
    assert {f"{'c' * 20}_{i}" for i in range(5)} <= set(listed)
    assert f" and {20 - len(listed)} more; did you mean 'cccccccccccccccccccc_" in message
    assert len(message) < 230


def test_short_drops_the_middle() -> None:
    assert short("a" * 80) == "a" * 80
    assert short("a" * 60 + "b" * 60) == "a" * 38 + " .. " + "b" * 38
    assert shown("x") == "'x'"
    assert shown(None) == "null"


def test_user_error_is_one_line_of_at_most_300_characters() -> None:
    message = str(UserError("a" * 200 + "\n" + "b" * 200))
    assert message == "a" * 148 + " .. " + "b" * 148
    assert str(UserError("one\ntwo")) == "one two"


@pytest.mark.parametrize("error", [UserError("two\nlines"), Damaged(Path("a"), "b"), Unwritten(Path("a"), "b")])
def test_user_error_of_another_process_has_its_sentence(error: UserError) -> None:
    received = pickle.loads(pickle.dumps(error))
    assert isinstance(received, UserError)
    assert str(received) == str(error)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, 1e300])
def test_at_least_takes_finite_numbers_alone(value: float) -> None:
    at_least(0, temperature=0.0)
    with pytest.raises(UserError, match=re.escape(f"temperature is {value}; allowed: 0 and more")):
        at_least(0, temperature=value)
