"""The problem sets: every known trap of the published copies, on invented rows and on the real files."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import loopback
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import end_of, run_command, run_python
from places import REAL, REPOSITORY

from harness.base import files
from harness.base.errors import UserError
from tasks.data import cache as kept
from tasks.data import check, clean, overlap, prepare, sets, sources
from tasks.data.sets import Set, Split

real = pytest.mark.skipif(
    not (REAL / "dapo_math_17k.jsonl").is_file(), reason="the real problem sets are not here; set ENTROBENCH_DATA"
)

Rows = list[tuple[str, str]]  # (problem, answer)
DOCS = str(REPOSITORY / "docs")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ENTROBENCH_DATA", raising=False)
    return tmp_path / "cache"


def invented(number: int, seed: int = 0) -> Rows:
    """Problems that have nothing in common with each other."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(5000)]
    return [(" ".join(draw.choices(words, k=25)) + f" {i}?", str(draw.randrange(-99, 1000))) for i in range(number)]


def verl(problem: str, answer: Any, wrap: bool = True) -> dict[str, Any]:
    content = clean.WRAPPER[0] + problem + clean.WRAPPER[1] if wrap else problem
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": content, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b"},
    }


def processed(problem: str, answer: str) -> dict[str, Any]:
    whole = verl(problem, answer)
    return {"prompt": problem, "solution": answer, "source_prompt": whole["prompt"]} | {
        key: whole[key] for key in ("data_source", "ability", "reward_model", "extra_info")
    }


FORMS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "ours": lambda p, a: {"id": "x", "problem": p, "answer": a, "source": "s"},
    "HuggingFaceH4/aime_2024": lambda p, a: {"id": 6, "problem": p, "solution": "So \\boxed{1}.", "answer": a.zfill(3)},
    "Maxwell-Jia/AIME_2024": lambda p, a: {"ID": "2024-I-1", "Problem": p, "Solution": "...", "Answer": int(a)},
    "math-ai/aime24": lambda p, a: {"id": 0, "problem": p, "solution": f"\\boxed{{{a}}}"},
    "BytedTsinghua-SIA/AIME-2024": verl,
    "math-ai/amc23": lambda p, a: {"id": 0, "answer": float(a), "url": "https://x/2023_AMC_12A_1", "question": p},
    "openai/gsm8k": lambda p, a: {"question": p, "answer": f"First <<1+1=2>>2.\n#### {int(a):,}"},
    "open-r1/DAPO-Math-17k-Processed": processed,
    "verl without the prompt": lambda p, a: verl(p, a, wrap=False),
}


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:  # as many copies are written: without escapes
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def ours(path: Path, problems: Rows) -> Path:
    return write(path, [FORMS["ours"](problem, answer) for problem, answer in problems])


def cleaned(rows: Rows, **options: Any) -> tuple[dict[str, str], clean.Counts]:
    counts = clean.Counts()
    return clean.clean(Counter(rows), clean.integer_answer, counts, **options), counts


# The forms


@pytest.mark.parametrize("suffix", sources.SUFFIXES)
@pytest.mark.parametrize("form", FORMS)
def test_read_file_of_every_form(form: str, suffix: str, tmp_path: Path) -> None:
    expected = [("Find $x$.", "25"), ("Find\n$y$  now.", "1234")]
    file = write(tmp_path / f"set{suffix}", [FORMS[form](*row) for row in expected])
    raw = sources.read_file(file)
    assert list(clean.clean(raw, clean.integer_answer, clean.Counts()).items()) == expected


def test_answers_in_json_keep_their_digits_next_to_any_rows(tmp_path: Path) -> None:
    answers = [22099999999999998951424, "025", 2.0, -3]
    file = write(tmp_path / "a.jsonl", [{"problem": f"Find {a}.", "answer": a} for a in answers])
    assert [answer for _, answer in sources.read_file(file)] == ["22099999999999998951424", "025", "2.0", "-3"]


def test_jsonl_is_split_at_newlines_only(tmp_path: Path) -> None:
    problem = "One\u2028two\u2029three\x85four\x1cfive."
    file = write(tmp_path / "a.jsonl", [FORMS["ours"](problem, "1"), FORMS["ours"]("Next.", "2")])
    assert len(file.read_text().splitlines()) > 2, "the trap is set"
    assert list(sources.read_file(file)) == [(problem, "1"), ("Next.", "2")]


