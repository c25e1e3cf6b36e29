"""Settings as dataclasses: a field declares its type, its default and what it allows. Imports no torch.

    lr: float = number(1e-6, above=0)
    betas: list[float] = numbers([0.9, 0.999], length=2, least=0, below=1)
    engine: str = choice("auto", ("auto", "embedded", "vllm"))

NaN is refused in every field, and infinity in every field that does not name it as a bound (most=inf). None means that
a value is not set; bounds do not apply to it. A class variable `refused` may say why keys that users expect do not
exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import inf, isfinite
from typing import Any, cast, get_args, get_origin

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from harness.base.errors import UserError, nearest, one_of, short, shown
from harness.base.files import hints_of

ALLOWED = "allowed"  # the entry of a field's metadata that holds a Range, or the names of a choice
LARGEST = 2**63 - 1  # of whole numbers: the largest 64-bit integer, as databases and tensors have them
SWITCH = "switch"  # the entry of a field's metadata that allows `true` and `false` for the numbers 1 and 0
TEMPERATURES = {"least": 0.01, "most": 100}  # logits are divided by it: by far less, they overflow; also=0 is greedy
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field allows: also, least and most are among them, above and below are not."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    also: float | None = None  # a single number apart from least to most
    length: int | None = None  # of a list, whose numbers each have the bounds; None: any length

    def holds(self, value: float) -> bool:
        if isinstance(value, int):
            representable = abs(value) <= LARGEST
        else:
            representable = isfinite(value) or value in (self.least, self.most)
        return value == self.also or (
            representable
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"at least": self.least, "more than": self.above, "at most": self.most, "less than": self.below}
        bounds = {word: bound for word, bound in words.items() if bound is not None}
        if bounds.keys() == {"at least"}:
            return f"{self.least:g} and more"
        if bounds.keys() == {"at least", "at most"}:
            return f"{'' if self.also is None else f'{self.also:g}, or '}{self.least:g} to {self.most:g}"
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds.items()) or "any number"


def within(**bounds: float | None) -> dict[str, Any]:
    """Return the metadata of a field of numbers; for fields without a default: `field(metadata=within(least=1))`."""
    return {ALLOWED: Range(**bounds)}  # type: ignore[arg-type]


def number(default: float | None, **bounds: float | None) -> Any:
    """Declare a field that holds a number within the bounds least or above, most or below; or None."""
    return dataclasses.field(default=default, metadata=within(**bounds))


def fraction(default: float) -> Any:
    """Declare a field that holds a share from 0 to 1, which `false` and `true` stand for, too."""
    return dataclasses.field(default=default, metadata={**within(least=0, most=1), SWITCH: True})


def numbers(default: Iterable[float], *, length: int | None = None, **bounds: float | None) -> Any:
    """Declare a field that holds a list of numbers, each of them within the bounds."""
    return dataclasses.field(default_factory=lambda: list(default), metadata=within(length=length, **bounds))


def choice(default: str, names: tuple[str, ...]) -> Any:
    """Declare a field that holds one of a few names."""
    return dataclasses.field(default=default, metadata={ALLOWED: names})


def check(schema: Any, values: Mapping[str, Any], where: str) -> None:
    """Refuse values that a dataclass's fields do not allow; its sections may be dataclasses or mappings."""
    hints = hints_of(schema)
    for declared in dataclasses.fields(schema):
        value, inner = values[declared.name], section(hints[declared.name])
        if inner is None:
            check_value(declared, value, f"{where}{declared.name}")
        elif value is not None:
            inner_values = value if isinstance(value, Mapping) else vars(value)
            check(inner, inner_values, f"{where}{declared.name}.")


def check_value(declared: dataclasses.Field[Any], value: Any, key: str) -> None:
    """Refuse a value that its field does not allow; `key` names it in the error."""
    allowed = declared.metadata.get(ALLOWED, Range())
    if not isinstance(allowed, Range):
        one_of(key, value, allowed)
        return
    if isinstance(value, list) and allowed.length not in (None, len(value)):
        raise UserError(f"{key} is {shown(value)}; allowed: exactly {allowed.length} numbers")
    for name, item in with_items(key, value):
        check_size(name, item)
        if isinstance(item, int | float) and not allowed.holds(item):
            endless = item in (inf, -inf) and inf not in (allowed.least, allowed.most)
            raise UserError(f"{name} is {item}; allowed: {allowed}{', and finite' if endless else ''}")


def with_items(key: str, value: Any) -> list[tuple[str, Any]]:
    """Return a value with its key, followed by the items of a list with theirs."""
    items = enumerate(value) if isinstance(value, list) else ()
    return [(key, value), *((f"{key}[{i}]", item) for i, item in items)]


def check_size(key: str, value: Any) -> None:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise UserError(f"{key} is {shown(value)}; allowed: whole numbers up to {LARGEST}")


def section(hint: Any) -> Any:
    """Return the dataclass that a type is or may be; None for all other types."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    return None


def keys_with_types(schema: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full keys of a dataclass's fields with their types, each section before the fields in it."""
    hints = hints_of(schema)
    for declared in dataclasses.fields(schema):
        key, hint = f"{where}{declared.name}", hints[declared.name]
        yield key, hint
        if (inner := section(hint)) is not None:
            yield from keys_with_types(inner, f"{key}.")


