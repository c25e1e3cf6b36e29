"""Configuration: every shipped file loads, and every mistake gives one clear sentence."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

import baselines
from harness import config, matrix
from harness.base import registry
from harness.base.errors import UserError

KEPT = ("eval", "mlartifacts", "mlflow.db", "MLflow.DB", "mlflow.db.lock", "mlflow.db-journal", "mlflow.db-wal")


SHIPPED = [
    (path, round_name)
    for path in (config.shipped_configs() | config.study_configs()).values()
    for round_name in (None, *config.read_settings(path)["rounds"])
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "round_name"),
    [pytest.param(*named, marks=[pytest.mark.long] if named[1] else []) for named in SHIPPED],
    ids=lambda value: getattr(value, "stem", value),
)
def test_load_config_of_every_shipped_file(path: Path, round_name: str | None) -> None:
    loaded = config.load_config(str(path), [f"round={round_name}"] if round_name else [])
    planned = matrix.cells(loaded)
    axes = (loaded.methods, loaded.tasks, loaded.models, loaded.seeds)
    assert len(planned) == len({cell.id for cell in planned})
    assert {(c.method, c.task, c.model, c.seed) for c in planned} == {
        (m, t, b, s) for m in axes[0] for t in axes[1] for b in axes[2] for s in axes[3]
    }
    assert path.read_text().startswith("# "), "the first line says what it is, for `entrobench list configs`"


def test_shipped_configs_say_only_what_differs_from_the_defaults() -> None:
    from omegaconf import OmegaConf

    def flat(value: object, prefix: str = "") -> dict[str, object]:
        if isinstance(value, dict):
            return {k: v for key, child in value.items() for k, v in flat(child, f"{prefix}{key}.").items()}
        return {prefix: value}

    defaults = flat(OmegaConf.to_container(OmegaConf.structured(config.Config())))
    assert len(config.shipped_configs()) > 1
    for path, round_name in SHIPPED:
        effective = dict(defaults)
        for layer in config.with_base(path, round_name=round_name):
            given = flat(layer)
            if layer.get("method_options") == {}:
                effective = {key: value for key, value in effective.items() if not key.startswith("method_options.")}
            for key, value in given.items():
                assert effective.get(key, "absent") != value, f"{path.name}: {key} {value} holds already"
            effective |= given


# Methods that were added after the field was run.
LATER = {"fipo", "kimi", "a2po", "real", "wapo", "cue", "bbg", "tre", "dph_rl"}


def test_field_has_every_method_of_its_time() -> None:
    for overrides in ([], ["round=coloring"]):
        loaded = config.load_config("field", overrides)
        published = [spec for spec in loaded.methods if "(" not in spec]
        assert published == [name for name in baselines.METHODS if name not in LATER]
        assert loaded.method_options == {}, "all of them with their authors' constants"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.stpes=3", ["unknown key train.stpes", "did you mean 'steps'"]),
        ("trian.steps=3", ["unknown key trian", "did you mean 'train'"]),
        ("lr=3e-6", ["unknown key lr; did you mean 'train.lr'?"]),
        ("train.learning_rate=3e-6", ["unknown key train.learning_rate; did you mean 'train.lr'?"]),
        ("train.temperature=1", ["did you mean 'rollout.temperature' or 'eval.temperature'?"]),
        ("seed=3", ["unknown key seed; did you mean 'seeds'?"]),
        ("batch_size=8", ["did you mean 'train.prompts'?"]),
        ("n=8", ["did you mean 'train.filter.n'?"]),
        ("hardware.device=tpu", ["hardware.device is 'tpu'", "allowed: auto, cpu, cuda"]),
        ("methods=[clip_bb]", ["unknown method 'clip_bb'", "did you mean 'clip_b'"]),
        ("methods=[grpo,ppo+ce_gppo]", ["2 objectives", "allowed: one"]),
        ("methods=[grpo,clip_b+clip_b]", ["names control clip_b twice"]),
        ("methods=[grpo,'clip_b(mu=x)']", ["clip_b.mu", "x"]),
        ("methods=[grpo,'clip_b(nu=1)']", ["unknown key clip_b.nu", "did you mean 'mu'"]),
        ("methods=[grpo,'clip_b(mode=papr)']", ["mode is 'papr'", "did you mean 'paper'"]),
        ("methods=[grpo,'clip_b(mu']", ["'clip_b(mu' is not a valid spec; write name or name(key=value, ...), in quo"]),
        ("lora.rank=4", ["unknown key lora; did you mean 'train.lora'?"]),
        ("methods=[grpo,'clip_b(mu)']", ["is not an option", "key=value"]),
        ("methods=[grpo,grpo]", ["'grpo' twice"]),
        ("methods=[grpo,grpo+clip_b,clip_b]", ["'grpo+clip_b' and 'clip_b' are the same"]),
        ("methods=[]", ["methods is empty"]),
        ("baseline=vanilla", ["unknown method 'vanilla'"]),
        ("baseline='grpo(clip_low=0.1)'", ["baseline", "not among methods"]),
        ("tasks=[countdwn]", ["unknown task 'countdwn'", "did you mean 'countdown'"]),
        ("tasks=[mine.csv]", ["write \"problems(file='mine.csv')\""]),
        ("models=[countdown-tny]", ["countdown-tny", "did you mean 'countdown-tiny'"]),
        ("train.group=1", ["train.group is 1", "allowed: 2 and more"]),
        ("eval.k=64", ["eval.k is 64", "eval.samples (32)"]),
        ("eval.by_task.countdown.k=64", ["eval.by_task.countdown.k is 64", "eval.by_task.countdown.samples (32)"]),
        ("eval.by_task.countdown.smples=8", ["unknown key eval.by_task.countdown.smples", "did you mean 'samples'"]),
        ("eval.by_task.countdown.every=8", ["unknown key eval.by_task.countdown.every", "allowed: k, problems"]),
        ("eval.by_task.countdwn.k=4", ["eval.by_task names 'countdwn'", "did you mean 'countdown'"]),
        ("rollout.top_p=0.9", ["rollout.top_p is 0.9", "temperature alone"]),
        ("train.updates=5", ["train.updates is 5", "divide train.prompts (48)"]),
        ("rollout.lag=100", ["rollout.lag is 100", "train.steps is 60", "allowed: 0 to 59"]),
        ("train.resample.multiplier=1.1", ["multiplier is 1.1", "x multiplier (52.8) must be a whole number"]),
        ("train.steps", ["not an override", "key=value"]),
        ("=3", ["'=3' is not an override", "key=value"]),
        ("methods=[grpo", ["the override 'methods=[grpo' cannot be read"]),
        ("tune.candidates.grpo=[[1]]", ["tune.candidates.grpo[0] is [1]; it must be text"]),
        ("tune.candidates.grpo=[null]", ["tune.candidates.grpo[0] is null; it must be text"]),
        ("eval.beyond_context=4096", ["eval.beyond_context is 4096; it must be true or false"]),
        ("method_options=3", ["method_options is 3; it must be a mapping of keys"]),
        ("seeds=", ["seeds is null; it must be a list, for example seeds=[0]"]),
        ("seeds.0=1", ["'seeds.0' is not a key", "a list as a whole, such as seeds=[0,1]"]),
        ("tasks: {}", ["'tasks: {}' is not an override"]),
        ("schlüssel=1", ["unknown key schlüssel; allowed: "]),
        (f"seeds=[{'9' * 30}]", ["seeds[0] is 999", "allowed: whole numbers up to 9223372036854775807"]),
        (f"train.lr={'9' * 400}", ["train.lr is 999", "allowed: whole numbers up to 9223372036854775807"]),
        ("axes={train.lr: [1e-6, .nan]}", ["train.lr is nan; allowed: more than 0"]),
        ("eval.temperature=1e-300", ["eval.temperature is 1e-300; allowed: 0, or 0.01 to 100"]),
        ("train.lr=1e308", ["train.lr is 1e+308; allowed: more than 0 and at most 1"]),
        ("tracking.uri=http://me:secret@host", ["tracking.uri may hold a user, a password", "TRACKING_PASSWORD"]),
        ("tracking.uri=localhost:5000", ["(allowed: http://HOST:5000, sqlite:///PATH)", "TRACKING_URI"]),
        ("tracking.uri=htp://host:5000", ["at htp://host:5000 is of no kind that MLflow opens", "did you mean 'http'"]),
        ("tracking.uri=file:///runs", ["at file:///runs is of no kind that MLflow opens", "sqlite"]),
        *((f"name={name}", ["name is ", "allowed: up to 100 letters"]) for name in ("../../x", "..", "a/b", "x" * 101)),
        *((f"name={name}", [f"name is '{name}', which is reserved in the results folder"]) for name in KEPT),
        *((f"results={path}", ["results is ", "an address of MLflow"]) for path in ("q?x", "p%41", "a#b", "~/r")),
        ("seeds=[&a 1, *a]", ["line 1 has a YAML anchor"]),
        ("seeds=[010]", ["line 1 has 010, which YAML reads as another number; write it in quotes"]),
        ("launch.slurm.extra={begin: 18:30:00}", ["line 1 has 18:30:00, which YAML reads as another number"]),
        ("name=!!binary aGk=", ["line 1 has a YAML tag (tag:yaml.org,2002:binary)"]),
        ("name=${oc.env:HOME}", ["'${oc.env:HOME}'; ${...} and ??? are not replaced; write the value itself"]),
        ("train.steps=???", ["line 1 has '???'; ${...} and ??? are not replaced; write the value itself"]),
        ("methods=grpo,clip_b(share=0.1)", ["write several in brackets: 'methods=[grpo,clip_b(share=0.1)]'"]),
        ("models=./nosuch", ["model './nosuch' does not exist; it must be a YAML file, a Hugging Face folder"]),
        ("results=pyproject.toml/x", ["results is 'pyproject.toml/x', but pyproject.toml is a file; name a folder"]),
        (r'name="\0"', [r"has '\x00', with a character that is not valid"]),
        ("name=\ud800", ["cannot be read"]),
        (f"name={'[' * 5000}", ["cannot be read: the bracket that line 1 opens is not closed"]),
        (f"seeds={[*range(715)]}", ["the matrix has 5005 cells; allowed: 5000"]),
        (f"methods=[{'+'.join(['clip_b'] * 400)}]", ["has 2799 characters; allowed: 2000"]),
    ],
)
def test_load_config_refuses_an_override(override: str, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        matrix.cells(config.load_config("demo", [override]))
    for word in words:
        assert word in str(error.value)


def test_load_config_refuses_resampling() -> None:
    few = ["train.prompts=4", "train.updates=2", "hardware.ranks=2", "train.resample.multiplier=1.25"]
    with pytest.raises(UserError, match=r"x multiplier \(5\) must be .* and a multiple of hardware.ranks \(2\)$"):
        config.load_config("demo", few)
    with pytest.raises(UserError, match=r"train.group is 1, so no response can earn more .*; train.resample needs 2"):
        config.load_config("demo", ["train.resample.max_batches=2", "train.group=1"])


def test_resample_candidates_by_decimals() -> None:
    resample = config.load_config("demo", ["train.prompts=100", "train.updates=1", "train.resample.multiplier=1.1"])
    assert resample.train.resample is not None
    assert 100 * 1.1 != 110
    assert resample.train.resample.candidates(100) == 110
    assert resample.train.resample.superset(100) == 1100


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"methods: [grpo\ntrain: {", r"given\.yaml cannot be read: the bracket that line . opens is not closed$"),
        (b"name: \xe9", r"given\.yaml is not UTF-8 \(byte 6\); save it as UTF-8$"),
        (b"name: a\0b", r"given\.yaml cannot be read: unacceptable character #x0000"),
        (b"- grpo", r"given\.yaml is not a mapping of keys$"),
        (b"5", r"given\.yaml cannot be read as a configuration"),
        (b"base: [1]", r"base of .*given\.yaml is \[1\]; it must be the name or the path"),
        (b"base: dmo", "no configuration is called 'dmo'.*did you mean 'demo'"),
        (b"a: &a [x, x]\nb: [*a, *a]", r"given\.yaml, line 1 has a YAML anchor"),
        (b"name: on", r"^name is True; it must be text, so write on, off, yes, no and 1\.0 in quotes$"),
        (b"models: [off]", r"^models\[0\] is False; it must be text, so write on, off, yes, no and 1\.0 in quotes$"),
        (b'"": 4', r"^unknown key ; allowed: "),
        (b"name: ${name}", r"\$\{\.\.\.\} and \?\?\? are not replaced; write the value itself$"),
        (b"train:\n\tsteps: 3\n", r"given\.yaml cannot be read: line 2 has a tab; YAML is indented by blanks$"),
        (b"", r"given\.yaml is empty; write at least"),
        (b"seeds: 1\nseeds: 2", r"cannot be read as a configuration: found duplicate key seeds \(line 2\)$"),
        (b"a: " + b"[" * 5000, r"given\.yaml cannot be read: the bracket that line 1 opens is not closed$"),
        (b"a: " + b"[" * 30 + b"]" * 30, r"given\.yaml, line 1 is too large or too deep"),
        (b"methods: [" + b"grpo, " * 10_000 + b"]", r"given\.yaml, line 1 is too large or too deep"),
        (b"#" * 1_000_001, r"given\.yaml has more than 1000000 bytes"),
    ],
)
def test_load_config_of_unreadable_files(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        config.load_config(str(path))


def test_load_config_of_missing_files(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    for name in ("no.yaml", "folder.yaml"):
        with pytest.raises(UserError, match=f"{name} does not exist or is not a file"):
            config.load_config(str(tmp_path / name))


def test_load_config_with_an_empty_section(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: demo\nmethod_options: {}\ntrain: {steps: 3}\n")
    mine = config.load_config(str(tmp_path / "mine.yaml"))
    demo = config.load_config("demo")
    assert demo.method_options
    assert mine.method_options == {}
    assert (mine.train.steps, mine.train.lr) == (3, demo.train.lr)


ROUNDS = """base: demo
seeds: [0, 1]
rounds:
  more-seeds: {seeds: [2, 3, 4]}
  short:
    base: more-seeds
    train: {steps: 3}
  5: {seeds: [5]}
  "1.10": {seeds: [6]}
  "on": {seeds: [7]}