def test_repeated_rows_are_counted_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BATCH", 7)
    block = invented(20)
    block += [*block[:5], (block[3][0], "1000")]
    file = write(tmp_path / "raw.parquet", [verl(*row) for row in block * 10])
    raw = sources.read_file(file)
    whole = [(clean.WRAPPER[0] + problem + clean.WRAPPER[1], answer) for problem, answer in block * 10]
    assert raw == Counter(whole)
    assert list(raw) == list(dict.fromkeys(whole)), "in the order of first appearance"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", '{"problem": "x", "answer": "1"}\n{"problem', "line 2 of .* is not valid JSON"),
        ("a.jsonl", '{"text": "x", "label": "1"}\n', "row 1 of .* has no problem and answer .*it has text, label"),
        ("a.jsonl", '{"problem": "x", "answer": null}\n', "row 1 of .* has no problem and answer"),
        ("a.jsonl", "[1]\n", "row 1 of .* has no problem and answer .*it has list"),
        ("a.parquet", "PAR0", "cannot be read as Parquet"),
    ],
)
def test_read_file_names_an_unreadable_file(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=sentence):
        sources.read_file(tmp_path / name)


@real
@pytest.mark.parametrize(
    ("sample", "name", "first"),
    [
        ("HuggingFaceH4__MATH-500.test.jsonl", "math500", "\\left( 3, \\frac{\\pi}{2} \\right)"),
        ("HuggingFaceH4__aime_2024.train.jsonl", "aime24", "204 113 371 25 73"),
        ("MathArena__aime_2025.train.jsonl", "aime25", "70 588 16"),
        ("math-ai__amc23.test.jsonl", "amc23", "27 36 45"),
        ("openai__gsm8k.main.test.jsonl", "gsm8k", "18 3 70000"),
        ("reconstructed__BytedTsinghua-SIA__DAPO-Math-17k.train.jsonl", "dapo_math", "34 113 -3"),
        ("reconstructed__open-r1__DAPO-Math-17k-Processed.en.train.jsonl", "dapo_math", "34 113 -3"),
        ("svs_dapo_verl_style.jsonl", "dapo_math", "34 113 -3"),
    ],
)
def test_samples_of_the_hubs_own_files(sample: str, name: str, first: str) -> None:
    entry = sets.SETS[name]
    raw = sources.read_file(REAL / "raw_samples" / sample)
    result = clean.clean(raw, entry.answer, clean.Counts())
    assert (next(iter(result.values())) if name == "math500" else " ".join(result.values())) == first
    published = {row["problem"]: row["answer"] for file in REAL.glob("*.jsonl") for row in lines(file)}
    folded = {clean.fold(problem): answer for problem, answer in published.items()}
    assert [folded[clean.fold(problem)] for problem in result] == list(result.values())
    assert sample in [file.name for file in sources.local_files(entry.source, REAL / "raw_samples")]


def lines(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().split("\n") if line]


# Cleaning


@pytest.mark.parametrize(
    "problem", ["Solve the system.", "Let f be as above.", "Answer $n$", 'What is "Answer:".', "eth Solver", "a\n\nb"]
)
def test_clean_drops_prompts(problem: str) -> None:
    result, counts = cleaned([(clean.WRAPPER[0] + problem + clean.WRAPPER[1], "1"), ("Bare.", "2")])
    assert list(result) == [problem, "Bare."]
    assert counts.repaired == {clean.UNWRAPPED: 1}


@pytest.mark.parametrize(
    ("damaged", "whole", "mended"),
    [
        ("in the form \frac{m}{n}, or \x0crac12", "in the form \\frac{m}{n}, or \\frac12", ["\\frac restored"]),
        (
            "$2 \times 3$ and $\triangle A B$",
            "$2 \\times 3$ and $\\triangle A B$",
            ["\\times restored", "\\triangle restored"],
        ),
        ("$a_1,\text{...},a_n$", "$a_1,\\text{...},a_n$", ["\\text restored"]),
        ("$P=\beta$, $\nabla ABD$", "$P=\\beta$, $\\nabla ABD$", ["\\beta restored", "\\nabla restored"]),
        ("for\n\tdraw(x);\n\ttimestep", "for\n\tdraw(x);\n\ttimestep", []),
        ("$$\nu = 3$$ \ne=(5,7)", "$$\nu = 3$$ \ne=(5,7)", []),
        ("fi\fve of the \ffirst", "five of the first", [clean.CONTROLLED]),
        ("\fnd the \frst, de\fne, satis\fes", "find the first, define, satisfies", [clean.UNLIGATED]),
        ("so \f\fand $a \x14\\le b \x01 c$\x88", "so and $a \\le b  c$", [clean.CONTROLLED]),
        ("$m^2=\f\\frac{p}{q}$", "$m^2=\\frac{p}{q}$", [clean.CONTROLLED]),
        ("  whole \n", "whole", []),
    ],
)
def test_repair(damaged: str, whole: str, mended: list[str]) -> None:
    assert clean.repair(damaged) == (whole, mended)
    assert clean.repair(whole) == (whole, []), "and nothing is mended twice"


