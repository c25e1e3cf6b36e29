"""`entrobench status` on cells that the configuration does not include."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.status import leftover_lines

FOLDER = Path("results/demo")


def test_with_overrides_deleting_is_not_mentioned() -> None:
    given = argparse.Namespace(config="demo", overrides=["train.lr=1e-4"])
    lines = leftover_lines(FOLDER, 4, 1, given)
    assert lines == [
        "4 more cells in results/demo have other settings than these overrides give",
        "1 earlier attempts at cells are kept in results/demo",
    ]


def test_without_overrides_clean_is_named() -> None:
    given = argparse.Namespace(config="demo", overrides=[])
    assert leftover_lines(FOLDER, 0, 0, given) == []
    first, last = leftover_lines(FOLDER, 4, 0, given)
    assert first == "4 more cells in results/demo have other settings, from overrides or an edited configuration"
    assert last == "`entrobench clean demo` lists them, and asks before it deletes them"
