from pathlib import Path

import numpy as np
import pyarrow as pa
from boards import made_up_frames
from pyarrow import parquet

from harness.table import export


def test_every_answer_count_is_a_row(tmp_path: Path) -> None:
    first, second = np.array([[1, 0, 1], [0, 0, 0]]), np.array([[1, 1, 1], [0, 1, 0]])
    frames = made_up_frames(
        {"clip_b": {4: second, 0: first}, "grpo": {}},
        "aime",
        "dapo",
        problems=["p=1", "größe"],
        right_distinct={("clip_b", 4): [2, 1], ("clip_b", 0): [1, 0]},
        solutions={("clip_b", 0): [4, 5]},
    )
    export.write_parquet({"demo": frames}, tmp_path / "new" / "answers.parquet")
    table = parquet.read_table(tmp_path / "new" / "answers.parquet")
    same = {
        "experiment": "demo",
        "method": "clip_b",
        "trained_on": "dapo",
        "task": "aime",
        "model": "tiny",
        "setting": "",
        "samples": 3,
    }
    assert table.to_pylist() == [
        {**same, "seed": 0, "problem": "p=1", "right": 2, "right_distinct": 1, "solutions": 4},
        {**same, "seed": 0, "problem": "größe", "right": 0, "right_distinct": 0, "solutions": 5},
        {**same, "seed": 4, "problem": "p=1", "right": 3, "right_distinct": 2, "solutions": None},
        {**same, "seed": 4, "problem": "größe", "right": 1, "right_distinct": 1, "solutions": None},
    ]
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "answers.parquet"]


def test_nothing_done_is_a_table_without_rows_and_with_the_same_columns(tmp_path: Path) -> None:
    export.write_parquet({"demo": made_up_frames({"grpo": {}}, "aime", "dapo")}, tmp_path / "answers.parquet")
    table = parquet.read_table(tmp_path / "answers.parquet")
    text = ("experiment", "method", "trained_on", "task", "model", "setting", "problem")
    assert len(table) == 0
    assert dict(zip(table.column_names, table.schema.types, strict=True)) == {
        **dict.fromkeys(text, pa.string()),
        "seed": pa.int64(),
        "right": pa.int32(),
        "samples": pa.int32(),
        "right_distinct": pa.int32(),
        "solutions": pa.int32(),
    }
