"""Cells on the machines of a Ray cluster: an existing one, or one of this machine alone that is started for them.

Ray finds room for a cell, on one machine or on several, and notices when a machine is lost: the cell is then started
again elsewhere, and goes on from its last checkpoint. Records go through the results folder where every machine sees
it; elsewhere a cell begins with a copy of its folder, and what it writes is fetched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.base import files
from harness.base.errors import UserError
from harness.base.processes import wait_for_all
from harness.cells import lease, state
from harness.cells.state import State
from harness.config import Config, Hardware
from harness.launch import remote
from harness.launch.launcher import Unprepared, check_extra, ended_by, environment, prepare
from harness.launch.mirror import Piece, Receiver, Sender, Whole
from harness.matrix import Cell

LOSSES = 3  # so often a cell is started again since its machine was lost
ANSWER = 5.0  # seconds for the cluster to answer
LOOK = 60.0  # seconds for its machines to say whether they see the results folder
ENDING = 10.0  # seconds for cells to end
# Seconds from the failure of a rank to the end of its cell: its reason may be a machine whose loss is not known yet.
DOUBT = 45.0
STREAM = {"num_returns": "streaming", "_generator_backpressure_num_objects": 8}  # so many wait to be fetched
SCRATCH = "entrobench-ray-"  # begins the names of folders for cells on machines that do not see the results
LOOK_APART = 2.0  # seconds from one look at what a cell has written, on its machine, to the next
STORE = 100 * 2**20  # bytes for Ray's objects, of which there are hardly any, in a cluster of our own


class Task:
    """A cell for which room was asked, and which runs when there is some."""

    def __init__(self, cell: Cell, cluster: Ray) -> None:
        self.cell, self.cluster = cell, cluster
        self.losses, self.why = 0, ""
        self.result: int | None = None
        self.failed: float | None = None  # when a part of it did
        self.held = contextlib.ExitStack()  # the lease of a cell whose machine cannot take it
        self.ask()

    def ask(self) -> None:
        import ray

        self.parts: list[Any] = []
        self.failed = None
        bundle, nodes = self.cluster.bundle, self.cell.config.hardware.nodes
        self.group = ray.util.placement_group([bundle] * nodes, "STRICT_SPREAD" if nodes > 1 else "STRICT_PACK")

    def begin(self) -> None:
        """Starts the ranks on each machine, after the first machine has said where they meet."""
        try:
            prepare(self.cell)
        except Unprepared as error:
            self.why = str(error)
            self.end(1)
            return
        hardware = self.cell.config.hardware
        place = self.cluster.run(meeting_place, (), self.group, 0, {})
        if self.cluster.apart:
            self.begin_apart(hardware, place)
            return
        for node in range(hardware.nodes):
            given = str(self.cell.folder.absolute()), os.getcwd(), hardware, node, place
            self.parts.append(self.cluster.run(work, given, self.group, node, self.cluster.bundle))

    def begin_apart(self, hardware: Hardware, place: Any) -> None:
        """Sends the cell's folder, which this process holds until the cell has ended there."""
        import ray

        if self.cell.folder not in files.rooms and self.held.enter_context(lease.held(self.cell.folder, 0)) is None:
            self.end(lease.BUSY)
            return
        self.folder = Receiver(self.cell.folder)
        sent = [ray.put(change) for change in Sender(self.cell.folder).changes()]
        given = self.cell.folder.name, sent, os.getcwd(), hardware, place
        self.fetched = self.cluster.run(work_apart, given, self.group, 0, self.cluster.bundle, **STREAM)
        self.parts = [self.fetched.completed()]

    def fetch(self) -> list[int]:
        """Does here what the cell has done on its machine since the last look; returns its exit code when it ended."""
        import ray

        while ray.wait([self.fetched], timeout=0)[0]:
            told = ray.get(next(self.fetched))
            if isinstance(told, int):
                return [told]
            self.folder.take(told)
        return []

    def waits(self) -> str | None:
        return None if self.parts else f"Ray: its machine was lost ({self.losses} of {LOSSES} times), waits for another"

    def code(self) -> int | None:
        import ray
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

        if self.result is not None:
            return self.result
        if not self.parts:
            if self.cluster.placed([self]):
                self.begin()
            return self.result
        try:
            done, _ = ray.wait(self.parts, num_returns=len(self.parts), timeout=0)
            codes = self.fetch() if self.cluster.apart else ray.get(done)
            if any(codes):
                self.failed = self.failed or time.monotonic()
            if len(codes) == len(self.parts) or (self.failed and time.monotonic() - self.failed > DOUBT):
                self.end(next(filter(None, codes), 0))
        except (RayTaskError, OutOfMemoryError) as error:
            self.why = last_line(error)
            self.end(1)
        except RayError as error:  # those of lost machines and workers share no closer class
            self.lost(last_line(error))
        return self.result

    def lost(self, why: str) -> None:
        """Starts the cell again, on another machine."""
        self.losses += 1
        self.why = f"its machine was lost {self.losses} times ({why})"
        if self.losses > LOSSES:
            self.end(1)
            return
        with open(self.cell.folder / "log.txt", "a") as log:
            print(f"its machine was lost ({why}); it is started again, {self.losses} of {LOSSES}", file=log)
        with lease.briefly(self.cell.folder) as ours:
            if ours and State.known(self.cell.folder).state == "failed":  # so say ranks that missed another one
                state.change(self.cell.folder, state="running", reason=None)
        self.stop()
        self.ask()

    def reason(self) -> str:
        return self.why or ended_by(self.result or 0)

    def end(self, code: int) -> None:
        self.result = code
        self.stop()
        self.held.close()

    def stop(self) -> None:
        """Gives its room back, which ends whatever runs there."""
        import ray

        ray.util.remove_placement_group(self.group)

    def kill(self) -> None:
        import ray

        self.end(-signal.SIGKILL)
        ray.wait(self.parts, num_returns=len(self.parts), timeout=ENDING)


