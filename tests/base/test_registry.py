"""The small grammar of specs: the meaning of each value, and nothing beyond it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from harness import config
from harness.base import registry
from harness.base.errors import UserError


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("3", 3),
        ("-0", 0),
        ("010", 10),
        ("9" * 40, 10**40 - 1),
        ("1.0e-3", 0.001),
        ("1e9", 1e9),
        (".5", 0.5),
        ("3.", 3.0),
        ("-.inf", -math.inf),
        (".nan", math.nan),
        ("true", True),
        ("No", False),
        ("off", False),
        ("null", None),
        ("~", None),
        ("k3", "k3"),
        ("owner/name-1.5b", "owner/name-1.5b"),
        ("Answer briefly.", "Answer briefly."),
        ("2024-01-01", "2024-01-01"),
        ("1+1", "1+1"),
        ("''", ""),
        (r"'It''s {$x^2$}, \boxed{}'", r"It's {$x^2$}, \boxed{}"),
        (r'"One\nTwo\t\"three\" \\boxed"', 'One\nTwo\t"three" \\boxed'),
        ("[]", []),
        ("[ 0.6, .4 ]", [0.6, 0.4]),
        ("[a, 'b, c', null]", ["a", "b, c", None]),
    ],
)
def test_parse_values(written: str, value: Any) -> None:
    assert repr(registry.parse(f"clip_b(mu={written})")[1]["mu"]) == repr(value)


@pytest.mark.parametrize(
    "written",
    [
        *("!!python/object/apply:os.system [id]", "!!binary aGk=", "&a 1", "*a", "<<", "{a: 1}", "a: 1", "1:30"),
        *("%YAML 1.1", "| text", "> text", "@a", "`a`", "# no", "a # no", "[[1]]", "[1", "1]", "[a,,b]", "[,]", "(1)"),
        *("", "'a", '"a', "'a' 'b'", "a'b", r'"\boxed"', r'"\ud800"', r'"\x41"', "${oc.env:HOME}", "'${oc.env:HOME}'"),
        *("[" * 5000 + "]" * 5000, "(" * 5000 + ")" * 5000),
    ],
)
def test_parse_refuses_other_yaml(written: str) -> None:
    # Text that YAML reads as a list, a comment or an open string is reported by spec or option.
    with pytest.raises(UserError, match=r"^(clip_b\.mu is|'clip_b\(mu=).*; ?.*"):
        registry.parse(f"clip_b(mu={written})")


@pytest.mark.parametrize("character", ["\x00", "\n", "\x1b", "\x7f", "\u202e", "\u2028", "\ud800"])
def test_parse_refuses_invisible_characters(character: str) -> None:
    with pytest.raises(UserError, match="holds an invisible character"):
        registry.parse(f"aime24(instruction='a{character}b')")


def test_parse_refuses_a_repeated_option() -> None:
    with pytest.raises(UserError, match=r"^'clip_b\(mu=1, mu=2\)' says mu twice$"):
        registry.parse("clip_b(mu=1, mu=2)")


def test_parse_options_of_shipped_configs() -> None:
    """A cell is who it was when options were read by YAML."""
    read = 0
    for path in (config.shipped_configs() | config.study_configs()).values():
        for spec in config.load_config(str(path)).methods:
            for part in registry.split(spec, "+"):
                for key, value in registry.parse(part)[1].items():
                    assert value == yaml.safe_load(part.partition(f"{key}=")[2].rstrip(")").partition(",")[0])
                    read += 1
    assert read > 12
