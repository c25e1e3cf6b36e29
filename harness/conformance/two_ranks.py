"""Whether two processes, each with half of the groups, compute what one does: in real processes that really wait.

A method that reaches a collective on one rank alone waits for ever. So a pair of processes that is not heard of for a
while is ended, the method that it was at has failed, and another pair does the rest.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import baselines
from harness.base.processes import python_command
from harness.conformance.probe import Outcome, Probe, outcome, tied, whole
from harness.conformance.subject import (
    Failed,
    Finding,
    Subject,
    compare,
    finding,
    kind_of,
    near,
    require_finite,
    singly,
)
from harness.dist import ranks

NAME, WORLD, UPDATES, GROUPS = "ranks", 2, 2, 8
PATIENCE_S = 60.0  # for the next sign of life
ADVICE = (
    "take statistics of the whole batch with batch.global_...; every rank must come to each of them, and as often as "
    "the others: never under a condition of its own, and never in a verb that sees a part of a mini-batch"
)


def check(specs: Sequence[str], plugins: Sequence[str]) -> dict[str, Finding]:
    """Compares each method on two ranks with the same on one."""
    found: dict[str, Finding] = {}
    table = baselines.table(plugins, {})
    while len(found) < len(specs):
        left = [spec for spec in specs if spec not in found]
        with tempfile.TemporaryDirectory() as folder:
            ended = pair(left, plugins, Path(folder))
            for number, spec in enumerate(left):
                said = [Path(folder) / f"{number}-{rank}" for rank in range(WORLD)]
                if all(path.with_suffix(".pt").exists() for path in said):
                    parts = [read(path.with_suffix(".pt")) for path in said]
                    found[spec] = finding(NAME, ADVICE, partial(joined, Subject(spec, table), parts))
                    continue
                errors = [path.with_suffix(".txt") for path in said]
                why = next((path.read_text() for path in errors if path.exists()), ended)
                found[spec] = Finding(NAME, False, why, ADVICE)
                break
    return found


def read(path: Path) -> dict[str, Any]:
    """Returns what a rank has written: tensors, and nothing that runs when it is read."""
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def joined(subject: Subject, parts: list[dict[str, dict[str, Any]]]) -> str:
    """Compares what the ranks found with one process that has all groups."""
    for name, given in probes(subject).items():
        alone, found = outcome(subject.make(), given, UPDATES), [part[name] for part in parts]
        index_T = torch.cat([each["index_T"] for each in found])
        for column in ("advantages_T", "weights_T"):
            on_one_T, on_ranks_T = vars(alone.signal)[column][index_T], torch.cat([each[column] for each in found])
            require_finite(f"one of the {column.removesuffix('_T')}", on_one_T, on_ranks_T)
            if not near(on_one_T, on_ranks_T):
                raise Failed(f"{column.removesuffix('_T')} are others on {WORLD} ranks than on one{name}")
        loss, gradient_TV = sum(each["loss"] for each in found), torch.cat([each["gradient_TV"] for each in found])
        compare(alone, Outcome(alone.signal, loss, gradient_TV), index_T, f"on {WORLD} ranks{name}")
    return f"{WORLD} processes, with half of the groups each, find what one does"


def probes(subject: Subject) -> dict[str, Probe]:
    given = subject.probe(groups=GROUPS)
    return {"": given, ", with ties": tied(given)}


def pair(specs: Sequence[str], plugins: Sequence[str], folder: Path) -> str:
    """Runs the processes until both have ended, one has failed, or nothing is heard of them; returns why they ended."""
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    shared = {"WORLD_SIZE": str(WORLD), "GLOO_SOCKET_IFNAME": loopback, "RENDEZVOUS": f"{folder}/meeting"}
    processes = [
        subprocess.Popen(
            python_command(
                "from harness.conformance import two_ranks; two_ranks.rank()",
                json.dumps([list(specs), list(plugins), str(folder)]),
            ),
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,  # which closes when this process ends, however it does
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    heard, last = 0, time.monotonic()
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes):
            break
        if (now := len(list(folder.glob("*-*")))) > heard:
            heard, last = now, time.monotonic()
        if time.monotonic() - last > PATIENCE_S:
            break
        time.sleep(0.05)
    waited = None in codes and not any(codes)
    for process in processes:
        process.kill()
    errors = [process.communicate()[1] for process in processes]
    if waited:
        return f"a rank waited {PATIENCE_S:.0f} s for another that did not come"
    return next((error.strip().splitlines()[-1] for error in errors if error.strip()), "a rank ended without a word")


def rank() -> None:
    """In the process of a rank."""
    ranks.end_with_parent(threading.Event())
    torch.set_num_threads(1)
    specs, plugins, folder = json.loads(sys.argv[1])
    table, own = baselines.table(plugins, {}), int(os.environ["RANK"])
    with ranks.process_group(WORLD, "cpu"):
        for number, spec in enumerate(specs):
            place = Path(folder) / f"{number}-{own}"
            try:
                part = half(Subject(spec, table), own)
            except Exception as error:  # whatever a method does, it is a finding
                place.with_suffix(".txt").write_text(kind_of(error))
                sys.exit(1)
            torch.save(part, place.with_suffix(".partial"))
            place.with_suffix(".partial").rename(place.with_suffix(".pt"))
            # By files, since after a collective too few or too many the ranks no longer understand each other.
            while not all((Path(folder) / f"{number}-{other}.pt").exists() for other in range(WORLD)):
                time.sleep(0.01)


def half(subject: Subject, own: int) -> dict[str, dict[str, Any]]:
    """Computes this rank's equal part of each mini-batch; the ranks split theirs into different numbers of parts."""
    share, kept = GROUPS // UPDATES // WORLD, {}
    starts = ((WORLD * update + own) * share for update in range(UPDATES))
    rows = [
        group * subject.size + i
        for start in starts
        for group in range(start, start + share)
        for i in range(subject.size)
    ]
    for name, given in probes(subject).items():
        found = outcome(subject.make(), given.take(rows), UPDATES, singly if own else whole)
        kept[name] = {
            "index_T": given.batch.take(rows).index_T,
            "advantages_T": found.signal.advantages_T,
            "weights_T": found.signal.weights_T,
            "loss": found.loss,
            "gradient_TV": found.gradient_TV,
        }
    return kept
