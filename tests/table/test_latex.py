from typing import Any

import pytest

from harness.statistics import Estimate
from harness.table import latex
from harness.table.compare import Comparison

NONE = dict.fromkeys(("iqm", "difference", "p", "p_holm", "improvement", "detectable", "rank_best", "rank_worst"))


def place(method: str, mean: Estimate | None, best: bool, **changes: Any) -> Comparison:
    kept: dict[str, Any] = {"task": "aime_24", "model": "tiny", "score": "Avg@K", "seeds": 3, **NONE, **changes}
    return Comparison(method=method, baseline="grpo", mean=mean, best=best, **kept)


def test_the_table_of_a_paper() -> None:
    found = [
        place("grpo", Estimate(0.25, 0.2, 0.3), best=False),
        place("clip_b & 50%", Estimate(0.5, 0.4, 0.6), best=True),
        place("grpo", Estimate(0.75), best=True, score="Pass@16"),
        place("clip_b & 50%", None, best=False, score="Pass@16"),
        place("grpo", Estimate(0.125, 0.0, 0.25), best=True, task="all tasks"),
    ]
    assert latex.render_latex(found).splitlines()[2:] == [
        r"\begin{tabular}{lccc}",
        r"\toprule",
        r"Method & aime\_24 Avg@K & aime\_24 Pass@16 & all tasks Avg@K \\",
        r"\midrule",
        r"grpo & $0.250 \pm 0.050$ & $\mathbf{0.750}$ & $\mathbf{0.125 \pm 0.125}$ \\",
        r"clip\_b \& 50\% & $\mathbf{0.500 \pm 0.100}$ & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_methods_of_another_trainer_are_marked() -> None:
    found = [place("grpo", Estimate(0.25), best=False), place("clip_b", Estimate(0.5), best=True, trainer="trl")]
    names = [line.partition(" & ")[0] for line in latex.render_latex(found).splitlines() if "$" in line]
    assert names == ["grpo", r"clip\_b (trained by trl)"]


def test_each_model_has_a_table() -> None:
    found = [place("grpo", Estimate(0.5), best=True, model=model) for model in ("one", "two\nlines")]
    text = latex.render_latex(found)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert [line[:12] for line in text.splitlines() if "means" in line] == ["% one: means", "% two lines:"]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b", r"a\_b"),
        ("50% & $1 #2", r"50\% \& \$1 \#2"),
        ("{x}", r"\{x\}"),
        ("\\input", r"\textbackslash{}input"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("a|b<c>", r"a\textbar{}b\textless{}c\textgreater{}"),
        ("[a]*", "{[}a]{*}"),
        ("größe", "größe"),
        ("a\x1b\u202eb", r"a\textbackslash{}x1b\textbackslash{}u202eb"),
        ("^^5cinput{x}", r"\textasciicircum{}\textasciicircum{}5cinput\{x\}"),
    ],
)
def test_special_signs_are_letters(text: str, escaped: str) -> None:
    assert latex.as_latex(text) == escaped


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_name_ends_no_comment(end: str) -> None:
    text = latex.render_latex([place("grpo", Estimate(0.5), best=True, model=f"one{end}\\input{{x}}")])
    assert [line for line in text.splitlines() if "input" in line and not line.startswith("% one")] == []
    assert all(sign not in text for sign in end if sign != "\n")
