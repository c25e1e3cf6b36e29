"""The commands and examples of README.md, docs/using.md and the tutorial work: run if that is quick, otherwise parsed.

Commands run in this process, so that imports are shared; cells are separate processes.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import run_command
from places import REPOSITORY

import entrobench
from docs import generate
from harness import cli, config, matrix
from harness.commands.common import config_of_arguments

README = (REPOSITORY / "README.md").read_text()
USING = (REPOSITORY / "docs/using.md").read_text()
TUTORIAL = (REPOSITORY / "docs/tutorial.md").read_text()
COMMANDS = re.findall(r"^    ((?:entrobench|make|mlflow) .+?)(?:  +#.*)?$", README + USING, re.MULTILINE)
OURS = [command for command in COMMANDS if command.startswith("entrobench")]
[CONFIGURATION] = re.findall(r"^```yaml\n(.*?)^```", USING, re.MULTILINE | re.DOTALL)
[A_METHOD] = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
FILES = {"yaml": "mine.yaml", "python": "my_methods.py"}  # of the tutorial
BLOCKS = re.findall(r"^```(sh|yaml|python)\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
[TERMINAL] = re.findall(r"^```text\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)

# `smoke` in miniature replaces each matrix that a command names: sampled and trained values do not matter here.
TINY = ["train.steps=1", "train.prompts=4", "train.group=4", "eval.problems=4", "eval.samples=8"]
NAMES_A_MATRIX = ("run", "plan", "status", "leaderboard", "report", "sync", "pack", "unpack")
NOT_RUN = {  # with the reason
    "entrobench init mine.yaml --model ./my-model --data mine.jsonl --hours 2": "needs both; test_init.py has some",
    "entrobench run mine.yaml": "needs what init writes",
    "entrobench run demo train.lr=3e-4 'seeds=[0,1]'": "has many cells",
    "entrobench run demo rollout.engine=vllm": "needs the environment of vLLM",
    "entrobench data prepare": "needs a network",
    "entrobench data check": "needs the real sets",
    "entrobench tune demo-tuned": "trains every candidate; test_tune.py does it in miniature",
    "entrobench dynamics demo": "takes minutes",
    "entrobench adopt FOLDER demo --method grpo --seed 10": "needs what TRL saved; tests/elsewhere has some",
    "entrobench diagnose results/demo/CELL": "needs the folder of a cell; tests/diagnose has some",
    "entrobench export results/demo/CELL my-model": "needs the folder of a cell; test_export.py trains one",
    "entrobench explain all demo": "computes batches of the demo's size",
    "entrobench doctor": "takes ten seconds; test_doctor.py runs it",
    "entrobench check clip_b": "takes ten seconds; test_check.py runs it",
    "entrobench run paper --launcher slurm": "needs SLURM, and the paper's models",
    "entrobench stop demo clip_b": "needs a matrix that runs; tests/launch has one",
    "entrobench run field": "takes hours; other tests train every method in miniature",
    "entrobench leaderboard --experiment demo --uri URI": "needs a server",
}


def run_small(command: str) -> str:
    program, *arguments = shlex.split(command)
    assert program == "entrobench"
    if arguments[0] in NAMES_A_MATRIX and "paper" not in arguments:
        arguments = [*("smoke" if word == "demo" else word for word in arguments), *TINY]
    if arguments[0] == "eval":
        arguments += ["--problems", "4"]
    return run_command(*arguments)


@pytest.fixture(scope="module")
def tutorial(
    tmp_path_factory: pytest.TempPathFactory, put_store: Callable[[Path], None]
) -> tuple[Path, dict[str, list[str]]]:
    """A folder where the tutorial was followed, with the README's method and a packed matrix, and what was printed."""
    folder = tmp_path_factory.mktemp("reader")
    put_store(folder / "results")
    printed: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", sys.path.copy())
        patch.delitem(sys.modules, "my_methods", raising=False)  # other tests have modules of this name
        for language, text in BLOCKS:
            if language in FILES:
                assert f"Save this as `{FILES[language]}`" in TUTORIAL
                Path(FILES[language]).write_text(text)
                continue
            for line in text.splitlines():
                printed.setdefault(line, []).append(run_small(line))
        run_command("pack", "smoke", *TINY, "--out", "demo.zip")  # for `verify demo.zip`
    (folder / "my_methods.py").write_text(A_METHOD)
    return folder, printed


@pytest.fixture
def folder(tutorial: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tutorial[0])
    return tutorial[0]


@pytest.mark.long
@pytest.mark.processes
def test_tutorial(tutorial: tuple[Path, dict[str, list[str]]]) -> None:
    folder, printed = tutorial
    first, second = printed["entrobench run smoke"]
    assert "2 cells, 0 done before, 2 to run" in first
    assert "2 cells, 2 done before, 0 to run" in second
    [other_rate] = printed["entrobench run smoke train.lr=3e-4"]
    assert "2 to run" in other_rate
    [own_method] = printed["entrobench run smoke 'methods=[grpo, positive_only]' --plugin my_methods"]
    assert "2 cells, 1 done before, 1 to run" in own_method
    [axis] = printed["entrobench run smoke 'axes={train.updates: [1, 2]}'"]
    assert "train.updates" in axis
    assert (folder / "results/smoke/report/report.html").exists()


