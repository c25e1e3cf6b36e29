"""Any input gives a table or one sentence: in configurations, overrides, specs, and models.

`ENTROBENCH_EXAMPLES=20000 pytest tests/test_hostile.py` searches longer, with other examples each time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

pytest.importorskip("hypothesis", reason="this needs the extra `test`")
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from baselines import METHODS
from harness import cli, runs
from harness.base.errors import SENTENCE, UserError
from harness.base.terminal import visible
from harness.config import scalars

pytestmark = pytest.mark.slow

EXAMPLES = os.environ.get("ENTROBENCH_EXAMPLES")
SECONDS = 2  # of CPU time, for one answer
hostile = settings(
    max_examples=int(EXAMPLES or 20),
    derandomize=EXAMPLES is None,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

TEXTS = [
    *("", " ", "~", "null", "true", "off", "=", "'", '"', "[", "]", "{", "}", "(", ")", ",", "+", "&a", "*a", "`", "-"),
    *("0", "-1", "1e999", ".nan", ".inf", "-.inf", "1_0", "0x10", "010", "1:30", "2024-01-01", "9" * 30, "9" * 5000),
    *("../../x", "/", ".", "..", "a/b", "p%41", "q?x", "#x", "a|b", "$x^{$", "<b>", "=1+1", "\\", "???", "${x}", "${"),
    *("\x00", "\x1b[2J", "\n", "\u202e", "\ud800", "é", "名前", "x" * 5000, "[" * 3000, "a.b.c", "a=b", "%s", "{0}"),
    *("@", "!!int 3", "grpo", "clip_b", "countdown", "demo", "__class__", "os", "owner/name", "sqlite:///x?y"),
    "http://a:b@c",
]
NUMBERS = [0, 1, -1, 2, 3, 10**6, 2**31, 2**63, 10**30, 10**400, 0.0, 1e-300, 1e300, -0.5, 0.5, 1.5]
NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), None, True, False]
single = st.sampled_from([*TEXTS, *NUMBERS, *NO_NUMBERS]) | st.text(max_size=8) | st.integers() | st.floats()
value = st.recursive(
    single, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(single, inner, max_size=3), max_leaves=5
)


def keys() -> list[str]:
    """Return keys of a configuration, those of its sections, lists and mappings, and some that are none."""
    listed = scalars()
    listed += ["name", "results", "baseline", "methods", "tasks", "models", "seeds", "axes", "plugins", "base"]
    listed += ["axes.train.lr", "method_options.clip_b.share", "eval.tasks", "eval.by_task.countdown.k", "tracking.uri"]
    listed += [f"hardware.{name}" for name in ("ranks", "nodes", "share", "threads", "micro_tokens", "cache_gib")]
    listed += ["checkpoint.every", "launch.slurm.setup", "launch.slurm.extra"]
    listed += ["seeds.0", "trian", "schlüssel", "x" * 999]
    return [*listed, *sorted({part for key in listed if (part := key.rpartition(".")[0])})]


key = st.sampled_from(keys())


def stop(*_: object) -> NoReturn:
    raise UserError("everything is understood; a run would begin here")


@pytest.fixture(scope="module", autouse=True)
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("hostile") / "here"
    folder.mkdir()
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for begins in ("fetch_models", "claim"):  # with which `run` would write, or ask the hub
            patch.setattr(runs, begins, stop)
        yield


def ask(*arguments: str) -> None:
    """Give a command, and look at how it ends."""
    out, err = io.StringIO(), io.StringIO()
    began = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    took = time.process_time() - began
    message = err.getvalue()
    if ended.value.code == 0:
        assert message == ""
    else:
        assert ended.value.code in (1, 2), message
        assert message.startswith("entrobench: ")
        assert message.endswith("\n")
        sentence = message.removeprefix("entrobench: ").removesuffix("\n")
        assert visible(sentence) == sentence, sentence
        assert "\n" not in sentence
        assert 10 < len(sentence) <= SENTENCE, sentence
    assert took < SECONDS, f"{took:.1f} s: {message}"
    assert os.listdir("..") == ["here"], "something was written outside this folder"


def wrote(path: str, content: object) -> bool:
    """Write YAML; say whether what it is to hold can be written."""
    try:
        Path(path).write_text(yaml.dump(content, allow_unicode=True))
    except (UnicodeEncodeError, TypeError, ValueError):
        return False
    return True


@hostile
@given(key, value)
def test_values_in_a_file(key: str, value: Any) -> None:
    for name in reversed(key.split(".")):
        value = {name: value}
    if wrote("odd.yaml", {"base": "smoke", **value}):
        ask("status", "odd.yaml")


@hostile
@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode(errors="surrogatepass")))
def test_bytes_of_a_file(content: bytes) -> None:
    Path("bytes.yaml").write_bytes(content)
    ask("status", "bytes.yaml")
    ask("plan", "smoke", "models=[bytes.yaml]")


written = single.map(str) | value.map(json.dumps)


@hostile
@given(st.dictionaries(key, written, min_size=1, max_size=2), st.sampled_from(["plan", "status", "run"]))
def test_overrides(given: dict[str, str], command: str) -> None:
    ask(command, "smoke", *(f"{key}={value}" for key, value in given.items()))


@hostile
@given(single.map(str), st.sampled_from(["plan", "run", "status", "list", "leaderboard", "clean", "dynamics", ""]))
def test_arguments(text: str, command: str) -> None:
    ask(command, text)


pieces = st.sampled_from([*METHODS, *"(),+='\"[]{}:&*! \\$", "share", "mu", "mode", "clip_low", *TEXTS])
axis = st.sampled_from(["methods", "tasks", "models", "eval.tasks", "plugins"])


@hostile
@given(st.lists(pieces, max_size=8).map("".join), axis)
@example("9" * 5000 + "\n", "models")  # a name that is too long for a file
def test_specs(spec: str, axis: str) -> None:
    ask("run", "smoke", f"{axis}={json.dumps([spec], ensure_ascii=False)}")


@hostile
@given(
    st.sampled_from(list(METHODS)), st.sampled_from(["mu", "share", "mode", "clip_low", "target", "kl_coef"]), written
)
def test_options_of_methods(name: str, option: str, value: str) -> None:
    ask("status", "smoke", f"methods={json.dumps([f'{name}({option}={value})'], ensure_ascii=False)}")


@hostile
@given(st.sampled_from(["count", "largest", "target", "instruction"]), written)
def test_options_of_tasks(option: str, value: str) -> None:
    ask("run", "smoke", f"tasks={json.dumps([f'countdown({option}={value})'], ensure_ascii=False)}")


SHAPE = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
STATED = {"model_type": "qwen2", **SHAPE, "intermediate_size": 128, "max_position_embeddings": 64}
OPTIONAL = ["num_key_value_heads", "head_dim", "tie_word_embeddings", "auto_map", "torch_dtype", "architectures"]
odd_config = st.dictionaries(st.sampled_from([*STATED, *OPTIONAL]), value, max_size=3).map(
    lambda odd: {**STATED, **odd}
)


@hostile
@given(
    (odd_config | value).map(lambda given: json.dumps(given).encode()) | st.binary(max_size=60), st.binary(max_size=30)
)
def test_folders_of_models(config: bytes, weights: bytes) -> None:
    folder = Path("folder")
    folder.mkdir(exist_ok=True)
    for name, content in {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": weights}.items():
        (folder / name).write_bytes(content)
    ask("plan", "smoke", "models=[folder]")


RECIPE = ["task", "hidden", "layers", "heads", "mlp", "steps", "lr", "seed", "device", "odd"]
FILE = ["path", "recipe", "shape", "system", "template", "instruction", "stop", "odd"]
recipe = st.dictionaries(st.sampled_from(RECIPE), value, max_size=3)


@hostile
@given(st.dictionaries(st.sampled_from(FILE), value | recipe, max_size=3))
def test_files_of_models(given: dict[str, Any]) -> None:
    if wrote("model.yaml", given):
        ask("plan", "smoke", "models=[model.yaml]")