@pytest.mark.parametrize(
    ("given", "form"),
    [
        *((text, "25") for text in ("025", "25", "25.0", " 25 ", "$25$", "+25")),
        *((text, "25") for text in ("\\boxed{25}", "25^\\circ", "25^{\\circ}")),
        ("336^\\circ", "336"),
        ("so \\boxed{1} and \\boxed{\\mathrm{x}}", None),
        ("first \\boxed{3}, then \\boxed{{4}}", None),
        ("\\boxed{204}.", "204"),
        ("2 + 2 = <<2+2=4>>4\n#### 1,234,567", "1234567"),
        ("70,00", None),
        ("-3", "-3"),
        ("-0", "0"),
        ("000", "0"),
        ("22099999999999998951424", "22099999999999998951424"),
        ("9" * 5000, "9" * 5000),
        ("\\frac{1}{2}", None),
        ("2.5", None),
        ("٣", None),
        ("", None),
    ],
)
def test_integers_have_one_form(given: str, form: str | None) -> None:
    assert clean.integer_answer(given) == form


def test_clean_counts_every_row() -> None:
    rows = [
        *[("What is  $x$?", "7"), ("What is $x$?", "07"), ("What is $x$?", "7"), (" What is\n$x$? ", "7")],
        *[("Which?", "1"), ("Which?", "2"), ("Which? ", "1")],
        *[("$\\frac{2020}{6063}$", "8083"), ("12", "3"), ("", "1")],
        *[("How?", ""), ("Why?", "x")],
        ("Is $9^{2}$?", "81"),
    ]
    result, counts = cleaned(rows)
    assert result == {"What is  $x$?": "7", "Is $9^{2}$?": "81"}
    # Four rows of one problem in three spellings, of which one is kept.
    copies, refused = {clean.COPY: 1, clean.SPACED_COPY: 2}, {clean.NO_PROBLEM: 3, clean.NO_ANSWER: 2}
    assert +counts.dropped == copies | {clean.CONFLICT: 3} | refused
    assert counts.rows == len(rows) == len(result) + counts.dropped.total()


def test_clean_of_a_copy_without_one_answer() -> None:
    conflict = clean.problem_digest("Which one?")[:12]
    result, counts = cleaned([("Which \n one?", "1"), ("Other?", "2")], conflicts=[conflict])
    assert result == {"Other?": "2"}
    assert +counts.dropped == {clean.CONFLICT: 1}


# DAPO: what is held out


def brute_force_held_out(problems: list[str]) -> set[str]:
    return {p for p in problems if hashlib.sha256(" ".join(p.split()).encode()).hexdigest() < "0796"}


def test_prepare_sets_holds_out_by_problem(tmp_path: Path) -> None:
    problems = invented(1500)
    ours(tmp_path / "dapo.jsonl", problems)
    shuffled = random.Random(1).sample(problems, len(problems))
    write(tmp_path / "raw" / "dapo.parquet", [verl(p.replace(" ", "  "), a) for p, a in shuffled + shuffled[:100]])
    expected = brute_force_held_out([problem for problem, _ in problems])
    assert 20 < len(expected) < 80
    prepare.prepare_sets(["dapo_math"], str(tmp_path / "dapo.jsonl"))
    first, trained = kept.card("dapo_math"), kept.problem_rows("dapo_math", "train")
    assert {row["problem"] for row in trained} == {problem for problem, _ in problems} - expected
    assert first["dropped"] == {sets.HELD_OUT: len(expected)}
    prepare.prepare_sets(["dapo_math"], str(tmp_path / "raw" / "dapo.parquet"))
    second = kept.card("dapo_math")
    assert second["fingerprint"] == first["fingerprint"]
    assert [row["id"] for row in kept.problem_rows("dapo_math", "train")] == [row["id"] for row in trained]
    assert second["dropped"] == {sets.HELD_OUT: len(expected), clean.COPY: 100}
    assert second["repaired"] == {clean.UNWRAPPED: 1600}