@pytest.mark.processes
@pytest.mark.long
def test_transcript_of_the_terminal(tutorial: tuple[Path, dict[str, list[str]]]) -> None:
    printed, shown = masked(tutorial[1]["entrobench run smoke"][0]), masked(TERMINAL)
    assert printed[: len(shown)] == shown


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [command for command in OURS if command not in NOT_RUN])
def test_commands_run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    assert run_small(command).strip()


@pytest.mark.parametrize("command", NOT_RUN)
def test_slow_commands_are_parsed(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command in OURS, "no page has it any more"
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("base: smoke\n")
    arguments = cli.parse_command(shlex.split(command)[1:])
    if getattr(arguments, "config", None):
        planned = matrix.cells(config_of_arguments(arguments))
        assert planned
        assert vars(arguments).get("seed") in (None, *planned[0].config.seeds)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_make_targets_exist(command: str) -> None:
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=REPOSITORY, check=True, capture_output=True)


def test_mlflow_is_shown_the_store_that_runs_write() -> None:
    (command,) = (command for command in COMMANDS if command.startswith("mlflow"))
    assert shlex.split(command)[-1] == config.load_config("demo").tracking_uri


def masked(text: str) -> list[str]:
    """Return the lines of a transcript without times, numbers, their widths and the order in which cells end."""
    text = re.sub(r"(?m)^\d\d:\d\d:\d\d ", "", text)  # only where the output is no terminal
    text = re.sub(r"\b[0-9a-f]{12}\b", "#", text)  # a digest, whose letters differ by processor
    text = text.replace("‡", "").replace("─", "")  # ‡ marks scores near 0, such as those of four problems
    text = re.sub(r"[+-]?\d+(\.\d+)?", "#", text)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    # Lines that are printed every few seconds, so on busy machines only.
    progress = re.compile(r"(#:#:# )?# of # cells done,|feeding MLflow with cells")
    lines = [line for line in lines if not progress.match(line)]
    # Cells run at the same time, so their order differs.
    done = sorted(line for line in lines if line.startswith("done "))
    return done + [line for line in lines if not line.startswith("done ")]


@pytest.mark.processes
@pytest.mark.long
def test_python_means_the_same_cells(folder: Path) -> None:
    finished = (folder / "results/smoke").glob("*/state.json")
    before = {path: path.stat().st_mtime_ns for path in finished}
    table = entrobench.load("smoke", *TINY).run()
    assert "clip_b" in list(table["method"])
    assert before
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_configuration_plans(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(CONFIGURATION)
    planned = matrix.cells(config.load_config(str(tmp_path / "my.yaml")))
    assert len(planned) == 4 * 5
    assert planned[0].config.rollout.max_new_tokens == config.load_config("demo").rollout.max_new_tokens
    assert yaml.safe_load(CONFIGURATION)["base"] == "demo"


BELOW = sorted(path for top in ("docs", "studies") for path in (REPOSITORY / top).rglob("*.md"))
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *BELOW]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", text):
        target = page.parent / link if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}; {target.name} has {anchors(target)}"
    for name in re.findall(r"docs/(?:evidence/)?[\w-]+\.md", text):
        assert (REPOSITORY / name).exists(), name


def anchors(page: Path) -> list[str]:
    """Return the anchors that GitHub gives to the headings of a page, which it numbers where they would be equal."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    slugs: list[str] = []
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = generate.slug(plain.strip())
        earlier = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each) is not None for each in slugs)
        slugs.append(f"{slug}-{earlier}" if earlier else slug)
    return slugs


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What is *one* answer?", "what-is-one-answer"),
        ("`train.filter`", "trainfilter"),
        ("`clip_b`", "clip_b"),
        (
            "Do our two controls beat a clip of a fixed share? Open",
            "do-our-two-controls-beat-a-clip-of-a-fixed-share-open",
        ),
        ("Seen / not seen", "seen--not-seen"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n## {heading}\n\n```bash\n# no heading\n```\n\n## [{heading}](other.md)\n")
    assert anchors(page) == ["title", anchor, f"{anchor}-1"]


def test_index_has_every_page() -> None:
    docs = REPOSITORY / "docs"
    index = (docs / "README.md").read_text()
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"README.md"}
    generated = {page for page in pages if page.startswith("methods/")}
    assert set(re.findall(r"\]\(((?:evidence/)?[\w-]+\.md)\)", index)) == pages - generated


def test_index_of_studies_has_every_page() -> None:
    studies = REPOSITORY / "studies"
    index = (studies / "README.md").read_text()
    listed = set(re.findall(r"\]\(([\w-]+)/README\.md\)", index))
    assert {page.parent.name for page in studies.glob("*/README.md")} == listed


def paths_in_the_tree() -> list[Path]:
    """Return the paths that the map of the code names, in its order."""
    tree = (REPOSITORY / "docs/code.md").read_text().split("\n\n")[1]
    paths: list[Path] = []
    parent = REPOSITORY
    for line in tree.splitlines():
        indent, names = re.fullmatch(r"    ( *)(.*?)(?:  .*)?", line).groups()  # type: ignore[union-attr]
        parent = parent if indent else REPOSITORY
        paths += [parent / name for name in names.split()]
        if not indent:
            parent = paths[-1]
    return paths


def test_tree_of_the_code() -> None:
    named = set(paths_in_the_tree())
    assert not [path for path in named if not path.exists()]
    parts = [path for path in (REPOSITORY / "harness").iterdir() if not path.name.startswith(("__", "py.typed"))]
    assert not [path for path in parts if path not in named]
