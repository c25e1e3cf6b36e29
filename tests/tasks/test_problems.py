"""The task on a user's own problems: rows, splits, judges, rewards, identity and refusals."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import datasets
import invented
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Commands, refusal
from places import REPOSITORY

import tasks
from harness import config, matrix
from harness.base import identities, plugins
from harness.base.errors import UserError
from harness.base.task import Judged, Problem, Verdict, judge_responses
from harness.launch.cell import check_version
from harness.methods.batch import Rollout
from harness.packs.audit import Library
from harness.train.collect import Answered, Collected, packed_judged, unpacked_judged
from harness.verify.pool import VerifierPool
from tasks.data import sets
from tasks.problems import OwnProblems
from tasks.problems.data import Data

ROWS = {f"What is {a} times {b}?": str(a * b) for a in range(20) for b in range(10)}
ABSENT = ", ".join(name for name, entry in sets.SETS.items() if "test" in entry.splits)
SMALL = ["tasks=['problems(file=mine.jsonl)']", "methods=[grpo]", "results=results"]
PAGE = (REPOSITORY / "docs" / "add-a-task.md").read_text().partition("## A set of problems of your own")[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and a cache without problem sets."""
    invented.prepare_in(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def judges(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A plugin with judges; `close` is the one of the documentation."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.partition("\n## ")[0], re.DOTALL)
    more = "def fail(response, answer): raise KeyError(response)\ndef nan(response, answer): return float('nan')\n"
    more += "def same(response, answer): return response == answer\n"
    (folder / "my_judges.py").write_text(
        f"{example}\n{more}JUDGES |= {{'fail': fail, 'nan': nan, 'same': same, 'five': 5}}\n"
    )
    monkeypatch.syspath_prepend(folder)
    plugins.import_plugin("my_judges")
    yield "my_judges"
    del sys.modules["my_judges"]


def write_rows(name: str, rows: Sequence[Any]) -> None:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write(name: str = "mine.jsonl", problems: dict[str, str] = ROWS) -> None:
    write_rows(name, [{"problem": problem, "answer": answer} for problem, answer in problems.items()])


def own(**options: Any) -> OwnProblems:
    return OwnProblems(**{"file": "mine.jsonl", "instruction": "", **options})


def data(**options: Any) -> Data:
    return own(**options).data


# Splits


def test_splits_by_the_hash_of_a_problems_text() -> None:
    write()
    by_split: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for problem in sorted(ROWS, key=lambda problem: sha256(problem.encode()).digest()):
        place = int.from_bytes(sha256(problem.encode()).digest()) / 2**256
        by_split["test" if place < 0.1 else "validation" if place < 0.3 else "train"].append(problem)
    sizes = {split: len(problems) for split, problems in by_split.items()}
    assert sizes == {"train": 146, "validation": 38, "test": 16}
    task = own(validation=0.2)
    for split, problems in by_split.items():
        digests = [sha256(problem.encode()).hexdigest()[:12] for problem in problems]
        expected = [Problem(digest, problem, ROWS[problem]) for digest, problem in zip(digests, problems, strict=True)]
        assert task.problems(split) == expected
    write("more.jsonl", dict(reversed(ROWS.items())) | {f"And {i}?": "1" for i in range(50)})
    for split, problems in by_split.items():
        further = data(file="more.jsonl", validation=0.2).splits[split]
        assert [problem for problem in further if problem in ROWS] == problems


@pytest.mark.parametrize(
    ("options", "splits"),
    [
        ({"test": 0.0}, ("train", "validation")),
        ({"test": 0.0, "validation": 0.0}, ("train",)),
        ({"test": 1.0, "validation": 0.0}, ("test",)),
        ({"test": 0.3, "validation": 0.7}, ("validation", "test")),
    ],
)
def test_splits_without_a_share_do_not_exist(options: dict[str, float], splits: tuple[str, ...]) -> None:
    write()
    task = own(**options)
    assert task.splits == splits
    assert sum(len(task.problems(split)) for split in splits) == 200
    for split in {"train", "validation", "test"}.difference(splits):
        with pytest.raises(UserError, match="but the task problems has only"):
            task.problems(split)


def test_copies_count_once_in_any_order() -> None:
    rows = [{"problem": problem, "answer": answer} for problem, answer in ROWS.items()]
    copies = [{"problem": "What  is 3 times 4?", "answer": "12"}, {"problem": "What is 5 times 5?\n", "answer": 25}]
    write_rows("one.jsonl", [*rows, *copies])
    write_rows("other.jsonl", [*copies, *reversed(rows)])
    one, other = own(file="one.jsonl"), own(file="other.jsonl")
    assert one.about() == (
        f"one.jsonl (data={one.data.digest}): 202 rows, 2 copies; problems: 168 train, 16 validation, 16 test; not "
        f"compared with {ABSENT} (`entrobench data prepare`)"
    )
    assert one.data == other.data
    assert one.data.splits["train"]["What  is 3 times 4?"] == "12", "of two spellings the smaller one"


def test_problems_of_evaluation_sets_are_left_out_of_training() -> None:
    write()
    before = data().splits
    (trained, also_trained), (held_out, *_), (tested, *_) = (
        list(before["train"])[:2],
        before["validation"],
        before["test"],
    )
    invented.prepare("aime24", rows={trained.lower(): "1", tested: "2"})
    invented.prepare("math500", rows={f"{also_trained} ": "3", held_out: "4", "Another problem?": "5"})
    after = data()
    left_out = {problem for split in before for problem in before[split]}
    left_out -= {problem for split in after.splits for problem in after.splits[split]}
    assert left_out == {trained, also_trained, held_out}
    assert after.splits["test"] == before["test"]
    assert after.counts == (
        "200 rows, 0 copies; problems: 166 train, 15 validation, 16 test; left out of training: 1 that aime24 has, "
        "2 that math500 has"
    )
    assert after.absent == ["dapo500", "aime25", "amc23", "gsm8k"]


def test_worked_examples_are_in_no_split(judges: str) -> None:
    write()
    train = own().problems("train")
    examples = train[:2]
    task = own(shots=2, instruction="Be quick.")
    shots = tuple((f"{each.prompt}\n\nBe quick.", rf"\boxed{{{each.answer}}}") for each in examples)
    for split in task.splits:
        problems = task.problems(split)
        assert all(problem.shots == shots for problem in problems)
        others = [problem.id for problem in own().problems(split) if problem not in examples]
        assert [problem.id for problem in problems] == others
    assert own(shots=2, judge="my_judges.close").problems("test")[0].shots[0] == (train[0].prompt, train[0].answer)
    assert own(shots=2, test=1.0, validation=0.0).problems("test")[0].shots
    assert own(shots=2).data.digest != own().data.digest
    with pytest.raises(UserError, match=r"^problems.shots is 9; allowed: 0 to 8$"):
        own(shots=9)


# Rows


def test_the_same_problems_in_every_format() -> None:
    rows = [{"question": problem, "n": int(answer)} for problem, answer in ROWS.items()]
    write_rows("rows.jsonl", rows)
    Path("rows.json").write_text(json.dumps(rows))
    Path("windows.JSON").write_text(json.dumps(rows, indent=1), encoding="utf-8-sig", newline="\r\n")
    pq.write_table(pa.Table.from_pylist(rows), "rows.parquet")
    with open("rows.csv", "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, ["question", "n"])
        writer.writeheader()
        writer.writerows(rows)
    nested = [{"prompt": [{"content": row["question"]}], "reward_model": {"ground_truth": [row["n"]]}} for row in rows]
    write_rows("nested.jsonl", nested)
    pq.write_table(pa.Table.from_pylist(nested), "nested.parquet")
    write()
    expected = data()
    for name in ("rows.jsonl", "rows.json", "windows.JSON", "rows.csv", "rows.parquet"):
        assert data(file=name, problem="question", answer="n") == expected
    for name in ("nested.jsonl", "nested.parquet"):
        assert data(file=name, problem="prompt.0.content", answer="reward_model.ground_truth") == expected


def test_numbers_are_written_without_an_exponent() -> None:
    numbers = {1e-05: "0.00001", -2.5e17: "-250000000000000000", 0.5: "0.5", 80.0: "80.0", 10**20: "1" + "0" * 20}
    write_rows("mine.jsonl", [{"problem": f"{i}?", "answer": number} for i, number in enumerate(numbers)])
    answers = data(validation=0.0, test=0.0).splits["train"]
    assert [answers[f"{i}?"] for i in range(len(numbers))] == list(numbers.values())


def test_long_fields_of_csv() -> None:
    problem = "1" + "+1" * 100_000
    Path("mine.csv").write_text(f"problem,answer\n{problem},100001\n")
    limit = csv.field_size_limit(131_072)
    try:
        read = data(file="mine.csv", validation=0.0, test=0.0).splits["train"]
    finally:
        csv.field_size_limit(limit)
    assert read == {problem: "100001"}


def in_file_and_on_hub(name: str, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Offer a table as a Parquet file of this name and as a set of the Hub; return the options for each of the two."""
    pq.write_table(table, name)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset(table).to_iterable_dataset())
    return [{"file": name}, {"file": None, "hub": "owner/name"}]


NUMBER = pa.float32()


@pytest.mark.parametrize(
    ("kind", "column", "wrap"),
    [
        (NUMBER, "answer", lambda value: value),
        (pa.float16(), "answer", lambda value: value),
        (pa.list_(NUMBER), "answer", lambda value: [value]),
        (pa.large_list(NUMBER), "answer", lambda value: [value]),
        (pa.struct({"gold": pa.list_(NUMBER), "by": pa.string()}), "answer.gold.0", lambda value: {"gold": [value]}),
    ],
)
def test_short_floats_are_those_that_were_written(
    kind: Any, column: str, wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {0.1: "0.1", 9.95: "9.95", -1e-05: "-0.00001", 80.0: "80.0"}
    problems = [f"{i}?" for i in range(len(numbers))]
    table = pa.table({"problem": problems, "answer": pa.array(map(wrap, numbers), kind)})
    for source in in_file_and_on_hub("short.parquet", table, monkeypatch):
        answers = data(**source, answer=column, validation=0.0, test=0.0).splits["train"]
        assert [answers[problem] for problem in problems] == list(numbers.values())
    pq.write_table(pa.table({"problem": ["a"], "answer": pa.array([wrap(None)], kind)}), "short.parquet")
    with pytest.raises(UserError, match=f"^row 1 of short.parquet has no answer: '{column}' is empty$"):
        data(file="short.parquet", answer=column)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (pa.decimal128(5, 2), {"1.5": "1.50"}),
        (pa.decimal128(38, 8), {"-1E-8": "-0.00000001", "0": "0.00000000", "12345678901.5": "12345678901.50000000"}),
    ],
)
def test_decimals(kind: pa.DataType, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [f"{number}?" for number in texts]
    table = pa.table({"problem": problems, "answer": pa.array(map(Decimal, texts), kind)})
    for source in in_file_and_on_hub("mine.parquet", table, monkeypatch):
        answers = data(**source, validation=0.0, test=0.0).splits["train"]
        assert [answers[problem] for problem in problems] == list(texts.values())


def test_columns_that_python_cannot_hold_are_left_out() -> None:
    columns = {
        "late": pa.array([2**62], pa.timestamp("us")),
        "later": pa.array([10**9], pa.int32()).cast(pa.date32()),
        "mars": pa.array([0], pa.timestamp("us", "Mars/Olympus")),
        "broken": pa.array([b"\xff"]).view(pa.string()),
    }
    pq.write_table(pa.table({**columns, "problem": ["1+1?"], "answer": [2]}), "mine.parquet")
    assert data(file="mine.parquet", validation=0.0, test=0.0).splits["train"] == {"1+1?": "2"}
    with pytest.raises(UserError) as error:
        data(file="mine.parquet", answer="late")
    expected = "problems.answer is 'late', which row 1 of mine.parquet does not have; allowed: answer, problem"
    assert str(error.value) == expected
    pq.write_table(pa.table(columns), "mine.parquet")
    with pytest.raises(UserError, match=r"^problems.problem is 'problem', which row 1 of mine.parquet does not have; "):
        data(file="mine.parquet")


HEAD = b'{"problem": "1+1?", "answer": 2}\n'


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"q": "a", "answer": 1}, "problems.problem is 'problem', which row 2 of F does not have; allowed: answer, q"),
        ({"problem": "a"}, "problems.answer is 'answer', which row 2 of F does not have; allowed: problem"),
        ({"problem": "a", "answer": None}, "row 2 of F has no answer: 'answer' is empty"),
        ({"problem": " ", "answer": "1"}, "row 2 of F has no problem: 'problem' is empty"),
        ({"problem": "a", "answer": []}, "row 2 of F has no answer: 'answer' is empty"),
        ({"problem": "a", "answer": float("nan")}, "row 2 of F has no answer: 'answer' is empty"),
        ({"problem": "a", "answer": [1, 2, 3]}, "row 2 of F has 3 values in 'answer'; a row has one answer"),
        ({"problem": "a", "answer": True}, "row 2 of F has True in 'answer'; allowed: text or a number"),
        ({"problem": "a", "answer": -math.inf}, "row 2 of F has -inf in 'answer'; allowed: text or a number"),
        ({"problem": "a", "answer": {"b": 1}}, "row 2 of F has {'b': 1} in 'answer'; allowed: text or a number"),
        ({"problem": "\ud800", "answer": 1}, "row 2 of F has a broken character in 'problem': half a surrogate pair"),
        (
            {"problem": "1+1? ", "answer": "3"},
            "row 2 of F has the problem of row 1 of F with another answer, '3' instead of '2'",
        ),
        ([1], "row 2 of F is [1]; it must be an object with a problem and an answer"),
    ],
)
def test_refused_rows(row: Any, sentence: str) -> None:
    Path("mine.jsonl").write_bytes(HEAD + json.dumps(row).encode())
    expected = sentence.replace(" F", " mine.jsonl")
    assert refusal("plan", "smoke", *SMALL) == f"entrobench: {expected}\n"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"value": "2"}, "which row 1 of mine.jsonl does not have; allowed: answer, answer.value, problem; "),
        ("2", "which row 1 of mine.jsonl does not have; allowed: answer, problem; "),
        (["2"], "which row 1 of mine.jsonl does not have; allowed: answer, answer.0, problem; "),
        ([], "row 1 of mine.jsonl has no answer: 'answer.text' is empty"),
        (None, "row 1 of mine.jsonl has no answer: 'answer.text' is empty"),
        ({"text": None}, "row 1 of mine.jsonl has no answer: 'answer.text' is empty"),
    ],
)
def test_refused_nested_columns(answer: Any, sentence: str) -> None:
    write_rows("mine.jsonl", [{"problem": "1+1?", "answer": answer}])
    with pytest.raises(UserError, match=f"^(problems.answer is 'answer.text', )?{re.escape(sentence)}"):
        own(file="mine.jsonl", answer="answer.text").identifying()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("no.jsonl", None, "problems.file is 'no.jsonl', which cannot be read: No such file or directory"),
        ("a.txt", b"", "the end of problems.file is '.txt'; allowed: .csv, .json, .jsonl, .parquet"),
        ("a.jsonl", b"", "a.jsonl has no rows"),
        ("a.csv", b"problem,answer\n", "a.csv has no rows"),
        ("a.jsonl", HEAD + b"\n{problem: 1}", "line 3 of a.jsonl is not valid JSON: Expecting property name enclosed"),
        ("a.jsonl", HEAD + b'{"problem": "\xe9"}', "a.jsonl is not UTF-8 (byte 0xe9 in line 2); save it as UTF-8"),
        ("a.jsonl", HEAD.decode().encode("utf-16"), "a.jsonl is not UTF-8 (byte 0xff in line 1); save it as UTF-8"),
        ("a.csv", b"problem,answer\nz\xfcrich,1\n", "a.csv is not UTF-8 (byte 0xfc in line 2); save it as UTF-8"),
        ("a.csv", b"problem;answer\n1;2\n", "problems.problem is 'problem', which row 1 of a.csv does not have; "),
        ("a.csv", b"problem,answer\n1,2,3\n", "line 2 of a.csv has more fields than the header"),
        ("a.csv", b"problem,answer,answer,,\n1,2,3\n", "the header of a.csv names 'answer' twice"),
        ("a.csv", b'problem,answer\n"1"2,3\n', "line 2 of a.csv is not valid CSV: ',' expected after '\"'"),
        ("a.csv", b"problem,answer\n1\n", "row 1 of a.csv has no answer: 'answer' is empty"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read as Parquet: Parquet file size is 4 bytes"),
        (
            "a.jsonl",
            HEAD,
            "a.jsonl leaves its validation split empty (1 row, 0 copies; problems: 1 train, 0 validation, 0 test); add "
            "problems, or write problems(..., validation=0)",
        ),
    ],
)
def test_refused_files(name: str, content: bytes | None, sentence: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        own(file=name).identifying()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "the task problems has no data; write problems(file=mine.jsonl) or problems(hub=owner/name)"),
        ("file=a.csv, hub=b/c", "problems has both a file and a data set on the Hub; allowed: one of the two"),
        ("file=a.csv, subset=main", "problems.subset is 'main', but a file has no subset; allowed: with hub alone"),
        ("file=a.csv, part=test", "problems.part is 'test', but a file has no part; allowed: with hub alone"),
        ("file=a.csv, split=test", "unknown key problems.split; allowed: "),
        ("test=0.6, validation=0.5", "problems.validation and problems.test are 0.5 and 0.6; allowed: 1 together"),
        ("test=1.5", "problems.test is 1.5; allowed: 0 to 1"),
        ("colum=a", "unknown key problems.colum; allowed: "),
        ("reward=score", "problems.reward is 'score', but problems.judge is 'math', which gives no scores"),
        ("judge=maths", "problems.judge is 'maths'; allowed: exact, math; did you mean 'math'?; a function"),
        ("answer=yes", "problems.answer is True; it must be text, so write on, off, yes, no and 1.0 in quotes"),
        ("judge=subprocess.getoutput", "problems.judge is 'subprocess.getoutput'; allowed: exact, math;"),
    ],
)
def test_refused_options(options: str, words: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(words)}"):
        tasks.build_task(f"problems({options})").problems("train")


def test_files_for_training_and_testing_share_no_problem() -> None:
    write("train.jsonl", dict(list(ROWS.items())[:120]))
    write("test.jsonl", dict(list(ROWS.items())[120:]))
    tested = "problems(file=test.jsonl, validation=0, test=1)"
    overrides = ["tasks=['problems(file=train.jsonl, test=0)']", f"eval.tasks=['{tested}']"]
    assert matrix.cells(config.load_config("smoke", overrides))
    write("test.jsonl", dict(list(ROWS.items())[100:]))
    shared = {*list(ROWS)[100:120]} & data(file="train.jsonl", test=0.0).splits["train"].keys()
    with pytest.raises(UserError) as error:
        matrix.cells(config.load_config("smoke", overrides))
    assert str(error.value) == (
        f"{len(shared)} problems of eval.tasks {tested!r} would be trained on with 'problems(file=train.jsonl, "
        "test=0)'; leave them out of one of the two"
    )


# The Hub


def test_data_set_of_the_hub_is_downloaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*arguments: Any, **options: Any) -> datasets.IterableDataset:
        asked.append((arguments, options))
        rows = [{"id": i, "q": problem, "a": [answer]} for i, (problem, answer) in enumerate(ROWS.items())]
        return datasets.Dataset.from_list(rows).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    write()
    spec = "problems(hub='owner/name@v1', subset=main, part=dev, problem=q, answer=a, instruction='')"
    for _ in range(2):
        assert identities.component_identity(tasks.build_task(spec)) == identity()
    options = {"split": "dev", "revision": "v1", "streaming": True}
    assert asked == [(("owner/name", "main"), options)]
    words = "^problems.problem is 'problem', which row 1 of owner/name does not have; allowed: a, id, q$"
    with pytest.raises(UserError, match=words):
        own(file=None, hub="owner/name").identifying()


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach the Hub."),
        RuntimeError("Dataset scripts are no longer supported, but found name.py"),
        datasets.exceptions.DatasetGenerationError("An error occurred while generating the dataset"),
    ],
)
def test_data_set_that_the_hub_does_not_give(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    sentence = f"could not download owner/name from the Hugging Face Hub ({error}".rstrip(".")
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        own(file=None, hub="owner/name").identifying()


# Judges


def test_exact_verdicts_and_answers() -> None:
    task, problem = own(judge="exact"), Problem("1", "", r"\frac12 A")
    responses = [r"\boxed{\frac12 A}", r"\boxed{ \frac12 A }, yes", r"\boxed{\frac12 a}", r"\frac12 A", r"\boxed{}"]
    with VerifierPool() as verifier:
        verdicts = task.verdicts([(problem, response) for response in responses], verifier)
    assert verdicts == ["right", "right", "wrong", "unparsed", "unparsed"]
    answers = task.answers([(problem, response) for response in responses])
    pairs = zip(answers, responses, strict=True)
    texts = [answer and (answer.text, response[answer.end :]) for answer, response in pairs]
    assert texts == [(r"\frac12 A", ""), (r"\frac12 A", ", yes"), (r"\frac12 a", ""), None, (None, "")]


def test_mathematical_verdicts() -> None:
    with VerifierPool() as verifier:
        pairs = [(Problem("1", "", "1,000"), response) for response in (r"\boxed{1000.0}", r"\boxed{1001}", "1000")]
        assert own().verdicts(pairs, verifier) == ["right", "wrong", "unparsed"]
        assert [judged.reward for judged in judge_responses(own(), verifier, pairs)] == [1.0, 0.0, 0.0]


@pytest.mark.processes
def test_verdicts_and_scores_of_a_function(judges: str, caplog: pytest.LogCaptureFixture) -> None:
    problem = Problem("1", "", "12")
    pairs = [(problem, response) for response in ("it is 12", "11", r"8 \boxed{9}", "none")]
    with VerifierPool(workers=1) as verifier:
        task = own(judge="my_judges.close", reward="score")
        judged = judge_responses(task, verifier, pairs)
        assert [each.verdict for each in judged] == ["right", "wrong", "wrong", "unparsed"]
        assert [each.reward for each in judged] == [1.0, 0.5, 0.25, 0.0]
        assert [each.text for each in judged] == ["it is 12", "11", "9", "none"]
        by_verdict = judge_responses(own(judge="my_judges.close"), verifier, pairs)
        assert [each.reward for each in by_verdict] == [1.0, 0.0, 0.0, 0.0]
        same = own(judge="my_judges.same")
        assert same.verdicts([(problem, "12"), (problem, "12 ")], verifier) == ["right", "wrong"]
        for name in ("fail", "nan"):
            failing = own(judge=f"my_judges.{name}", reward="score")
            assert failing.scores([(problem, "12"), (problem, "13")], verifier) == [(Verdict.ERROR, 0.0)] * 2
    assert [message.partition(", on")[0] for message in caplog.messages] == [
        "error: my_judges.fail raises KeyError: '12'",
        "error: my_judges.nan returns nan",
    ]


def test_a_function_needs_its_plugin(judges: str) -> None:
    assert own(judge="my_judges.close").own_judge() is vars(sys.modules["my_judges"])["close"]
    names = "exact, math, my_judges.close, my_judges.fail, my_judges.nan, my_judges.same"
    with pytest.raises(UserError, match=f"allowed: {names}; did you mean"):
        own(judge="my_judges.clos")
    vars(sys.modules["my_judges"])["JUDGES"] = ["close"]
    sentence = "JUDGES of plugin my_judges is ['close']; it must be a dict of names and functions"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        own(judge="my_judges.close")


def test_methods_without_rewards_refuse_scores(judges: str) -> None:
    write()
    spec = "problems(file=mine.jsonl, judge=my_judges.close, reward=score)"
    overrides = [f'tasks=["{spec}"]', "plugins=[my_judges]", "methods=[grpo,passk]"]
    assert refusal("plan", "smoke", *overrides) == (
        f"entrobench: method 'passk' uses only which responses are right, so that the scores of {spec!r} would be in "
        "vain; allowed: reward=verdict, or a method that learns from rewards\n"
    )
    assert matrix.cells(config.load_config("smoke", [*overrides, "methods=[grpo]", "baseline=grpo"]))


def test_batch_with_scores() -> None:
    problem, scores = Problem("1", "", ""), [1.0, 0.5, -2.0, 0.0]
    verdicts = [Verdict.RIGHT, Verdict.WRONG, Verdict.WRONG, Verdict.UNPARSED]
    judged = [Judged(verdict, None, False, score) for verdict, score in zip(verdicts, scores, strict=True)]
    rollouts = [Rollout([1], [2], [0.0], finished=True)] * 4
    answered = Answered(0, problem, rollouts, judged, [1] * 4)
    batch = Collected([answered], 4, 0, {}).batch(1, "cpu", {"0": 0.5, "1": 0.25})
    assert answered.has_signal
    assert batch.rewards_B.tolist() == scores
    assert batch.right_B.tolist() == [True, False, False, False]
    assert batch.base_right_B.tolist() == [0.25] * 4
    assert [unpacked_judged(*packed_judged(each)) for each in judged] == judged
    assert unpacked_judged("right", None, False).reward == 1.0, "as checkpoints of earlier versions have it"


# Identity


def identity(**options: Any) -> dict[str, Any]:
    return identities.component_identity(own(**options))


def test_identity_is_that_of_the_problems(judges: str) -> None:
    write()
    before = identity()
    assert before == {
        "component": "OwnProblems",
        "data": before["data"],
        "instruction": "",
        "shots": 0,
        "judge": "math",
        "reward": "verdict",
    }
    write_rows("moved.jsonl", [{"q": problem, "a": answer} for problem, answer in reversed(ROWS.items())])
    assert identity(file="moved.jsonl", problem="q", answer="a") == before
    assert tasks.evaluation_name(OwnProblems(file="mine.jsonl")) == f"problems(data={before['data']})"
    assert identity(test=0.2)["data"] != before["data"]
    write(problems=ROWS | {"What is 3 times 4?": "13"})
    assert identity()["data"] != before["data"]
    judged = identity(judge="my_judges.close")["judge"]
    text = Path("my_judges.py").read_text()
    Path("my_judges.py").write_text(text.replace("1 / (1 +", "2 / (2 +").replace('"""Return 1 ', '"""Return the 1 '))
    assert identity(judge="my_judges.close")["judge"] != judged
    Path("my_judges.py").write_text(text.replace('"""Return 1 ', '"""Return the 1 '))
    assert identity(judge="my_judges.close")["judge"] == judged, "words change nothing"


def test_a_file_that_changes_while_the_matrix_runs() -> None:
    write()
    [cell] = matrix.cells(config.load_config("smoke", [*SMALL, "seeds=[0]"]))
    assert check_version(cell.spec)
    write(problems=ROWS | {"And now?": "1"})
    with pytest.raises(UserError) as error:
        check_version(cell.spec)
    assert str(error.value) == (
        "problems(file=mine.jsonl) was edited while the matrix ran; `entrobench run` plans cells of the new version"
    )
    assert matrix.cells(config.load_config("smoke", [*SMALL, "seeds=[0]"]))[0].id != cell.id


def test_packs_with_other_problems_are_not_judged() -> None:
    write()
    library = Library(())
    assert library.identity("problems(file=mine.jsonl, instruction='')", identity()) == identity()
    with pytest.raises(UserError, match=r"^its data set here has other problems$"):
        library.identity("problems(file=mine.jsonl)", {"data": "0"})
    with pytest.raises(UserError, match=r"^its data set is not on this machine$"):
        library.identity("problems(hub=owner/name)", {"data": "0"})


# Commands


def test_plan_of_the_documented_configurations(commands: Commands, judges: str) -> None:
    write()
    too_many = refusal("plan", "smoke", *SMALL)
    assert "has 16 problems in its test split (allowed: up to 16, or null for all)" in too_many
    example, with_judge = re.findall(r"```yaml\n(.*?)```", PAGE.partition("\n## ")[0], re.DOTALL)
    Path("mine.yaml").write_text(example.replace("./my-model", "countdown-tiny"))
    planned = commands.entrobench("plan", "mine.yaml")
    assert f"{own().about()}\n" in planned
    assert f" x (problems(data={own().data.digest}) 16 problems x" in planned
    Path("judged.yaml").write_text(f"base: mine.yaml\n{with_judge}")
    assert f"problems(data={own().data.digest},judge=" in commands.entrobench("plan", "judged.yaml", "methods=[grpo]")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("shots", [0, 2])
def test_lm_evals_own_command(shots: int, commands: Commands) -> None:
    write()
    metadata = json.dumps({"spec": f"problems(file=mine.jsonl, judge=exact, shots={shots})"})
    asked = ["run", "--include_path", str(REPOSITORY / "tasks"), "--model", "dummy", "--tasks", "problems"]
    asked += ["--num_fewshot", str(shots)]
    commands.lm_eval(*asked, "--metadata", metadata, "--limit", "2", "--output_path", "out", "--log_samples")
    [path] = Path("out").glob("**/samples_problems_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    problems = OwnProblems(file="mine.jsonl", shots=shots).problems("test")[:2]
    prompts = ["\n\n".join([*(f"{a} {b}" for a, b in each.shots), each.prompt]) for each in problems]
    assert [sample["arguments"]["gen_args_0"]["arg_0"] for sample in samples] == prompts


@pytest.mark.long
@pytest.mark.processes
def test_run_with_scores(commands: Commands, judges: str) -> None:
    """Rows that the small model can read; it answers with numbers, some of which are near."""
    write(problems={f"{a},{b}=": str(a + b) for a in range(1, 21) for b in range(1, 11)})
    spec = "problems(file=mine.jsonl, instruction='', judge=my_judges.close, reward=score)"
    settings = [f'tasks=["{spec}"]', "plugins=[my_judges]", "methods=[grpo]", "models=[countdown-tiny]", "seeds=[0]"]
    settings += ["train.steps=2", "train.prompts=4", "train.group=4", "eval.samples=4", "eval.k=2", "eval.problems=6"]
    said = commands.entrobench("run", "smoke", *settings, "rollout.max_new_tokens=8", "rollout.lag=1")
    assert re.search(r"trainable: \d+ of 24 problems have responses with different scores", " ".join(said.split()))
    [log] = Path("results").glob("smoke/*/metrics.jsonl")
    rewards = [json.loads(line)["metrics"].get("reward/mean") for line in log.read_text().splitlines()]
    assert all(reward * 16 % 1 for reward in rewards[1:]), "not a number of right responses"
