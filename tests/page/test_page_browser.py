"""The page in a real browser: the chromium of the system, driven by playwright (the extra `browser`)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matrices import HOSTILE, HOSTILE_TEXT, experiment

from benchmarks.patience import HANG
from harness.page import page as pages
from harness.page.gather import content_of_experiment
from harness.tracking.store import store

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; it is in the extra browser"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed here"),
]

Page = Any  # of playwright, which may not be here for the type checker either
MATRICES: dict[str, dict[str, Any]] = {
    "plain": {"methods": ["grpo", "clip_b", "clip_v"]},
    "one-seed": {"seeds": [0]},
    "hostile": {"methods": HOSTILE, "failed": [(HOSTILE[1], 1), (HOSTILE[2], 0)], "text": HOSTILE_TEXT},
    "several": {"tasks": ["one", "two"], "models": ["tiny", "a/rather-long-name-of-a-model-with-many-parts-14b"]},
    "many": {"methods": [f"method_{i}(an_option={i},another_option_with_a_name={i})" for i in range(12)], "seeds": [0]},
}
WIDTHS = (360, 1600)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of all matrices."""
    root = tmp_path_factory.mktemp("pages")
    uri = f"sqlite:///{root / 'mlflow.db'}"
    with store(uri, write=True):
        for name, given in MATRICES.items():
            experiment(root / name, uri, name=name, **given)
    return {name: pages.write_page(content_of_experiment(uri, name), root / f"{name}.html") for name in MATRICES}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page in a window of its own, with all that went wrong and all that it asked for."""

    def __init__(self, browser: Any, path: Path, width: int = 1600, **given: Any) -> None:
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
                    plot.scrollIntoView();
                    while (!plot.querySelector('.main-svg')) {
                        if (Date.now() > end) throw new Error(`${plot.id || plot.className} was not drawn`);
                        await new Promise((resolve) => setTimeout(resolve, 10));
                    }
                }
                scrollTo(0, 0);
            }"""
        )
        return int(self.page.locator(".plot").count())


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_all_is_drawn_without_a_complaint_and_nothing_overflows(
    name: str, width: int, written: dict[str, Path], browser: Any
) -> None:
    with Opened(browser, written[name], width) as opened:
        assert opened.draw_all() > 15
        assert opened.said == []
        assert opened.asked == [written[name].as_uri()]
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        ids = opened.page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
        assert len(ids) == len(set(ids))
        cut = """[...document.querySelectorAll('.plot')].filter((plot) => {
            const [inner, outer] = [plot.querySelector('.main-svg'), plot].map((each) => each.getBoundingClientRect());
            return inner.right > outer.right + 1;
        }).length"""
        assert opened.page.evaluate(cut) == 0


def test_names_and_answers_do_nothing_and_are_shown_as_they_are(written: dict[str, Path], browser: Any) -> None:
    with Opened(browser, written["hostile"]) as opened:
        opened.page.on("dialog", lambda dialog: opened.said.append(f"dialog {dialog.message}"))
        opened.draw_all()
        opened.page.hover(".plot.points")
        assert opened.said == []
        assert opened.page.locator("main img, main script, main b").count() == 0
        names = opened.page.locator("#leaderboard-1 tbody th").all_text_contents()
        assert [name.strip() for name in names] == HOSTILE
        assert HOSTILE_TEXT in opened.page.locator(".answers .text").first.text_content()
        axis = opened.page.locator(".plot.dots .ytick text").all_text_contents()
        assert {"<script>alert(1)</script>", "$x^{$ %{y}", "größe-方法-🙂", '"quoted" & <b>bold</b>'} <= set(axis)


def test_the_theme_follows_the_system_and_then_the_reader(written: dict[str, Path], browser: Any) -> None:
    def colours(page: Page) -> tuple[str, str]:
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return back, page.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill")

    seen = {}
    for scheme in ("light", "dark"):
        with Opened(browser, written["plain"], color_scheme=scheme) as opened:
            opened.draw_all()
            seen[scheme] = colours(opened.page)
            toggle = opened.page.get_by_role("button", name="Dark colours")
            assert toggle.get_attribute("aria-pressed") == str(scheme == "dark").lower()
            toggle.focus()
            opened.page.keyboard.press("Enter")
            assert toggle.get_attribute("aria-pressed") == str(scheme == "light").lower()
            seen[f"{scheme}, toggled"] = colours(opened.page)
            opened.page.reload()
            opened.draw_all()
            assert colours(opened.page) == seen[f"{scheme}, toggled"]
    assert seen["light"] == seen["dark, toggled"]
    assert seen["dark"] == seen["light, toggled"]
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


