"""Settings as dataclasses: the bounds of every number hold in configurations and in Python."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args, get_type_hints

import pytest
import yaml

from baselines import METHODS
from baselines.clip_b import ClipB
from harness.base import registry
from harness.base.errors import UserError
from harness.base.schema import ALLOWED, TEMPERATURES, Range, check, choice, number, numbers, section, typed
from harness.base.shape import Shape
from harness.config import Config
from harness.elsewhere.assess import Wanted
from harness.methods.composition import method_classes
from tasks.coloring import Coloring
from tasks.countdown import Countdown
from tasks.countdown.recipe import CountdownRecipe
from tasks.lists import Lists
from tasks.sentences import Sentences
from tasks.sorting import Sorting

BOUNDS = ("least", "above", "most", "below")
BEYOND = (math.nan, math.inf, -math.inf)


@dataclass
class Part:
    share: float = number(0.5, least=0, most=1)


@dataclass
class Whole:
    refused: ClassVar[dict[str, str]] = {"top_p": "it is sampled by temperature alone"}

    count: int = number(3, least=1)
    rate: float | None = number(None, above=0, most=1)
    limit: float = number(1.0, least=0, most=math.inf)
    bare: float = 0.0
    pair: list[float] = numbers([0.9, 0.99], length=2, least=0, below=1)
    seeds: list[int] = numbers([0], least=0)
    names: list[str] = field(default_factory=list)
    mode: str = choice("slow", ("slow", "fast"))
    part: Part = field(default_factory=Part)
    maybe: Part | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


KEYS = [field.name for field in dataclasses.fields(Whole)]


# Allowed values in words


@pytest.mark.parametrize(
    ("bounds", "words", "inside", "outside"),
    [
        ({}, "any number", (-1e300, 0, 2**63 - 1), (2**63, -(10**400))),
        ({"least": 1}, "1 and more", (1, 2**63 - 1), (0.999, -1, 10**400)),
        ({"above": 0}, "more than 0", (5e-324, 1e300), (0, -1)),
        ({"most": 5}, "at most 5", (5, -1e300), (5.001,)),
        ({"below": 5}, "less than 5", (4.999,), (5,)),
        ({"least": 0, "most": 1}, "0 to 1", (0, 0.5, 1), (-1e-9, 1.001)),
        ({"least": 0, "below": 1}, "at least 0 and less than 1", (0, 0.999), (1, -1e-9)),
        ({"above": 0, "most": 1}, "more than 0 and at most 1", (5e-324, 1), (0, 1.001)),
        ({"least": 2, "most": 999}, "2 to 999", (2, 999), (1, 1000)),
        ({"also": 0, **TEMPERATURES}, "0, or 0.01 to 100", (0, 0.01, 100), (1e-300, 0.009, -1, 101)),
    ],
)
def test_range_holds(bounds: dict[str, Any], words: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    given = Range(**bounds)
    assert str(given) == words
    assert [given.holds(value) for value in inside] == [True] * len(inside)
    assert [given.holds(value) for value in (*outside, *BEYOND)] == [False] * (len(outside) + 3)


def test_infinity_is_allowed_where_it_is_a_bound() -> None:
    assert typed(Whole, {"limit": math.inf}, "").limit == math.inf
    for value in (math.nan, -math.inf, -1.0):
        with pytest.raises(UserError, match=r"^limit is .*; allowed: 0 to inf$"):
            typed(Whole, {"limit": value}, "")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 0}, "a.count is 0; allowed: 1 and more"),
        ({"count": math.nan}, "a.count is nan; it must be a whole number"),
        ({"count": "few"}, "a.count is 'few'; it must be a whole number"),
        ({"count": {"b": 1}}, "a.count is {'b': 1}; it must be a whole number"),
        ({"counts": 1}, f"unknown key a.counts; allowed: {', '.join(sorted(KEYS))}; did you mean 'count'?"),
        ({"rate": 0}, "a.rate is 0.0; allowed: more than 0 and at most 1"),
        ({"rate": math.inf}, "a.rate is inf; allowed: more than 0 and at most 1, and finite"),
        ({"bare": math.nan}, "a.bare is nan; allowed: any number"),
        ({"pair": []}, "a.pair is []; allowed: exactly 2 numbers"),
        ({"pair": [math.nan, 0.1]}, "a.pair[0] is nan; allowed: at least 0 and less than 1"),
        ({"pair": ["x", 0.1]}, "a.pair[0] is 'x'; it must be a number"),
        ({"pair": 0.9}, "a.pair is 0.9; it must be a list, for example a.pair=[0.9, 0.99]"),
        ({"count": None}, "a.count is null; it must be a whole number"),
        ({"seeds": {"b": 1}}, "a.seeds is {'b': 1}; it must be a list, for example a.seeds=[0]"),
        ({"names": "one"}, "a.names is 'one'; it must be a list, for example a.names=[one]"),
        ({"names": [["one"]]}, "a.names[0] is ['one']; it must be text"),
        ({"mode": "fst"}, "a.mode is 'fst'; allowed: fast, slow; did you mean 'fast'?"),
        ({"part": 3}, "a.part is 3; it must be a mapping of keys"),
        ({"part": None}, "a.part is null; it must be a mapping of keys"),
        ({"part": {"share": 2}}, "a.part.share is 2.0; allowed: 0 to 1"),
        ({"part": {"shar": 2}}, "unknown key a.part.shar; allowed: share; did you mean 'share'?"),
        ({"maybe": {"share": math.nan}}, "a.maybe.share is nan; allowed: 0 to 1"),
        ({"options": {"b": 3}}, "a.options.b is 3; it must be a mapping of keys"),
        ({"top_p": 0.9}, "a.top_p is 0.9, but it is sampled by temperature alone"),
    ],
)
def test_typed_wrong_value(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        typed(Whole, given, "a.")
    assert str(error.value) == sentence


def test_typed_overrides_defaults() -> None:
    given = {"count": "7", "rate": 1, "pair": [0, 0.5], "mode": "fast", "part": {"share": 1}, "maybe": {}}
    made = typed(Whole, given, "")
    assert made == Whole(count=7, rate=1.0, pair=[0.0, 0.5], mode="fast", part=Part(1.0), maybe=Part())
    assert typed(Whole(count=9), {"bare": 2}, "") == Whole(count=9, bare=2.0)
    assert typed(Whole, {"maybe": None}, "").maybe is None


def test_typed_with_a_missing_field() -> None:
    given = {"architecture": "qwen2", **dict.fromkeys(("vocabulary", "hidden", "heads", "kv_heads", "head_dim"), 1)}
    with pytest.raises(UserError, match=r"^shape\.layers, shape\.mlp must be given$"):
        typed(Shape, given, "shape.")


@pytest.mark.parametrize("given", [{"x" * 999: 1}, {"count": "x" * 999}, {"names": "x" * 999}, {"pair": [0.1] * 999}])
def test_typed_messages_are_short(given: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        typed(Whole, given, "a.")
    assert len(str(error.value)) < 300


# Every number that a user can set


def sections(given: Any, where: str) -> Iterator[tuple[Any, str]]:
    """Yield a section with its defaults, and all sections inside it, those too that are not there by default."""
    yield given, where
    hints = get_type_hints(type(given))
    for setting in dataclasses.fields(given):
        if inner := section(hints[setting.name]):
            yield from sections(inner(), f"{where}{setting.name}.")


SPECS: dict[str, type] = {
    **method_classes(METHODS),
    **{task.name: task for task in (Coloring, Countdown, Lists, Sentences, Sorting)},
}
SETTINGS = [
    *sections(Config(), ""),
    *((cls(), f"{name}.") for name, cls in SPECS.items()),
    (CountdownRecipe(), "recipe."),
    (Shape("qwen2", 1, 1, 1, 1, 1, 1, 1), "shape."),
    (Wanted(), "--"),
]


def numeric(given: Any) -> list[dataclasses.Field[Any]]:
    hints = get_type_hints(type(given))
    return [
        setting
        for setting in dataclasses.fields(given)
        if {int, float} & {hints[setting.name], *get_args(hints[setting.name])}
    ]


def unbounded(given: Any) -> list[str]:
    ranges = {setting.name: setting.metadata.get(ALLOWED, Range()) for setting in numeric(given)}
    return [name for name, setting in ranges.items() if all(getattr(setting, bound) is None for bound in BOUNDS)]


@pytest.mark.parametrize(("given", "where"), SETTINGS, ids=[where or "config" for _, where in SETTINGS])
def test_sections_bound_every_number(given: Any, where: str) -> None:
    assert not unbounded(given), "declare them at the field, for example number(1.0, above=0)"


def test_unbounded_sees_a_number() -> None:
    @dataclass(frozen=True)
    class Bolder(ClipB):
        mu: float = 8.5

    assert unbounded(Whole()) == ["bare"]
    assert unbounded(Bolder()) == ["mu"]
    assert [setting.name for setting in numeric(Whole())] == ["count", "rate", "limit", "bare", "pair", "seeds"]
    assert {where for _, where in sections(Config(), "")} == {
        *("", "train.", "train.filter.", "train.resample.", "train.lora.", "stop.", "rollout."),
        *("correction.", "mismatch."),
        *("mismatch.float32.", "mismatch.bfloat16.", "eval.", "verify.", "dynamics.", "checkpoint.", "hardware."),
        *("launch.", "launch.slurm.", "tracking.", "tune."),
    }


NUMBERS = [
    pytest.param(given, setting, where, id=f"{where}{setting.name}")
    for given, where in SETTINGS
    for setting in numeric(given)
]


def at_the_edges(given: Any, setting: dataclasses.Field[Any]) -> tuple[list[float], list[float]]:
    """Return the outermost numbers that a field allows, and those just beyond."""
    hint = get_type_hints(type(given))[setting.name]
    whole = int in (hint, *get_args(hint))
    inside, outside = [], []
    for bound, away in (("least", -1), ("above", 1), ("most", 1), ("below", -1)):
        if (edge := getattr(setting.metadata[ALLOWED], bound)) is not None:
            beside = edge + away if whole else math.nextafter(edge, away * math.inf)
            included = bound in ("least", "most")
            inside.append(edge if included else beside)
            outside.append(beside if included else edge)
    return inside, outside


@pytest.mark.parametrize(("given", "setting", "where"), NUMBERS)
def test_check_at_the_bounds(given: Any, setting: dataclasses.Field[Any], where: str) -> None:
    allowed, listed = setting.metadata[ALLOWED], setting.default_factory is not dataclasses.MISSING
    inside, outside = at_the_edges(given, setting)

    def settings(value: float) -> dict[str, Any]:
        return {**vars(given), setting.name: [value] * (allowed.length or 1) if listed else value}

    for value in inside:
        check(type(given), settings(value), where)
    for value in (*outside, *BEYOND):
        with pytest.raises(UserError) as error:
            check(type(given), settings(value), where)
        assert str(error.value).startswith(f"{where}{setting.name}{'[0]' * listed} is {value}; allowed: {allowed}")


@pytest.mark.parametrize(("given", "setting", "where"), [n for n in NUMBERS if str(n.values[2])[:-1] in SPECS])
def test_build_refuses_numbers_beyond_bounds(given: Any, setting: dataclasses.Field[Any], where: str) -> None:
    for value in (*at_the_edges(given, setting)[1], math.nan):
        written = yaml.safe_dump(value).split()[0]
        with pytest.raises(UserError, match=rf"^{where}{setting.name} is "):
            registry.build("spec", SPECS, f"{where[:-1]}({setting.name}={written})")
        with pytest.raises(UserError, match=rf"{setting.name} is {value}; allowed: "):
            type(given)(**{setting.name: value})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ClipB(mode="papr"), "ClipB.mode is 'papr'; allowed: paper, reference; did you mean 'paper'?"),
        (
            lambda: CountdownRecipe(device="gpu"),
            "recipe.device is 'gpu'; allowed: auto, cpu, cuda; did you mean 'cpu'?",
        ),
        (lambda: dataclasses.replace(SETTINGS[-2][0], mlp=0), "shape.mlp is 0; allowed: 1 to 1e+09"),
        (lambda: Wanted(max_new_tokens=0), "--max-new-tokens is 0; allowed: 1 and more"),
        (lambda: Wanted(temperature=math.nan), "--temperature is nan; allowed: 0, or 0.01 to 100"),
    ],
)
def test_settings_built_in_python_are_checked(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == sentence