def test_prepare_sets_without_overlap(tmp_path: Path) -> None:
    problems = invented(300)
    held = sorted(brute_force_held_out([problem for problem, _ in problems]))
    words = held[0].split()
    copies = [held[0].upper() + "!", "As is known, " + held[1], " ".join(["now", *words[3:], "then"])]
    assert not brute_force_held_out(copies)
    ours(tmp_path / "dapo.jsonl", problems + [(copy, "1") for copy in copies])
    prepare.prepare_sets(["dapo_math"], str(tmp_path))
    assert {row["problem"] for row in kept.problem_rows("dapo_math", "train")} == {p for p, _ in problems} - set(held)
    assert kept.card("dapo_math")["dropped"] == {sets.HELD_OUT: len(held), sets.NEAR_HELD_OUT: 3}


@pytest.fixture(scope="module")
def dapo() -> list[dict[str, str]]:
    return lines(REAL / "dapo_math_17k.jsonl")


@real
def test_dapo_has_the_damage_that_is_known_and_no_other(dapo: list[dict[str, str]]) -> None:
    result, counts = cleaned([(row["problem"], row["answer"]) for row in dapo])
    assert counts.rows == 17917
    # 627 rows repeat a problem literally and 102 but for white space, and mending makes two more equal. Of the
    # 24 rows of the twelve conflicts, twelve are among the 729, which leaves 719 copies.
    literal = len(dapo) - len({row["problem"] for row in dapo})
    folded = len({" ".join(row["problem"].split()) for row in dapo})
    assert (literal, folded) == (627, 17188)
    assert counts.dropped == {clean.COPY: 616, clean.SPACED_COPY: 103, clean.CONFLICT: 24, clean.NO_PROBLEM: 1}
    assert len(result) == folded - 2 - 12 - 1 == 17173
    assert counts.repaired == {
        "\\frac restored": 606,
        "\\text restored": 4,
        "\\nabla restored": 2,
        "\\triangle restored": 2,
        "\\times restored": 1,
        "\\beta restored": 1,
        clean.UNLIGATED: 6,
        clean.CONTROLLED: 30,
    }
    assert not any(re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", problem) for problem in result)
    assert all(re.fullmatch("-?[1-9][0-9]*|0", answer) for answer in result.values())


PRINTS = {
    "dapo500": "e525a98f6b8d71b0d2cc391a440f0e1f7ffc596e481f55bdf6f60312913ce455",
    "dapo_math": "d7bdbe5e4607e678dd88351148857131ccc49c755fb91a74e41d0ca6bcadf806",
}


@pytest.mark.slow
@real
@pytest.mark.parametrize("form", ["raw", pytest.param("processed", marks=pytest.mark.long)])
def test_dapo500_is_the_same_from_every_form_of_dapo(form: str, dapo: list[dict[str, str]], tmp_path: Path) -> None:
    rows = [(row["problem"], row["answer"]) for row in dapo]
    records = (
        [verl(*row) for row in rows[::-1]]
        if form == "raw"
        else [processed(*row) for row in dict(rows).items()]  # that copy has each text once
    )
    cards = prepare.prepare_sets(["dapo500", "dapo_math"], str(write(tmp_path / "dapo.parquet", records)))
    assert {about["name"]: about["fingerprint"] for about in cards} == PRINTS


# Overlap


def brute_force_matches(evaluated: list[str], trained: list[str]) -> dict[tuple[int, int], tuple[bool, float]]:
    """Each pair by the definition, with no index."""

    def words(text: str) -> list[str]:
        return re.findall(r"[a-z]+|[0-9]+|[\u4e00-\u9fff]", text.lower())

    def grams(text: str) -> set[str]:
        result = words(text)
        return {" ".join(result[i : i + 8]) for i in range(max(1, len(result) - 7))}

    frequency = Counter(gram for text in trained for gram in grams(text))
    result = {}
    for i, mine in enumerate(evaluated):
        telling = {gram for gram in grams(mine) if frequency[gram] <= 20}
        for j, other in enumerate(trained):
            contained = "".join(words(mine)) in "".join(words(other))
            share = len(telling & grams(other)) / len(telling) if telling else 0.0
            if contained or share >= 0.5:
                result[i, j] = (contained, share)
    return result


def test_overlap_is_what_its_definition_says() -> None:
    draw = random.Random(3)
    texts = [problem for problem, _ in invented(60)]
    phrase = "The answer is in the form of a fraction in lowest terms so give the sum of both numbers now"
    trained = [text + " " + phrase for text in texts[:30]]
    for text in texts[30:]:
        words = text.split()
        keep = draw.randrange(len(words))
        trained.append(" ".join(words[:keep] + draw.sample(words, len(words) - keep)))
    trained += ["求六个元素的置换群 $S_{6}$ 中 6 阶元素的个数。", "Is $2+2$ four?"]
    evaluated = [
        *texts,
        "Short " + phrase,
        "求六个元素的置换群 $S_6$ 中 $6$ 阶元素的个数",
        "Is $2 + 2$ four",
        "Is 22 fourty",
    ]
    expected = brute_force_matches(evaluated, trained)
    actual = {(m.evaluated, m.trained): (m.contained, m.share) for m in overlap.matches(evaluated, trained)}
    assert actual.keys() == expected.keys()
    assert all(actual[pair] == pytest.approx(expected[pair]) for pair in expected)
    assert all((i, i) in actual and actual[i, i][0] for i in range(30)), "a problem within a longer text"
    assert 5 < sum((i, i) in actual for i in range(30, 60)) < 25, "near copies fall on both sides of the threshold"
    assert not any(i == 60 for i, _ in actual), "a phrase that is everywhere is no evidence"
    assert {(61, 60), (62, 61)} <= actual.keys()
    assert (63, 61) not in actual


# Preparing: the cache, the cards, the hub


SMALL = invented(4, seed=9)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A world in which aime24 and amc23 have four problems, gsm8k two splits of two; a folder with copies of them."""
    digest = kept.digest_lines(answer for _, answer in SMALL)[:16]
    for name, entry in {
        "aime24": Set("aime24", {"test": Split(4, digest)}),
        "amc23": Set("amc23", {"test": Split(4)}),
        "gsm8k": Set("gsm8k", {"train": Split(2), "test": Split(2)}),
    }.items():
        monkeypatch.setitem(sets.SETS, name, entry)
    folder = tmp_path / "copies"
    ours(folder / "aime24.jsonl", SMALL)
    ours(folder / "amc23.jsonl", invented(4, seed=8))
    ours(folder / "gsm8k_train.jsonl", SMALL[:2])
    ours(folder / "gsm8k_test.jsonl", SMALL[2:])
    ours(folder / "old" / "aime_2024.jsonl", invented(9, seed=7))
    return folder


def test_prepared_sets_are_read_and_not_prepared_again(small: Path) -> None:
    (about,) = prepare.prepare_sets(["aime24"], str(small))
    assert [(row["problem"], row["answer"]) for row in kept.problem_rows("aime24")] == SMALL
    assert {tuple(row) for row in kept.problem_rows("aime24")} == {("id", "problem", "answer", "source")}
    assert len({row["id"] for row in kept.problem_rows("aime24")}) == 4
    assert about == kept.card("aime24")
    assert about["source"] == {"files": {"aime24.jsonl": files.sha256_of(small / "aime24.jsonl")}}
    assert (about["problems"], about["rows"], about["dropped"], about["repaired"]) == ({"test": 4}, 4, {}, {})
    folded = sorted(json.dumps([" ".join(problem.split()), answer]) for problem, answer in SMALL)
    assert about["fingerprint"] == hashlib.sha256("\n".join(folded).encode()).hexdigest()
    parquet = kept.folder() / about["file"]
    assert about["sha256"] == hashlib.sha256(parquet.read_bytes()).hexdigest()
    before = {path: path.stat().st_mtime_ns for path in kept.folder().iterdir()}
    messages: list[str] = []
    prepare.prepare_sets(["aime24"], str(small), messages.append)
    assert messages == [], "what is here is not prepared again"
    assert {path: path.stat().st_mtime_ns for path in kept.folder().iterdir()} == before


def test_prepare_sets_by_default(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTROBENCH_DATA", str(small))
    assert [about["name"] for about in prepare.prepare_sets()] == ["aime24", "amc23", "gsm8k"]
    assert [row["problem"] for row in kept.problem_rows("gsm8k", "train")] == [problem for problem, _ in SMALL[:2]]
    assert [row["problem"] for row in kept.problem_rows("gsm8k")] == [problem for problem, _ in SMALL[2:]]


def test_prepare_sets_of_a_hub_folder(small: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    aime = [FORMS["HuggingFaceH4/aime_2024"](problem, answer) for problem, answer in invented(4, seed=5)]
    write(hub / "HuggingFaceH4" / "aime_2024" / "data" / "train-00000-of-00001.parquet", aime)
    ours(hub / "openai" / "gsm8k" / "main" / "train-00000.jsonl", SMALL[:2])
    assert [about["name"] for about in prepare.prepare_sets(["gsm8k"], str(hub))] == ["gsm8k"]
    with pytest.raises(UserError, match="aime24 test has an answer that differs from all other copies"):
        prepare.prepare_sets(["aime24"], str(hub / "HuggingFaceH4" / "aime_2024"))
    with pytest.raises(UserError, match="prepared from a copy without the split test"):
        kept.problem_rows("gsm8k", "test")


def test_prepare_sets_refuses_other_problems(small: Path, tmp_path: Path) -> None:
    prepare.prepare_sets(["aime24"], str(small))
    wrong = ours(tmp_path / "wrong.jsonl", [*SMALL[:3], (SMALL[3][0], "480")])
    with pytest.raises(UserError, match="has an answer that differs from all other copies"):
        prepare.prepare_sets(["aime24"], str(wrong))
    short = ours(tmp_path / "short.jsonl", SMALL[:3])
    with pytest.raises(UserError, match="aime24 test must have 4 problems, but this copy has 3"):
        prepare.prepare_sets(["aime24"], str(short))
    kept_answers = [row["answer"] for row in kept.problem_rows("aime24")]
    assert kept_answers == [answer for _, answer in SMALL], "what was there stays"


def test_damaged_files_and_cards_are_prepared_again(small: Path) -> None:
    (about,) = prepare.prepare_sets(["aime24"], str(small))
    card = kept.folder() / "aime24.json"
    damaged = {
        kept.folder() / about["file"]: f"the file of aime24 in {kept.folder()} is damaged",
        card: f"{card} is damaged: it is not JSON",
    }
    for path, sentence in damaged.items():
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(UserError, match=f"^{sentence}; run `entrobench data prepare aime24`$"):
            kept.problem_rows("aime24")
        assert prepare.prepare_sets(["aime24"], str(small)) == [about] == [kept.card("aime24")]
        assert len(kept.problem_rows("aime24")) == 4


KILLED = """
import os, signal, sys
from tasks.data.prepare import prepare_sets
from tasks.data.sets import SETS, Set, Split
SETS["aime24"] = Set("aime24", {"test": Split(4)})
replace, left = os.replace, int(sys.argv[2])
def stop(*paths):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)
os.replace = stop
prepare_sets(["aime24"], sys.argv[1])
"""


@pytest.mark.processes
@pytest.mark.parametrize("renames", [0, 1])
def test_prepare_sets_when_killed(renames: int, small: Path, tmp_path: Path) -> None:
    prepare.prepare_sets(["aime24"], str(small))
    new = ours(tmp_path / "new" / "aime24.jsonl", [(problem + " new", answer) for problem, answer in SMALL])
    run_python("-c", KILLED, str(new), str(renames), cwd=tmp_path, code=-9)
    assert [row["problem"] for row in kept.problem_rows("aime24")] == [problem for problem, _ in SMALL]
    prepare.prepare_sets(["aime24"], str(new))
    assert [row["problem"] for row in kept.problem_rows("aime24")] == [problem + " new" for problem, _ in SMALL]
    left = {path.name for path in kept.folder().iterdir()}
    assert left == {"aime24.json", "aime24.lock", kept.card("aime24")["file"]}, "and no rest of the killed process"


def test_sources_have_whole_revisions() -> None:
    assert all(re.fullmatch("[0-9a-f]{40}", source.revision) for source in sources.SOURCES.values())


def test_prepare_sets_without_a_network(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> str:
        raise ConnectionError("Couldn't reach it on the Hub (ConnectError).\nPlease check your connection.")

    prepare.prepare_sets(["aime24"], str(small))
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError) as caught:
        prepare.prepare_sets(["aime24"])
    assert str(caught.value) == (
        "could not download HuggingFaceH4/aime_2024 from the Hugging Face Hub (Couldn't reach it on the Hub "
        "(ConnectError); without a network give the folder of a copy, or set HF_ENDPOINT to a mirror "
        "(docs/trouble.md)); sets that were prepared before remain usable, and --from reads a local copy"
    )
    assert len(kept.problem_rows("aime24")) == 4


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("dapo_math", {"train": "data/dapo-math-17k.parquet"}),
        pytest.param(
            "gsm8k",
            {split: f"main/{split}-00000-of-00001.parquet" for split in ("train", "test")},
            marks=pytest.mark.long,
        ),
    ],
)
def test_prepare_with_the_hubs_client(name: str, files: dict[str, str], tmp_path: Path, cache: Path) -> None:
    source = sources.SOURCES[sets.SETS[name].source]
    form = FORMS["BytedTsinghua-SIA/AIME-2024" if name == "dapo_math" else "ours"]
    rows = {split: invented(30, seed=len(split)) for split in files}
    held = {"README.md": b"---\nlicense: mit\n---\n", "weights.bin": b"never asked for"}
    if name == "gsm8k":
        held["README.md"] = GSM8K_README
        held["socratic/train-00000-of-00001.parquet"] = b"not of this configuration"
    for split, file in files.items():
        copy = write(tmp_path / file, [form(problem, answer) for problem, answer in rows[split]])
        held[file] = copy.read_bytes()
    program = (
        "import sys, datasets\n"
        "from tasks.data import sets\n"
        "from tasks.data.prepare import prepare_sets\n"
        "[name] = sys.argv[1:]\n"
        "splits = dict.fromkeys(sets.SETS[name].splits, sets.Split())  # for any problems\n"
        "sets.SETS[name] = sets.Set(sets.SETS[name].source, splits)\n"
        "prepare_sets([name])\n"
        "datasets.load_dataset = None  # what is here is not asked for again\n"
        "prepare_sets([name])\n"
    )
    with loopback.hub("datasets", source.hub_id, held, source.revision) as (address, asked):
        run_python("-c", program, name, cwd=tmp_path, HF_HOME=str(tmp_path / "hf"), HF_ENDPOINT=address)
    assert kept.card(name)["source"] == {"hub": source.hub_id, "revision": source.revision}
    for split in files:
        assert [row["problem"] for row in kept.problem_rows(name, split)] == [p for p, _ in rows[split]]
    assert not [path for path in asked if "weights.bin" in path or "socratic" in path]


GSM8K_README = b"""---
configs:
- {config_name: main, data_files: [{split: train, path: main/train-*}, {split: test, path: main/test-*}]}
- {config_name: socratic, data_files: [{split: train, path: socratic/train-*}]}
---
"""


def test_prepare_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for constants in (huggingface_hub.constants, datasets.config):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, _, err = end_of("data", "prepare", "aime24")
    assert (code, err.count("\n")) == (2, 1)
    assert "HuggingFaceH4/aime_2024 from the Hugging Face Hub" in err


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: kept.problem_rows("aime24"), "set aime24 is not prepared; run `entrobench data prepare aime24`"),
        (lambda: kept.problem_rows("aime42"), "unknown problem set 'aime42'; .* did you mean"),
        (lambda: kept.card("amc23"), "the problem set amc23 is not prepared"),
        (lambda: prepare.prepare_sets(["math5000"], DOCS), "unknown problem set 'math5000'; .* did you mean 'math500'"),
        (lambda: prepare.prepare_sets(["aime24"], "nowhere"), "--from or ENTROBENCH_DATA is 'nowhere', which is not"),
        (lambda: prepare.prepare_sets(["math500"], DOCS), "docs contains no file of math500; its name must"),
        (lambda: prepare.prepare_sets([], DOCS), "contains no file that is named after one of the sets"),
        (check.check_overlaps, "the problem set dapo_math is not prepared"),
    ],
)
def test_data_command_mistakes(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()


def test_splits_that_are_missing(small: Path, tmp_path: Path) -> None:
    prepare.prepare_sets(["aime24"], str(small))
    with pytest.raises(UserError, match="aime24 has no split 'train'; allowed: test"):
        kept.problem_rows("aime24", "train")
    with pytest.raises(UserError, match=r"all\.jsonl is not named after a split; its name must contain train or test"):
        prepare.prepare_sets(["gsm8k"], str(ours(tmp_path / "all.jsonl", SMALL)))


def test_prepare_sets_in_a_read_only_cache(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"the cache .* cannot be written \(Not a directory\); set ENTROBENCH_CACHE"):
        prepare.prepare_sets(["aime24"], str(small))


# Checking


def test_check_overlaps(small: Path) -> None:
    prepare.prepare_sets(["aime24", "amc23"], str(small))
    assert check.flags("aime24") == [], "nothing is said of a training set that is not here"
    trained = [row for row in invented(200, seed=2) if not brute_force_held_out([row[0]])]
    near = " ".join(["where", *SMALL[1][0].split()[4:]])
    ours(small / "dapo.jsonl", [*trained, ("Well: " + SMALL[0][0], "1"), (near, "2")])
    prepare.prepare_sets(["dapo_math"], str(small))
    assert check.flags("aime24") == ["overlap with dapo_math unknown; run `entrobench data check`"]
    table = [line.split() for line in run_command("data", "check").splitlines()]
    assert ["aime24", "4", "1", "2", "contaminated"] in table
    assert ["amc23", "4", "0", "0", "clean"] in table
    assert check.flags("aime24") == ["contaminated: 2 of 4 problems are also in dapo_math, 1 of them word for word"]
    assert check.flags("amc23") == []
    assert check.flags("dapo_math") == [], "a training set is not evaluated"
    ids = [row["id"] for row in kept.problem_rows("aime24")]
    assert [pair[0] for pair in kept.card("aime24")["overlap"]["dapo_math"]["pairs"]] == ids[:2]

    shutil.copy(small / "aime24.jsonl", small / "aime24_again.jsonl")
    prepare.prepare_sets(["aime24"], str(small / "aime24_again.jsonl"))
    assert len(check.flags("aime24")) == 1, "the same problems keep what is known of them"
    ours(small / "dapo.jsonl", trained)
    prepare.prepare_sets(["dapo_math"], str(small))
    assert check.flags("aime24") == ["overlap with dapo_math unknown; run `entrobench data check`"]
    check.check_overlaps()
    assert check.flags("aime24") == []


@pytest.mark.long
@real
def test_prepare_and_check_on_the_real_sets(dapo: list[dict[str, str]]) -> None:
    run_command("data", "prepare", "--from", str(REAL))
    printed = run_command("data", "check")
    table = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.strip()}
    assert table["amc23"] == ["40", "11", "22", "contaminated"]
    assert table["math500"] == ["500", "7", "25", "contaminated"]
    for name, problems in {"aime24": "30", "aime25": "30", "gsm8k": "1319", "dapo500": "500"}.items():
        assert table[name] == [problems, "0", "0", "clean"]
        assert check.flags(name) == []
    held, trained = kept.problem_rows("dapo500"), kept.problem_rows("dapo_math", "train")
    assert (len(held), len(trained)) == (500, 16468)
    assert {name: kept.card(name)["fingerprint"] for name in PRINTS} == PRINTS
    # The bound of the digests is that of the 500 smallest.
    everything = cleaned([(row["problem"], row["answer"]) for row in dapo], conflicts=sets.CONFLICTS)[0]
    smallest = sorted(map(clean.problem_digest, everything))[:500]
    assert [row["id"] for row in held] == [f"dapo-{digest[:12]}" for digest in smallest]
    assert not {row["id"] for row in held} & {row["id"] for row in trained}
    assert check.flags("amc23") == ["contaminated: 22 of 40 problems are also in dapo_math, 11 of them word for word"]
    for name in ("aime24", "aime25", "amc23", "math500"):
        ours_and_published = kept.problem_rows(name), lines(REAL / f"{name}.jsonl")
        one, other = ([(clean.fold(row["problem"]), row["answer"]) for row in rows] for rows in ours_and_published)
        assert one == other
    assert [len(kept.problem_rows("gsm8k", split)) for split in ("train", "test")] == [7473, 1319]
    with pytest.raises(UserError, match="aime24 test must have 30 problems, but this copy has 5"):
        prepare.prepare_sets(["aime24"], str(REAL / "raw_samples"))