def test_methods_are_hidden_and_shown_everywhere(written: dict[str, Path], browser: Any) -> None:
    with Opened(browser, written["plain"]) as opened:
        opened.draw_all()
        box = opened.page.get_by_label("clip_b", exact=True)

        def shown() -> tuple[int, int, int]:
            lines = opened.page.evaluate("document.querySelector('.plot.points').data.length")
            answers = opened.page.locator(".answers[data-method='clip_b']:visible").count()
            return lines, answers, opened.page.locator("figure[data-method='clip_b']:visible").count()

        before = shown()
        assert before == (3, 3, 1)
        box.focus()
        opened.page.keyboard.press("Space")
        assert shown() == (2, 0, 0)
        opened.page.keyboard.press("Space")
        assert shown() == before


def test_tables_are_sorted_by_keyboard(written: dict[str, Path], browser: Any) -> None:
    with Opened(browser, written["plain"]) as opened:
        table = opened.page.locator("#leaderboard-1")

        def column(place: int) -> list[str]:
            return [text.strip() for text in table.locator(f"tbody tr > :nth-child({place})").all_text_contents()]

        def numbers(place: int) -> list[float]:
            return [float(re.match(r"[+-]?[\d.]+", text).group()) for text in column(place)]  # type: ignore[union-attr]

        for place, name in ((2, "Avg@K"), (8, "entropy, end")):
            table.get_by_role("button", name=name, exact=True).focus()
            for way, falling in (("descending", True), ("ascending", False)):
                opened.page.keyboard.press("Enter")
                assert numbers(place) == sorted(numbers(place), reverse=falling)
                assert len(set(numbers(place))) > 1
                assert table.locator(f"thead th:nth-child({place})").get_attribute("aria-sort") == way
        assert table.locator("[aria-sort]").count() == 1
        table.get_by_role("button", name="method", exact=True).click()
        assert column(1) == ["clip_b", "clip_v", "grpo"]


def test_focus_is_seen(written: dict[str, Path], browser: Any) -> None:
    with Opened(browser, written["plain"]) as opened:
        for _ in range(6):
            opened.page.keyboard.press("Tab")
            style = "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])"
            assert opened.page.evaluate(f"{style}(getComputedStyle(document.activeElement))") == ["solid", "3px"]


def test_printing_draws_everything_in_light_colours(written: dict[str, Path], browser: Any, tmp_path: Path) -> None:
    with Opened(browser, written["plain"], color_scheme="dark") as opened:
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert opened.page.evaluate(
            "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))"
        )
        opened.page.emulate_media(media="print")
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not opened.page.locator("nav").is_visible()
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        opened.page.emulate_media(media="screen")
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert opened.page.pdf(path=tmp_path / "page.pdf").startswith(b"%PDF")
        assert opened.said == []


def test_without_scripts_the_numbers_are_there(written: dict[str, Path], browser: Any) -> None:
    with Opened(browser, written["plain"], java_script_enabled=False) as opened:
        assert "Without JavaScript" in opened.page.locator("noscript").inner_text()
        assert opened.page.locator("figure").count() == opened.page.locator("figure details table").count() > 15


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, fetched by npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which fetches axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "axe-core@4"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not fetch axe-core within two minutes")
    if done.returncode:
        pytest.skip(f"npm could not fetch axe-core: {done.stderr.strip().splitlines()[-1:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize(
    ("name", "scheme"), [("plain", "dark"), ("hostile", "light"), ("one-seed", "light"), ("several", "dark")]
)
def test_axe_finds_nothing_serious(name: str, scheme: str, written: dict[str, Path], browser: Any, axe: str) -> None:
    with Opened(browser, written[name], width=360 if name == "hostile" else 1600, color_scheme=scheme) as opened:
        opened.draw_all()
        opened.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        opened.page.evaluate(axe)
        result = opened.page.evaluate("axe.run({ resultTypes: ['violations'] })")  # all nodes of these alone
        grave = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
        assert not [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in grave]
        assert len(result["passes"]) > 20
