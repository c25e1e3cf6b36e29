"""Tables in terminals of some width, and text that is kept away from a terminal."""

from __future__ import annotations

import io
from unittest.mock import Mock

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base import terminal
from harness.base.errors import UserError
from harness.base.terminal import Column, SafeConsole, fitting, folded, further, visible, width_of

LINES = [
    ["method", "Avg@K", "Pass@2", "seeds"],
    ["grpo", "0.250 ±0.100", "0.5", "3 of 3"],
    ["entropy_bonus", "0.5", "0.75 ±0.1", "1 of 3"],
]
SIZES = [13, 12, 9, 6]


@pytest.mark.parametrize("between", [1, 3])
@pytest.mark.parametrize("around", [0, 2])
def test_columns_go_in_their_order_until_the_rest_fits(between: int, around: int) -> None:
    def needed(columns: list[int]) -> int:
        return sum(SIZES[i] for i in columns) + between * (len(columns) - 1) + around

    for width in range(5, 60):
        expected = next((kept for kept in ([0, 1, 2, 3], [0, 1, 3], [0, 1]) if needed(kept) <= width), [0])
        assert fitting(LINES, width, [["Pass@2"]], between=between, around=around) == expected
    assert fitting(LINES, None, [["Pass@2"]], between=between, around=around) == [0, 1, 2, 3]


def test_fitting_drops_columns() -> None:
    lines = [list("abcdef"), ["1"] * 6]
    goes = [["b", "d"], ["unknown"]]
    result = {width: fitting(lines, width, goes, between=1, around=0) for width in (11, 10, 7, 6, 5, 4)}
    assert result == {11: [0, 1, 2, 3, 4, 5], 10: [0, 2, 4, 5], 7: [0, 2, 4, 5], 6: [0, 2, 4], 5: [0, 2, 4], 4: [0, 2]}


def test_wide_letters_take_two_columns() -> None:
    lines = [["a", "b", "c"], ["漢字", "x", "x"]]
    assert fitting(lines, 8, between=1, around=0) == [0, 1, 2]
    assert fitting(lines, 7, between=1, around=0) == [0, 1]


def test_fitting_with_a_folding_text() -> None:
    lines = [["cell", "state", "reason"], ["grpo", "failed", "no " * 100]]
    assert fitting(lines, 37, between=1, around=0) == [0, 1]
    assert fitting(lines, 4 + 6 + 24 + 2, between=1, around=0, folding=["reason"]) == [0, 1, 2]
    assert fitting(lines, 4 + 6 + 24 + 1, between=1, around=0, folding=["reason"]) == [0, 1]


def shown(width: int, **given: object) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    columns = [Column(name) for name in LINES[0]] + [Column("reason", folds=True)]
    rows = [[*LINES[1], ""], [*LINES[2], "its process ended by SIGKILL (out of memory?), as it has done before"]]
    terminal.show_table(console, columns, rows, [["Pass@2"], ["seeds"]], **given)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def test_show_table_in_any_width() -> None:
    for width in range(18, 140):
        lines = shown(width)
        assert max(map(len, lines)) <= width, width
        text = "".join("".join(lines).split())
        for value in ("entropy_bonus", "0.250±0.100", "(outofmemory?)"):
            assert value in text or width < 90, (width, lines)
        assert "Pass@2" in text
    assert shown(100) == [
        " method         Avg@K         Pass@2     seeds   reason                                             ",
        " grpo           0.250 ±0.100  0.5        3 of 3                                                     ",
        " entropy_bonus  0.5           0.75 ±0.1  1 of 3  its process ended by SIGKILL (out of memory?), as  ",
        "                                                 it has done before                                 ",
    ]
    assert shown(70)[-1] == "further columns (in a wider terminal or a pipe): Pass@2"


def test_show_table_in_a_pipe() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, width=160, soft_wrap=True)
    assert width_of(console) is None
    terminal.show_table(console, [Column("a"), Column("b", folds=True)], [["x", "word " * 25], ["y", "so long" * 99]])
    header, *lines = out.getvalue().splitlines()
    assert header.split() == ["a", "b"]
    assert [line.split() for line in lines] == [["x", *["word"] * 25], ["y", *("so long" * 99).split()]]


def test_further() -> None:
    assert further(["a", "b, c", "d"], [0], "--format csv") == "further columns (--format csv): b, c; d"
    assert further(["a", "b"], [0, 1], "--format csv") == ""


def test_prose_ends_its_lines_between_words() -> None:
    assert folded("one two three", 8) == "one two\nthree"
    assert folded("one two three", None) == "one two three"


STEERING = ["\x1b[2J", "\x1b]0;title\x07", "\r", "\x00", "\x7f", "\x9b31m", "\u202e", "\u2066", "\x08", "\u200b"]
STEERING += ["\u061c", "\u2028", "\ufeff", "\U000e0041", "\ud800"]


@pytest.mark.parametrize("text", STEERING)
def test_visible_control_characters(text: str) -> None:
    clean = visible(f"a{text}b\tc\nd")
    assert clean.startswith("a\\")
    assert clean.endswith("b\tc\nd")
    assert all(letter.isprintable() or letter in "\t\n" for letter in clean)
    assert visible(clean) == clean


def test_visible_plain_text() -> None:
    text = "Größe 漢字 🙂 ±▲▼ \\x1b é\u0301\u200d"
    assert visible(text) == text


@pytest.mark.parametrize("text", STEERING)
@pytest.mark.parametrize("how", ["string", "text", "table", "title"])
def test_safe_console_prints_no_control_characters(text: str, how: str) -> None:
    hostile = f"a{text}b"
    table = Table("name", title=Text(hostile) if how == "title" else None)
    table.add_row(Text(hostile), style="red")
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system=None, markup=False, highlight=False, width=60)
    console.print({"string": hostile, "text": Text(hostile)}.get(how, table))
    assert all(letter.isprintable() or letter == "\n" for letter in out.getvalue())


def test_closed_pipe_is_left_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "write", Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        SafeConsole(file=out).print("a line")


def test_colours_of_our_own_stay() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system="standard", legacy_windows=False)
    console.print(Text("failed \x1b[31m", style="red"))
    assert out.getvalue() == "\x1b[31mfailed \\x1b[31m\x1b[0m\n"


def test_ask_without_an_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())  # at its end, as after Ctrl-D
    with pytest.raises(UserError, match=r"^the question was not answered, and nothing was done$"):
        terminal.ask("Remove these? ")
    assert capsys.readouterr().out == "Remove these? \n"