"""


@pytest.fixture
def with_rounds(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(ROUNDS)
    return str(path)


def test_load_config_with_a_round(with_rounds: str) -> None:
    demo = config.load_config("demo")
    without = config.load_config(with_rounds)
    assert (without.name, without.seeds, without.train) == ("mine", [0, 1], demo.train)
    short = config.load_config(with_rounds, ["round=short", "train.lr=2e-3"])
    assert (short.name, short.seeds, short.train.steps, short.train.lr) == ("mine-short", [2, 3, 4], 3, 2e-3)
    assert short.train.prompts == demo.train.prompts
    assert config.load_config(with_rounds, ["round=short", "seeds=[7]", "name=other"]).seeds == [7]
    assert config.load_config(with_rounds, ["round=short", "name=other"]).name == "other-short"
    assert list(config.read_settings(Path(with_rounds))["rounds"]) == ["more-seeds", "short", "5", "1.10", "on"]
    for name, seed in (("5", 5), ("1.10", 6), ("on", 7)):  # which YAML would read otherwise
        loaded = config.load_config(with_rounds, [f"round={name}"])
        assert (loaded.name, loaded.seeds) == (f"mine-{name}", [seed])


def test_load_config_refuses_another_files_round(tmp_path: Path, with_rounds: str) -> None:
    above = tmp_path / "above.yaml"
    above.write_text(f"base: {with_rounds}\n")
    assert config.load_config(str(above)).seeds == [0, 1]
    with pytest.raises(UserError, match=r"above\.yaml has no round 'short'; it has none$"):
        config.load_config(str(above), ["round=short"])
    with pytest.raises(UserError, match=r"round is given twice: 'short' and '5'; write one$"):
        config.load_config(with_rounds, ["round=short", "round=5"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (ROUNDS, r"mine\.yaml has no round 'shot'; allowed: 1\.10, 5, more-seeds, on, short; did you mean 'short'\?$"),
        ("rounds: {a: {}, shot: {base: b}, b: {}}", r"mine\.yaml, above shot, has no round 'b'; allowed: a$"),
        ("rounds: {shot: {base: shot}}", r"mine\.yaml, above shot, has no round 'shot'; it has none$"),
        ("rounds: {shot: {base: [a]}}", r"base of .*mine\.yaml is \['a'\]; it must be the name"),
        ("rounds: [shot]", r"rounds of .*mine\.yaml is \['shot'\]; it must be a mapping of names to the keys"),
        ("rounds: {tune: {}}", r"mine\.yaml has a round 'tune', whose results `entrobench tune` uses; name it"),
        ("rounds: {tuned: {}}", r"mine\.yaml has a round 'tuned', whose results `entrobench tune` uses; name it"),
        ("rounds: {yes: {}}", r"mine\.yaml has a round True; write on, off, yes, no and 1\.0 in quotes$"),
        ("rounds: {shot: 3}", r"rounds of .*mine\.yaml is \{'shot': 3\}; it must be a mapping of names"),
        ("rounds: {shot: {train: {stpes: 3}}}", r"unknown key train\.stpes"),
    ],
)
def test_rounds_that_are_refused(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=words):
        config.load_config(str(path), ["round=shot"])


def test_load_config_finds_a_base_from_the_files_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.yaml").write_text("base: ../other.yaml\nseeds: [5]")
    (tmp_path / "other.yaml").write_text("base: demo\ntrain: {steps: 3}")
    for folder in (tmp_path, tmp_path / "mine"):
        monkeypatch.chdir(folder)
        one = config.load_config(os.path.relpath(tmp_path / "mine" / "one.yaml"))
        assert (one.seeds, one.train.steps, one.train.lr) == ([5], 3, config.load_config("demo").train.lr)
    (tmp_path / "other.yaml").write_text("base: mine/one.yaml")
    sentence = r"^\.\./other\.yaml is its own base, by way of \.\./mine/one\.yaml; remove one of them$"
    with pytest.raises(UserError, match=sentence):
        config.load_config("one.yaml")


def test_paper_14b_differs_in_its_model() -> None:
    small, large = config.load_config("paper"), config.load_config("paper-14b")
    assert large.models == ["qwen2.5-14b-instruct"]
    large.models, large.name = small.models, small.name
    large.hardware = small.hardware  # what fits; it defines no result
    assert large == small


def test_paper_release_differs_from_the_paper_as_its_page_says() -> None:
    ours, theirs = config.load_config("paper"), config.load_config("paper-release")
    clip_v = config.load_config("paper-release", ["round=clip-v"])
    by_strings = "(instruction='', reward=strings)"
    assert theirs.methods == ["grpo", "clip_b(logp=engine, reference_denominator=true)"]
    assert clip_v.methods == ["grpo", "clip_v(reference_denominator=true)"]
    assert (theirs.train.group, clip_v.train.group) == (16, 8)
    assert theirs.tasks == [f"dapo_math{by_strings}"]
    assert theirs.eval.tasks == [f"{name}{by_strings}" for name in ("amc23", "aime24", "aime25", "dapo500")]
    assert (theirs.eval.samples, theirs.eval.by_task) == (32, {})
    released = {"updates": 1, "weight_decay": 0.01, "order": config.GIVEN, "loss_scale": config.MICRO_BATCH}
    assert theirs.train == dataclasses.replace(ours.train, **released)  # type: ignore[arg-type]
    evaluation = dataclasses.replace(theirs.eval, tasks=ours.eval.tasks, by_task=ours.eval.by_task)
    theirs = dataclasses.replace(theirs, name=ours.name, methods=ours.methods, tasks=ours.tasks)
    assert dataclasses.replace(theirs, train=ours.train, eval=evaluation) == ours


def test_split_and_parse() -> None:
    assert registry.split("ppo+clip_b(mu=1+1,mode=paper)", "+") == ["ppo", "clip_b(mu=1+1,mode=paper)"]
    assert registry.parse(" clip_b( share=0.02, mode = paper ) ") == ("clip_b", {"share": 0.02, "mode": "paper"})
    assert registry.parse("grpo") == ("grpo", {})
    said = r"""aime24(instruction='One, two) "three" + it''s \boxed{}')"""
    assert registry.split(f"{said},b", ",") == [said, "b"]
    assert registry.parse(said) == ("aime24", {"instruction": r"""One, two) "three" + it's \boxed{}"""})
    assert registry.parse(r'a(x="1, \", 2", y=3)') == ("a", {"x": '1, ", 2', "y": 3})