class Ray:
    """Asks a Ray cluster for room for all cells, or so many at a time, and starts each that has got it."""

    def __init__(self, config: Config, device: str, jobs: int | None = None) -> None:
        check_extra("ray", "ray")
        self.config, self.jobs = config, jobs
        hardware = config.hardware
        self.bundle = {"CPU": float(hardware.ranks * hardware.threads)}
        if device == "cuda":
            self.bundle["GPU"] = hardware.ranks * hardware.share
        self.asked: dict[str, Task] = {}
        self.running: list[Task] = []
        self.apart = False  # whether some machine does not see the results folder

    def __enter__(self) -> Ray:
        connect(self.bundle)
        import ray

        try:
            self.check_room()
            self.check_folder()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        left = [*self.asked.values(), *(task for task in self.running if task.result is None)]
        for task in left:
            task.stop()
        parts = [part for task in left for part in task.parts]
        if parts:
            ray.wait(parts, num_returns=len(parts), timeout=ENDING)
        for task in left:
            task.held.close()
        ray.shutdown()

    def start(self, waiting: Sequence[Cell]) -> list[Task]:
        self.running = [task for task in self.running if task.result is None]
        for cell in waiting[: None if self.jobs is None else self.jobs - len(self.running)]:
            if cell.key not in self.asked:
                self.asked[cell.key] = Task(cell, self)
        found = self.placed([*self.asked.values()])
        for task in found:
            del self.asked[task.cell.key]
            task.begin()
        self.running += found
        return found

    def placed(self, tasks: Sequence[Task]) -> list[Task]:
        """Returns those of the tasks that have got room."""
        import ray

        known = ray.util.placement_group_table()
        return [task for task in tasks if known.get(task.group.id.hex(), {}).get("state") == "CREATED"]

    def run(
        self, function: Any, given: tuple[Any, ...], group: Any, node: int, takes: dict[str, float], **more: Any
    ) -> Any:
        """Starts a function on a machine of a cell; returns the promise of what it returns."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Placed

        options = {"num_cpus": takes.get("CPU", 0), "num_gpus": takes.get("GPU", 0), "max_retries": 0}
        there = Placed(group, placement_group_bundle_index=node)
        return ray.remote(function).options(**options, **more, scheduling_strategy=there).remote(*given)

    def check_room(self) -> None:
        """Refuses cells for which the cluster will never have room."""
        import ray

        nodes, wanted = self.config.hardware.nodes, " and ".join(f"{n:g} {what}s" for what, n in self.bundle.items())
        machines = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        enough = [each for each in machines if all(each.get(what, 0) >= n for what, n in self.bundle.items())]
        if len(enough) < nodes:
            raise UserError(
                f"a cell needs {nodes} of the cluster's machines with {wanted} each (hardware.nodes, ranks, threads), "
                f"and {len(enough)} of {len(machines)} have as much; ask for less, or add machines"
            )

    def check_folder(self) -> None:
        """Finds out whether all machines see the results folder, which those of one cell must share."""
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        machines = [each for each in ray.nodes() if each["Alive"]]
        look = ray.remote(num_cpus=0, max_retries=0)(sees)
        folder = self.config.folder.absolute()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-") as file:
            there = [On(each["NodeID"], soft=False) for each in machines]
            looks = [look.options(scheduling_strategy=each).remote(file.name) for each in there]
            ray.wait(looks, num_returns=len(looks), timeout=LOOK)
            for machine, promise in zip(machines, looks, strict=True):
                name = machine["NodeManagerHostname"]
                try:
                    seen = ray.get(promise, timeout=0)
                except RayError as error:
                    raise UserError(f"{name} of the Ray cluster cannot run entrobench: {last_line(error)}") from error
                if not seen and self.config.hardware.nodes > 1:
                    raise UserError(
                        f"{name} of the Ray cluster does not see {folder}, as the machines of one cell must "
                        "(hardware.nodes); choose results= on a file system that all share, under the same path"
                    )
                self.apart |= not seen


def connect(bundle: dict[str, float]) -> None:
    """Connects to the cluster that RAY_ADDRESS names, or starts one here."""
    address = os.environ.get("RAY_ADDRESS")
    if "ray" not in sys.modules:  # Ray reads these when it is imported
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not address:  # it listens on loopback alone, and to those who know a secret
            os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="token")
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_urlsafe(32)
    import ray

    said: dict[str, Any] = {"log_to_driver": False, "logging_level": "fatal"}
    if not address:
        cores = max(os.cpu_count() or 1, int(bundle["CPU"]))
        ray.init("local", num_cpus=cores, object_store_memory=STORE, include_dashboard=False, **said)
        return
    remedy = "RAY_ADDRESS must be HOST:PORT of a running cluster that this machine belongs to; `ray status` shows it"
    if "://" in address:
        raise UserError(f"RAY_ADDRESS is {address}; {remedy}")
    try:
        if ":" in address:
            greet(address)
        ray.init(address, **said)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address} ({last_line(error)}); {remedy}") from error


def greet(address: str) -> None:
    """Raises an OSError where nobody answers as Ray's servers do: Ray itself would wait for minutes, silently."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), ANSWER) as there:
        if "RAY_USE_TLS" not in os.environ:
            there.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # no settings
            if there.recv(4)[3:] != b"\4":  # its own settings
                raise ConnectionError("it speaks no HTTP/2")


