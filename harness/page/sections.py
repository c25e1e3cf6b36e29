"""The sections of the page that consist of figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from harness.page import curves, scores
from harness.page.content import PageContent, ScoreTable
from harness.page.figures import Figure, drawn_methods

SEEDS = "Lines are means over seeds; bands are their 95 % intervals."

# id, title, text, and groups: each has a title, empty where none is needed, and figures with their ids.
Section = dict[str, Any]


def sections_of(content: PageContent) -> list[Section]:
    """Return the sections that consist of figures, without empty ones; the first has those of the finding."""
    methods = drawn_methods(content)
    trainings = {}
    for title, _, of_training in content.trainings():
        trainings[title] = curves.training_figures(of_training, methods)
    ids: set[str] = set()

    def section(id: str, title: str, text: str, groups: Sequence[tuple[str, list[Figure]]]) -> Section:
        numbered = []
        for name, of_group in groups:
            group_title = name if len(groups) > 1 else ""
            with_ids = []
            for figure in of_group:
                with_ids.append((unique_id(f"{id} {group_title} {figure.title}", ids), figure))
            if with_ids:
                numbered.append((group_title, with_ids))
        return {"id": id, "title": title, "text": text, "groups": numbered}

    def of_tables(draw: Callable[[ScoreTable], list[Figure]]) -> list[tuple[str, list[Figure]]]:
        return [(table.title, draw(table)) for table in content.tables]

    def training(group: str) -> list[tuple[str, list[Figure]]]:
        return [(title, by_group.get(group, [])) for title, by_group in trainings.items()]

    sections = [
        section("finding", "Finding", "", of_tables(pareto)),
        section("scores", "Scores", "", of_tables(scores.score_figures)),
        section(
            "axes",
            "Scores over settings",
            "The further axes of the configuration, apart from methods, tasks, models and seeds, one at a time. All "
            "other settings are the same within a figure.",
            scores.axis_groups(content.rows),
        ),
        section("progress", "Scores over steps", "", of_tables(partial(scores.progress_figures, methods=methods))),
        section("entropy", "Entropy", SEEDS, training("Entropy")),
        section("rewards", "Rewards", SEEDS, training("Rewards")),
        section(
            "quadrants",
            "Quadrants",
            "A token's quadrant is given by the sign of its advantage A, and by whether its S* lies above or below its "
            "expectation N. To first order A > 0 with S* > N and A < 0 with S* < N lower the entropy, the other two "
            "raise it. Push: what the tokens of a quadrant that were not dropped add to the predicted change. " + SEEDS,
            training("Quadrants"),
        ),
        section("clips", "Clips", SEEDS, training("Clips")),
        section("lengths", "Responses", f"Of the training batches. {SEEDS}", training("Lengths")),
        section("time", "Time", "", training("Time")),
        section(
            "problems",
            "Problems lost and won",
            "Each point is a problem: how often the model solved it before any training, and how often after; on the "
            "line nothing changed. Squares were lost: solved at least once before, never after. Triangles were won: "
            "never before, at least once after.",
            of_tables(partial(scores.problem_figures, methods=methods)),
        ),
        section("seeds", "Seeds", "", of_tables(partial(scores.seed_figures, methods=methods))),
    ]
    finding, *others = sections
    filled = [other for other in others if other["groups"]]
    return [finding, *filled]


def pareto(table: ScoreTable) -> list[Figure]:
    figure = scores.pareto_figure(table)
    return [] if figure is None else [figure]


def unique_id(text: str, ids: set[str]) -> str:
    """Return a text as an id that a link can name, and add it to the ids that are taken."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    id, number = words, 1
    while id in ids:
        number += 1
        id = f"{words}-{number}"
    ids.add(id)
    return id