def test_method_options() -> None:
    loaded = config.load_config("demo", ["methods=[grpo,clip_b,'clip_b(share=0.3)+ppo']"])
    shares = [c.identity["method"][-1].get("share") for c in matrix.cells(loaded)][:3]
    assert shares == [None, loaded.method_options["clip_b"]["share"], 0.3]


def test_load_config_of_a_list_from_a_single_value() -> None:
    """On the command line alone: a file that says `seeds: 0` is asked for what it would be read as."""
    given = ["seeds=3", "methods=clip_b(share=0.1,mode=paper)", "eval.tasks=gsm8k", "plugins=mine", "name=grpo"]
    settings = config.load_config("smoke", given)
    assert settings.seeds == [3]
    assert settings.methods == ["clip_b(share=0.1,mode=paper)"]
    assert settings.eval.tasks == ["gsm8k"]
    assert settings.plugins == ["mine"]
    assert settings.name == "grpo"


def test_load_config_refuses_the_name_of_its_store() -> None:
    place = ["results=r", "tracking.uri=sqlite:///r/runs.db"]
    for name in ("runs.db", "runs.db.lock"):
        with pytest.raises(UserError, match=rf"name is '{name}', which is reserved in the results .* 'runs.db'"):
            config.load_config("smoke", [*place, f"name={name}"])
    for name in ("evaluation", "mlflow", "mlartifacts2", "runs"):
        assert config.load_config("smoke", [*place, f"name={name}"]).name == name
    assert config.load_config("smoke", ["results=other", place[1], "name=runs.db"]).name == "runs.db"
