r"""Coloring: give each node of a small graph a color, so that no edge joins two nodes of one color.

    b1c10d011:        ->        \boxed{1221}

The prompt has a row for each node from b on, with a 1 for each earlier node that it is joined to: here the edges are
ab, ac, bd and cd. The answer has the color of a, of b, and so on. Problems are generated: a problem is a connected
graph that can be colored. All right answers can be listed, so a score can say how many of them were found.
They come in sets: exchanging two colors of a right answer gives another right answer.

A response is one box and nothing else, as in Countdown.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import ClassVar

from harness.base.schema import check, number
from harness.base.task import SPLITS, Answer, Problem, Verdict, Verifier, check_split

Edges = tuple[str, ...]  # two letters each, both in alphabetical order; the edges too

NODES = "abcdef"
ALL_COLORS = "1234"
GRAPHS = 4000  # at most; if there are more, a seeded sample of them
HELD_OUT = 10  # one problem in ten is for testing, another one for validation

BOXED = re.compile(r"\\boxed\{([^}]*)\}")
COLORS = re.compile(r"[1-9]{1,16}")  # not \d, which matches digits of every script


@dataclass(frozen=True)
class Coloring:
    """Graph coloring, generated: color the nodes so that no edge joins two of one color."""

    name: ClassVar[str] = "coloring"
    splits: ClassVar[tuple[str, ...]] = SPLITS

    nodes: int = number(6, least=4, most=len(NODES))
    colors: int = number(3, least=2, most=len(ALL_COLORS))

    def __post_init__(self) -> None:
        check(Coloring, vars(self), "coloring.")

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of all connected graphs that can be colored, or of a seeded sample of 4,000."""
        check_split(self, split)
        return [make_graph_problem(self, edges) for edges in graphs_of(self, split)]

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        return [self.verdict(problem, response) for problem, response in pairs]

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the colors in the first box of each response.

        If a response has text outside its box, its verdict is unparsed, so the text of its answer is None; the end of
        the answer is still known.
        """
        return [read_colors(response) for _, response in pairs]

    def solutions(self, problem: Problem) -> int:
        """Return the number of right answers to a problem."""
        return len(colorings(tuple(problem.answer.split()), self.nodes, self.colors))

    def flags(self, trained_on: str | None) -> list[str]:
        """Return no warnings: no training problem is used for testing."""
        return []

    def verdict(self, problem: Problem, response: str) -> Verdict:
        """Return right if each node has one of the colors and no edge joins two nodes of one color."""
        answer = read_colors(response)
        if answer is None or answer.text is None:
            return Verdict.UNPARSED
        colors = answer.text
        if len(colors) != self.nodes or int(max(colors)) > self.colors:
            return Verdict.WRONG
        by_node = dict(zip(NODES, colors, strict=False))
        proper = all(by_node[edge[0]] != by_node[edge[1]] for edge in problem.answer.split())
        return Verdict.RIGHT if proper else Verdict.WRONG


def read_colors(response: str) -> Answer | None:
    """Return the answer in the first box of a response; its text is None unless the response is this box alone."""
    box = BOXED.search(response)
    if box is None:
        return None
    alone = box.group() == response and COLORS.fullmatch(box[1])
    return Answer(box[1] if alone else None, box.end())


# Problems


@cache
def colorings(edges: Edges, nodes: int, colors: int) -> list[str]:
    """Return all right answers, in order.

    Nodes are colored one after the other: trying all colors of all nodes would make the start of a cell slow.
    """
    right = [""]
    for node in NODES[:nodes]:
        earlier = [NODES.index(edge[0]) for edge in edges if edge[1] == node]
        longer = []
        for begun in right:
            taken = {begun[place] for place in earlier}
            longer += [begun + color for color in ALL_COLORS[:colors] if color not in taken]
        right = longer
    return right


def connected(edges: Edges, nodes: int) -> bool:
    """Return whether every node can be reached from the first along the edges."""
    reached = {NODES[0]}
    for _ in range(nodes):  # no path is longer
        for edge in edges:
            if reached & set(edge):
                reached |= set(edge)
    return len(reached) == nodes


def graph_digest(edges: Edges) -> int:
    return int.from_bytes(hashlib.sha256(" ".join(edges).encode()).digest()[:8])


def graph_split(edges: Edges) -> str:
    """Return the split of a graph; it depends on its edges only, not on the task's options."""
    return {0: "test", 1: "validation"}.get(graph_digest(edges) % HELD_OUT, "train")


@cache
def graphs(task: Coloring) -> list[Edges]:
    """Return the graphs of a task: all connected ones that can be colored, in a seeded order, up to GRAPHS."""
    pairs = ["".join(pair) for pair in combinations(NODES[: task.nodes], 2)]
    found: list[Edges] = []
    # The bits of a graph's number say which pairs of nodes it joins.
    for number_of_graph in random.Random(0).sample(range(2 ** len(pairs)), 2 ** len(pairs)):
        edges = tuple(pair for place, pair in enumerate(pairs) if number_of_graph >> place & 1)
        if connected(edges, task.nodes) and colorings(edges, task.nodes, task.colors):
            found.append(edges)
            if len(found) == GRAPHS:
                break
    return found


@cache
def graphs_of(task: Coloring, split: str) -> list[Edges]:
    """Return the graphs of a split in the order of their digests, so that the first few are a random sample."""
    in_split = [edges for edges in graphs(task) if graph_split(edges) == split]
    return sorted(in_split, key=graph_digest)


def make_graph_problem(task: Coloring, edges: Edges) -> Problem:
    key = " ".join(edges)
    return Problem(id=key, prompt=graph_prompt(task, edges), answer=key)


def graph_prompt(task: Coloring, edges: Edges) -> str:
    """Return the prompt: a row for each node, since a tiny model learns little from a list of edges."""
    rows = []
    for place in range(1, task.nodes):
        joined = [NODES[earlier] + NODES[place] in edges for earlier in range(place)]
        rows.append(NODES[place] + "".join("01"[edge] for edge in joined))
    return "".join(rows) + ":"


def coloring_examples(task: Coloring, seed: int, solving: float) -> Iterator[tuple[str, str]]:
    """Yield prompts of training problems with responses, without end.

    The share `solving` of the responses is right, each right answer being as likely as another. The others have random
    colors, so that a model learns the form of an answer without solving every problem.
    """
    rng = random.Random(seed)
    train = graphs_of(task, "train")
    while True:
        edges = rng.choice(train)
        if rng.random() < solving:
            colors = rng.choice(colorings(edges, task.nodes, task.colors))
        else:
            colors = "".join(rng.choices(ALL_COLORS[: task.colors], k=task.nodes))
        yield graph_prompt(task, edges), rf"\boxed{{{colors}}}"