def last_line(error: Exception) -> str:
    """Returns the end of what Ray says of an error, which comes after the story of it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


# On the machines of the cluster


def sees(path: str) -> bool:
    return Path(path).exists()


def meeting_place() -> tuple[str, int]:
    """Returns this machine's address, and a port that is free."""
    import ray

    with socket.socket() as place:
        place.bind(("", 0))
        return ray.util.get_node_ip_address(), place.getsockname()[1]


def work(folder: str, cwd: str, hardware: Hardware, node: int, place: tuple[str, int]) -> int:
    """Does what the ranks of this machine do of a cell; returns the exit code of one that failed, or 0."""
    if not Path(folder).exists():
        raise FileNotFoundError(f"{socket.gethostname()} does not see {folder}")
    with contextlib.suppress(FileNotFoundError):  # where paths of the configuration begin, on machines that have it
        os.chdir(cwd)
    numbers = range(hardware.ranks)
    meetings = [remote.meeting(node * hardware.ranks + n, n, hardware.world, *place) for n in numbers]
    return wait_for_all([remote.start(folder, {**environment(hardware.threads), **each}) for each in meetings])


def work_apart(
    name: str, sent: Sequence[Any], cwd: str, hardware: Hardware, place: tuple[str, int]
) -> Iterator[Piece | Whole | int]:
    """Does a cell in a folder of this machine, which begins with what was sent; yields what is new there, and in the
    end the exit code."""
    import ray

    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as scratch:
        folder = Path(scratch, name)
        folder.mkdir()
        receiver, sender = Receiver(folder), Sender(folder)
        for each in sent:
            receiver.take(ray.get(each))
        sender.mark()
        with ThreadPoolExecutor(1) as thread:
            ends = thread.submit(work, str(folder), cwd, hardware, 0, place)
            while not wait([ends], LOOK_APART).done:
                yield from sender.changes()
        yield from sender.changes()
    yield ends.result()  # after which nothing here may be running any more


def sweep() -> None:
    """Removes what was left here by processes that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        if lease.born(int(left.name.removeprefix(SCRATCH).partition("-")[0])) is None:
            shutil.rmtree(left, ignore_errors=True)
