"""The page in a real browser: the chromium of the system, driven by playwright (the extra `browser`)."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from matrices import FIFTY, HOSTILE, HOSTILE_TEXT, MANY_PROBLEMS, ranked_right, send_matrix
from patience import HANG

from harness.page import page as pages
from harness.page.content import content_of_experiment
from harness.tracking.store import store

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; it is in the extra browser"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed here"),
]

Page = Any  # of playwright, which may not be here for the type checker either
MANY = FIFTY[:20]
MATRICES: dict[str, dict[str, Any]] = {
    "plain": {"methods": ["grpo", "clip_b", "clip_v"]},
    "one-seed": {"seeds": [0]},
    "hostile": {"methods": HOSTILE, "failed": [(HOSTILE[1], 1), (HOSTILE[2], 0)], "text": HOSTILE_TEXT},
    "several": {"tasks": ["one", "two"], "models": ["tiny", "a/rather-long-name-of-a-model-with-many-parts-14b"]},
    "many": {"methods": MANY, "problems": MANY_PROBLEMS, "right_at": ranked_right},
    "fifty": {"methods": FIFTY, "problems": MANY_PROBLEMS, "right_at": ranked_right},
}
WIDTHS = (420, 1400)
BASELINE = FIFTY[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the page of a matrix, which it writes for the first test that asks for it."""
    root = tmp_path_factory.mktemp("pages")
    uri = f"sqlite:///{root / 'mlflow.db'}"

    @cache
    def page_of(name: str) -> Path:
        with store(uri, write=True):
            send_matrix(root / name, uri, name=name, **MATRICES[name])
        return pages.write_page(content_of_experiment(uri, name), root / f"{name}.html")

    return page_of


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page in a window of its own, with all that went wrong and all that it asked for."""

    def __init__(self, browser: Any, path: Path, width: int = 1400, **given: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **given)
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def draw_all(self) -> int:
        """Scrolls through the page as a slow reader does, to the next figure when one is drawn; returns how many."""
        self.page.evaluate(
            """async () => {
                const end = Date.now() + 120_000;
                for (const plot of document.querySelectorAll('.plot')) {
                    if (plot.closest('[hidden]')) continue;  // of many methods, those in color have their own
                    plot.scrollIntoView();
                    while (!plot.querySelector('svg')) {
                        if (Date.now() > end) throw new Error(`${plot.id || plot.className} was not drawn`);
                        await new Promise((resolve) => setTimeout(resolve, 10));
                    }
                }
                scrollTo(0, 0);
            }"""
        )
        return int(self.page.locator(".plot").count())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", MATRICES)
def test_page_is_drawn(name: str, width: int, written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written(name), width) as opened:
        assert opened.draw_all() > 15
        assert opened.said == []
        assert opened.asked == [written(name).as_uri()]
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        ids = opened.page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
        assert len(ids) == len(set(ids))
        cut = """[...document.querySelectorAll('.plot')].filter((plot) => {
            if (plot.closest('[hidden]')) return false;
            const [inner, outer] = [plot.querySelector('svg'), plot].map((each) => each.getBoundingClientRect());
            return inner.right > outer.right + 1;
        }).length"""
        assert opened.page.evaluate(cut) == 0


def test_page_of_hostile_names(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("hostile")) as opened:
        opened.page.on("dialog", lambda dialog: opened.said.append(f"dialog {dialog.message}"))
        opened.draw_all()
        opened.page.hover(".plot.points .marker >> nth=0", force=True)
        assert opened.page.locator(".tip:visible").count() == 1
        assert opened.said == []
        assert opened.page.locator("main img, main script, main b").count() == 0
        names = opened.page.locator("#leaderboard-1 tbody th").all_text_contents()
        assert {*HOSTILE} <= {name.strip() for name in names}
        assert HOSTILE_TEXT in opened.page.locator(".answers .text").first.text_content()
        axis = opened.page.locator(".plot.dots .y-tick").all_text_contents()
        assert {"<script>alert(1)</script>", "$x^{$ %{y}", "größe-方法-🙂", '"quoted" & <b>bold</b>'} <= set(axis)


def test_theme(written: Callable[[str], Path], browser: Any) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        with Opened(browser, written("plain"), color_scheme=scheme) as opened:
            opened.draw_all()
            back = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            seen[scheme] = back, opened.page.evaluate("getComputedStyle(document.querySelector('.plot .x-tick')).fill")
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


def test_hide_methods(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("plain")) as opened:
        opened.draw_all()
        box = opened.page.get_by_role("checkbox", name="clip_b", exact=True)

        def shown() -> tuple[int, int, int, int]:
            points = opened.page.locator(".plot.points >> nth=0").locator(".series").count()
            answers = opened.page.locator(".answers[data-method='clip_b']:visible").count()
            rows = opened.page.locator(".forest tr[data-method='clip_b']:visible").count()
            rows += opened.page.locator("#leaderboard-1 tr[data-method='clip_b']:visible").count()
            return points, answers, rows, opened.page.locator("figure[data-method='clip_b']:visible").count()

        before = shown()
        assert before == (4, 1, 2, 1)  # of the answers, the first problem is open
        box.focus()
        opened.page.keyboard.press("Space")
        assert shown() == (3, 0, 0, 0)
        opened.page.keyboard.press("Space")
        assert shown() == before


def test_search_methods(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("many")) as opened:
        opened.draw_all()
        rows = opened.page.locator("#leaderboard-1 tbody tr:visible")
        points = opened.page.locator(".plot.points >> nth=0").locator(".series")
        every = len(MANY) + 1  # with the base model
        assert (rows.count(), points.count()) == (every, every)
        opened.page.get_by_role("searchbox", name="Find a method").fill("Method_1")
        searched = [name for name in MANY if "method_1" in name]
        assert [text.strip() for text in rows.locator("th").all_text_contents()] == searched
        assert opened.page.locator(".forest tbody tr:visible").count() == len(searched)
        assert opened.page.locator("#methods li:visible").count() == len(searched)
        assert points.count() == len(searched)
        opened.page.get_by_role("button", name="Hide all").click()
        assert (rows.count(), points.count()) == (0, 0)
        opened.page.get_by_role("searchbox", name="Find a method").fill("")
        assert (rows.count(), points.count()) == (every - len(searched), every - len(searched))
        opened.page.get_by_role("button", name="Show all").click()
        assert (rows.count(), points.count()) == (every, every)


def test_colors_of_many_methods(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("many")) as opened:
        opened.draw_all()
        forest = opened.page.locator(".forest tbody tr")
        order = forest.evaluate_all("(rows) => rows.map((row) => row.dataset.method)")
        trained = [name for name in order if name != "base model"]
        plot = opened.page.locator(".plot.lines >> nth=0")

        def colored() -> set[str]:
            names = forest.evaluate_all(
                "(rows) => rows.filter((row) => row.style.getPropertyValue('--own')).map((row) => row.dataset.method)"
            )
            return {*names}

        front = opened.page.evaluate(
            "Object.values(JSON.parse(document.getElementById('figures').textContent)).find((figure) => "
            "figure.options.front).options.front"
        )
        expected = {*front, "base model", BASELINE}
        assert colored() == expected - {BASELINE}  # which the forest has no line for
        assert plot.locator(".label").count() == len(expected)
        assert plot.locator(".series").count() == len(MANY) + 1
        assert plot.locator(".series.gray").count() == len(MANY) + 1 - len(expected)
        chosen = next(name for name in trained if name not in expected)
        opened.page.get_by_role("button", name=f"Color {chosen}", exact=True).click()
        assert colored() == {*expected, chosen} - {BASELINE}
        assert plot.locator(".label").count() == len(expected) + 1
        assert plot.locator(".series.gray").count() == len(MANY) - len(expected)


def test_click_at_a_point(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("plain")) as opened:
        opened.draw_all()
        button = opened.page.get_by_role("button", name="Color clip_v", exact=True)
        assert button.get_attribute("aria-pressed") == "true"  # as of all methods, if they are few
        marker = opened.page.locator(".plot.dots >> nth=0").locator(".series >> nth=2").locator(".marker >> nth=0")
        marker.click(force=True)
        assert button.get_attribute("aria-pressed") == "false"


def test_finding_on_a_phone(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("many"), 420) as opened:
        sentences = opened.page.locator(".finding")
        assert sentences.count() == 2
        boxes = [sentences.nth(place).bounding_box() for place in range(2)]
        boxes.append(opened.page.locator(".forest tbody tr >> nth=5").bounding_box())
        assert all(box["y"] + box["height"] < 900 for box in boxes)


def test_copy_table_and_save_figure(written: Callable[[str], Path], browser: Any, tmp_path: Path) -> None:
    with Opened(browser, written("plain"), permissions=["clipboard-read", "clipboard-write"]) as opened:
        opened.draw_all()
        opened.page.locator(".tabled:has(#leaderboard-1)").get_by_role("button", name="Copy table").click()
        opened.page.get_by_role("button", name="Copied").wait_for()
        header, *lines = opened.page.evaluate("navigator.clipboard.readText()").split("\n")
        assert header.split("\t")[:3] == ["method", "Avg@K", "Pass@2"]
        assert [line.split("\t")[0] for line in lines] == ["base model", "grpo", "clip_b", "clip_v"]
        figure = opened.page.locator("figure:has(.plot.lines) >> nth=0")
        figure.locator("summary").click()
        with opened.page.expect_download() as saved:
            figure.get_by_role("button", name="Download as CSV").click()
        saved.value.save_as(tmp_path / "numbers.csv")
        lines = list(csv.DictReader((tmp_path / "numbers.csv").read_text().splitlines()))
        data = opened.page.evaluate("JSON.parse(document.getElementById('figures').textContent)")
        series = data[figure.get_attribute("id")]["series"]
        expected = []
        for each in series:
            for place, x in enumerate(each["x"]):
                expected.append((each["name"], float(x), each["y"][place]))
        drawn_y = "Pass@k"
        assert [
            (line["series"], float(line["k, samples of a problem"]), float(line[drawn_y])) for line in lines
        ] == expected


def test_link_of_a_figure(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("plain")) as opened:
        opened.draw_all()
        link = opened.page.get_by_role("link", name="Link to the figure Entropy over steps")
        link.click()
        assert opened.page.url.endswith("#entropy-entropy-over-steps")
        assert opened.page.locator("#entropy-entropy-over-steps figcaption").is_visible()


def test_sort_tables_by_keyboard(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("plain")) as opened:
        table = opened.page.locator("#leaderboard-1")

        def column(place: int) -> list[str]:
            return [text.strip() for text in table.locator(f"tbody tr > :nth-child({place})").all_text_contents()]

        def numbers(place: int) -> list[float]:
            matches = [re.match(r"[+-]?[\d.]+", text) for text in column(place)]
            return [float(match.group()) for match in matches if match]

        for place, name in ((2, "Avg@K"), (9, "entropy, end")):
            table.get_by_role("button", name=name, exact=True).focus()
            for way, falling in (("descending", True), ("ascending", False)):
                opened.page.keyboard.press("Enter")
                assert numbers(place) == sorted(numbers(place), reverse=falling)
                assert len(set(numbers(place))) > 1
                assert table.locator(f"thead th:nth-child({place})").get_attribute("aria-sort") == way
        assert table.locator("[aria-sort]").count() == 1
        verdicts = table.locator("tbody tr > :nth-child(6)")
        verdicts.evaluate_all("cells => cells.forEach((cell, i) => cell.textContent = ['', 'wins', 'loses', ''][i])")
        table.get_by_role("button", name="verdict", exact=True).click()
        assert column(6) == ["wins", "loses", "", ""]
        table.get_by_role("button", name="method", exact=True).click()
        assert column(1) == ["base model", "clip_b", "clip_v", "grpo"]


def test_focus_is_visible(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("plain")) as opened:
        for _ in range(6):
            opened.page.keyboard.press("Tab")
            style = "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])"
            assert opened.page.evaluate(f"{style}(getComputedStyle(document.activeElement))") == ["solid", "3px"]


def test_print_page(written: Callable[[str], Path], browser: Any, tmp_path: Path) -> None:
    with Opened(browser, written("plain"), color_scheme="dark") as opened:
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert opened.page.evaluate(
            "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg'))"
        )
        opened.page.emulate_media(media="print")
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not opened.page.locator("aside").is_visible()
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        opened.page.emulate_media(media="screen")
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert opened.page.pdf(path=tmp_path / "page.pdf").startswith(b"%PDF")
        assert opened.said == []


def test_page_without_scripts(written: Callable[[str], Path], browser: Any) -> None:
    with Opened(browser, written("plain"), java_script_enabled=False) as opened:
        assert "need JavaScript" in opened.page.locator("noscript").inner_text()
        assert (
            opened.page.locator("figure:not(.forest)").count()
            == opened.page.locator("figure details table").count()
            > 15
        )
        assert opened.page.locator(".forest tbody tr").count() == 3


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, fetched by npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which fetches axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "axe-core@4"]
    command += ["--fetch-retries=0", "--fetch-timeout=20000"]  # without a network, npm would try for more than a minute
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    if done.returncode:
        pytest.skip(f"npm could not fetch axe-core: {done.stderr.strip().splitlines()[-1:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("plain", "dark", 1400),
        ("hostile", "light", 420),
        ("one-seed", "light", 1400),
        ("several", "dark", 1400),
        ("many", "light", 420),
        *product(["fifty"], ["light", "dark"], WIDTHS),
    ],
)
def test_accessibility(
    name: str, scheme: str, width: int, written: Callable[[str], Path], browser: Any, axe: str
) -> None:
    with Opened(browser, written(name), width, color_scheme=scheme) as opened:
        opened.draw_all()
        opened.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        opened.page.evaluate(axe)
        result = opened.page.evaluate("axe.run({ resultTypes: ['violations'] })")  # all nodes of these alone
        violations = []
        for each in result["violations"]:
            violations.append((each["id"], [node["html"][:200] for node in each["nodes"][:3]]))
        assert violations == []
        assert len(result["passes"]) > 20