def check_keys(values: Mapping[Any, Any], schema: Any, where: str) -> None:
    """Refuse unknown keys, and a scalar, a list or a mapping where another of the three belongs."""
    hints, known = hints_of(schema), {declared.name: declared for declared in dataclasses.fields(schema)}
    refused: Mapping[str, str] = getattr(schema, "refused", {})
    for name, value in values.items():
        key = short(f"{where}{name}")
        if name in refused and name not in known:  # a subclass may have an option of that name
            raise UserError(f"{key} is {shown(value)}, but {refused[name]}")
        if name not in known:
            raise UserError(f"unknown key {key}; {nearest(str(name), known)}")
        hint = hints[name]
        inner = section(hint)
        is_text = hint in (str, str | None, list[str]) and ALLOWED not in known[name].metadata
        for place, item in with_items(key, value):
            check_size(place, item)
            if hint is bool and type(item) is int and item not in (0, 1):  # else it would be true
                raise UserError(f"{place} is {item}; it must be {KINDS[bool]}")
            if is_text and isinstance(item, bool | float):
                raise UserError(f"{place} is {item}; it must be text, so write on, off, yes, no and 1.0 in quotes")
        # None is the value of a section only if its type allows that; otherwise `mapping` refuses it.
        if inner is not None and (value is not None or type(None) not in get_args(hint)):
            check_keys(mapping(value, key), inner, f"{where}{name}.")
        elif get_origin(hint) is dict:
            for child, content in mapping(value, key).items():
                inner_kind, inner_key = get_args(hint)[1], short(f"{key}.{child}")
                if get_origin(inner_kind) is dict:
                    mapping(content, inner_key)
                elif get_origin(inner_kind) is list:
                    check_list(content, inner_key, known[name], get_args(inner_kind)[0])
        elif get_origin(hint) is list:
            check_list(value, key, known[name], get_args(hint)[0])


def mapping(value: Any, key: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{key} is {shown(value)}; it must be a mapping of keys")
    return value


def check_list(value: Any, key: str, declared: dataclasses.Field[Any], kind: type) -> None:
    if not isinstance(value, list):
        assert callable(declared.default_factory)  # every field of a list has one
        items = declared.default_factory()
        if not items and value is not None:
            items = [value]
        example = ", ".join(map(str, items))
        raise UserError(f"{key} is {shown(value)}; it must be a list, for example {short(f'{key}=[{example}]')}")
    for i, item in enumerate(value):
        if isinstance(item, list | Mapping | None):
            raise UserError(f"{key}[{i}] is {shown(item)}; it must be {KINDS[kind]}")


def unswitched(values: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return the values without the booleans that YAML read where a field holds names, such as `off`, or a share."""
    hints, restored = hints_of(schema), dict(values)
    for declared in dataclasses.fields(schema):
        value, inner = restored.get(declared.name), section(hints[declared.name])
        names = declared.metadata.get(ALLOWED)
        if isinstance(value, Mapping) and inner is not None:
            restored[declared.name] = unswitched(value, inner)
        elif isinstance(value, bool) and SWITCH in declared.metadata:
            restored[declared.name] = float(value)
        elif isinstance(value, bool) and isinstance(names, tuple):
            name = "on" if value else "off"
            restored[declared.name] = name if name in names else value
    return restored


def kind_of(schema: Any, full_key: str) -> str:
    """Return the type of the value under a key such as train.betas[0], in words."""
    hint = dict(keys_with_types(schema))[full_key.partition("[")[0]]
    return next(KINDS[kind] for kind in (hint, *get_args(hint)) if kind in KINDS)


structured = cache(OmegaConf.structured)  # of a class, for `merge`, which copies it; takes a third of `load_config`


def typed(schema: Any, values: Mapping[str, Any], where: str) -> Any:
    """Return `values` over the defaults of the dataclass `schema` (or its class), with names, types and bounds checked.

    `where` is put before each key in an error.
    """
    kind = schema if isinstance(schema, type) else type(schema)
    check_keys(values, kind, where)
    try:
        defaults = structured(schema) if schema is kind else OmegaConf.structured(schema)
        merged = OmegaConf.merge(defaults, unswitched(values, kind))
        missing = [f"{where}{key}" for key in sorted(OmegaConf.missing_keys(merged))]
        if missing:
            raise UserError(f"{', '.join(missing)} must be given")
        # Before `to_object`, which runs __post_init__: its errors could not name `where`.
        check(kind, cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True)), where)
        return OmegaConf.to_object(merged)
    except ValidationError as error:
        key = str(error.full_key)
        sentence = f"{short(where + key)} is {shown(error.value)}; it must be {kind_of(kind, key)}"
        raise UserError(sentence) from error
    except OmegaConfBaseException as error:
        raise UserError(f"{short(f'{where}{error.full_key}')}: {short(str(error).splitlines()[0])}") from error
