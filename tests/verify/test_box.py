from __future__ import annotations

import random

import pytest

from harness.verify.box import find_box, last_box


@pytest.mark.parametrize(
    ("text", "as_latex", "literally"),
    [
        (r"so \boxed{1} or \boxed{ 2}.", " 2", " 2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{}", "", ""),
        ("none", None, None),
        ("", None, None),
        (r"\boxed{1} \boxed{2", None, None),
        (r"\boxed{1", None, None),
        (r"} \boxed{1} } {", "1", "1"),
        (r"\boxed{a \boxed{1} b}", r"a \boxed{1} b", "1"),
        (r"\boxed{a \boxed{1}", "1", "1"),
        (r"\boxed{\boxed{1}} {2}", r"\boxed{1}", "1"),
        (r"\boxed{1} \fbox{2}", "2", "1"),
        (r"\boxed{1} \boxed 2", "2", "1"),
        (r"\boxed{1} \boxed {2}", "2", "1"),
        (r"\boxed{1\}2}", r"1\}2", "1\\"),
        (r"\boxed{1} \\boxed{2}", "1", "2"),
        (r"\boxedtext{1}", None, None),
    ],
)
def test_last_box_in_both_readings(text: str, as_latex: str | None, literally: str | None) -> None:
    assert last_box(text) == as_latex
    assert last_box(text, literal=True) == literally


@pytest.mark.parametrize(
    ("text", "end", "cut_off"),
    [
        (r"so \boxed{1} or \boxed{2}.", r"so \boxed{1} or \boxed{2}", False),
        (r"\boxed{a \boxed{1} b} c", r"\boxed{a \boxed{1} b}", False),
        (r"\boxed{1} \boxed{2", r"\boxed{1}", True),
        (r"\boxed{a \boxed{1}", r"\boxed{a \boxed{1}", False),
        (r"\boxed 5 or", r"\boxed 5", False),
        (r"\boxed{}x", r"\boxed{}", False),
    ],
)
def test_find_box_end(text: str, end: str, cut_off: bool) -> None:
    box = find_box(text)
    assert box is not None
    assert (text[: box.end], box.cut_off) == (end, cut_off)


def test_last_box_read_literally() -> None:
    """By brute force: from the last opening on, the first place where braces are even."""
    rng = random.Random(0)
    actual = 0
    for _ in range(20_000):
        text = "".join(rng.choices(["\\boxed{", "{", "}", "\\", "a", "\\fbox{"], k=rng.randint(0, 12)))
        _, opening, rest = text.rpartition("\\boxed{")
        ends = [i for i, c in enumerate(rest) if c == "}" and rest[:i].count("{") == rest[:i].count("}")]
        expected = rest[: ends[0]] if opening and ends else None
        assert last_box(text, literal=True) == expected, text
        actual += expected is not None
    assert actual > 2_000
