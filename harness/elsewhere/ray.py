"""Cells on the machines of a Ray cluster: an existing one, or one that is started here for them.

Ray finds room for a cell, on one machine or on several, and notices when a machine is lost. The cell is then started
again elsewhere and resumes from its last checkpoint. Every machine must see the results folder, under the same path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.base.devices import usable_cores
from harness.base.errors import UserError
from harness.base.processes import wait_for_all
from harness.base.units import plural
from harness.cells import lease, state
from harness.cells.state import State
from harness.config import Config, Hardware
from harness.launch.launcher import (
    Unprepared,
    check_extra,
    describe_exit,
    environment,
    prepare_cell,
    start_rank,
    torchrun_variables,
)
from harness.matrix import Cell

LOSSES = 3  # restarts of a cell whose machine was lost
# Seconds in which the cluster must answer. A healthy one takes a few; ray.init itself would wait for minutes, silently.
ANSWER = 30.0
LOOK = 60.0  # seconds in which its machines must report whether they see the results folder
ENDING = 10.0  # seconds in which cells must end after their room was taken away
# Seconds from the failure of a rank to the end of its cell. The cause may be the loss of another rank's machine, which
# Ray reports later; a lost machine restarts the cell, any other failure ends it.
DOUBT = 45.0
# Bytes of our own cluster's object store, which cells hardly use; by default Ray would take 30 % of the memory.
STORE = 100 * 2**20


class RayCell:
    """A cell for which room was requested, and which runs once there is some."""

    def __init__(self, cell: Cell, cluster: Ray) -> None:
        self.cell, self.cluster = cell, cluster
        self.losses, self.why = 0, ""
        self.result: int | None = None
        self.failed_at: float | None = None  # when the first of its machines reported a failure
        self.request_room()

    def request_room(self) -> None:
        import ray

        self.parts: list[Any] = []  # one Ray task for each machine
        self.failed_at = None
        bundle, nodes = self.cluster.bundle, self.cell.config.hardware.nodes
        # A bundle is the room for all ranks of one machine, so several bundles must be on as many machines.
        strategy = "STRICT_SPREAD" if nodes > 1 else "STRICT_PACK"
        self.group = ray.util.placement_group([bundle] * nodes, strategy)

    def begin(self) -> None:
        """Start the ranks on each machine; the first machine provides the address where they meet."""
        try:
            prepare_cell(self.cell)
        except Unprepared as error:
            self.why = str(error)
            self.end(1)
            return
        hardware = self.cell.config.hardware
        address = self.cluster.submit(meeting_place, (), self.group, 0, {})
        for node in range(hardware.nodes):
            arguments = str(self.cell.folder.absolute()), os.getcwd(), hardware, node, address
            self.parts.append(self.cluster.submit(run_ranks, arguments, self.group, node, self.cluster.bundle))

    def waits(self) -> bool:
        return not self.parts  # its machine was lost, and no other has room for it

    def code(self) -> int | None:
        import ray
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

        if self.result is not None:
            return self.result
        if not self.parts:
            if self.cluster.with_room([self]):
                self.begin()
            return self.result
        try:
            # Without waiting. `get` raises the error of a part that ended without a code.
            done, _ = ray.wait(self.parts, num_returns=len(self.parts), timeout=0)
            codes = ray.get(done)
            if any(codes):
                self.failed_at = self.failed_at or time.monotonic()
            doubtless = self.failed_at is not None and time.monotonic() - self.failed_at > DOUBT
            if len(codes) == len(self.parts) or doubtless:
                failures = [code for code in codes if code]
                self.end(failures[0] if failures else 0)
        # Both derive from RayError, so they come first: the cell itself has failed, not its machine.
        except (RayTaskError, OutOfMemoryError) as error:
            self.why = last_line(error)
            self.end(1)
        except RayError as error:  # the errors of lost machines and of lost workers have no closer class in common
            self.lost(last_line(error))
        return self.result

    def lost(self, why: str) -> None:
        """Start the cell again, on another machine."""
        self.losses += 1
        self.why = f"its machine was lost {plural(self.losses, 'time')} ({why})"
        if self.losses > LOSSES:
            self.end(1)
            return
        with open(self.cell.folder / "log.txt", "a", encoding="utf-8") as log:
            print(f"its machine was lost ({why}); restart {self.losses} of {LOSSES}", file=log)
        with lease.briefly(self.cell.folder) as ours:
            # Ranks that could no longer reach a lost one have reported a failure, which it is not.
            if ours and State.known(self.cell.folder).state == "failed":
                state.change(self.cell.folder, state="running", reason=None)
        self.release_room()
        self.request_room()

    def reason(self) -> str:
        return self.why or describe_exit(self.result or 0)

    def end(self, code: int) -> None:
        self.result = code
        self.release_room()

    def release_room(self) -> None:
        """Return its room to the cluster, which ends all that runs there."""
        import ray

        ray.util.remove_placement_group(self.group)

    def kill(self) -> None:
        import ray

        self.end(-signal.SIGKILL)
        # Until its ranks have ended, they hold the lease, and no reason could be written into its folder.
        ray.wait(self.parts, num_returns=len(self.parts), timeout=ENDING)


class Ray:
    """The launcher for a Ray cluster: requests room for all cells, or `jobs` at a time, and starts each that has it."""

    def __init__(self, config: Config, device: str, jobs: int | None = None) -> None:
        check_extra("ray", "ray")
        self.config, self.jobs = config, jobs
        hardware = config.hardware
        self.bundle = {"CPU": float(hardware.ranks * hardware.threads)}
        if device == "cuda":
            self.bundle["GPU"] = hardware.ranks * hardware.share
        self.requested: dict[str, RayCell] = {}
        self.running: list[RayCell] = []

    def __enter__(self) -> Ray:
        connect(self.bundle)
        import ray

        try:
            self.check_folder(self.check_room())
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        unfinished = [cell for cell in self.running if cell.result is None]
        parts: list[Any] = []
        # First all rooms, then one wait, so that the cells end at the same time.
        for cell in [*self.requested.values(), *unfinished]:
            cell.release_room()
            parts += cell.parts
        if parts:
            ray.wait(parts, num_returns=len(parts), timeout=ENDING)
        ray.shutdown()

    def start(self, waiting: Sequence[Cell]) -> list[RayCell]:
        self.running = [cell for cell in self.running if cell.result is None]
        number = None if self.jobs is None else self.jobs - len(self.running)
        for cell in waiting[:number]:
            if cell.id not in self.requested:
                self.requested[cell.id] = RayCell(cell, self)
        started = self.with_room([*self.requested.values()])
        for ray_cell in started:
            del self.requested[ray_cell.cell.id]
            ray_cell.begin()
        self.running += started
        return started

    def with_room(self, cells: Sequence[RayCell]) -> list[RayCell]:
        """Return the cells for which the cluster has reserved room."""
        import ray

        groups = ray.util.placement_group_table()  # one request for all cells
        return [cell for cell in cells if groups.get(cell.group.id.hex(), {}).get("state") == "CREATED"]

    def submit(self, function: Any, arguments: tuple[Any, ...], group: Any, node: int, takes: dict[str, float]) -> Any:
        """Start a function on a machine of a cell; return the Ray reference to its result."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

        # By default Ray runs a task again when its worker dies. Here `lost` does, which counts and logs it.
        options = {"num_cpus": takes.get("CPU", 0), "num_gpus": takes.get("GPU", 0), "max_retries": 0}
        there = InGroup(group, placement_group_bundle_index=node)
        return ray.remote(function).options(**options, scheduling_strategy=there).remote(*arguments)

    def check_room(self) -> list[dict[str, Any]]:
        """Return the machines with room for a cell; refuse a cluster that will never have enough of them."""
        import ray

        def has_room(machine: dict[str, Any]) -> bool:
            return all(machine["Resources"].get(name, 0) >= number for name, number in self.bundle.items())

        machines = [machine for machine in ray.nodes() if machine["Alive"]]
        large = [machine for machine in machines if has_room(machine)]
        nodes = self.config.hardware.nodes
        if len(large) < nodes:
            wanted = " and ".join(f"{number:g} {name}s" for name, number in self.bundle.items())
            raise UserError(
                f"a cell needs {plural(nodes, 'machine')} of the cluster with {wanted} each (hardware.nodes, ranks, "
                f"threads), but only {len(large)} of its {plural(len(machines), 'machine')} have that; request less, "
                "or add machines"
            )
        return large

    def check_folder(self, machines: Sequence[dict[str, Any]]) -> None:
        """Refuse machines that do not see the results folder, because all records of a cell go through it."""
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        look = ray.remote(num_cpus=0, max_retries=0)(sees)
        folder = self.config.folder.absolute()
        # A new file, because a machine may have a folder of this name on a disk of its own.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-") as file:
            places = [OnNode(machine["NodeID"], soft=False) for machine in machines]
            looks = [look.options(scheduling_strategy=place).remote(file.name) for place in places]
            ray.wait(looks, num_returns=len(looks), timeout=LOOK)
            for machine, reference in zip(machines, looks, strict=True):
                name = machine["NodeManagerHostname"]
                try:
                    seen = ray.get(reference, timeout=0)
                except RayError as error:  # also GetTimeoutError, if the machine has not answered
                    raise UserError(f"{name} of the Ray cluster cannot run entrobench: {last_line(error)}") from error
                if not seen:
                    raise UserError(
                        f"{name} of the Ray cluster does not see the results folder {folder}; choose results= on a "
                        "file system that all its machines share, under the same path"
                    )


def connect(bundle: dict[str, float]) -> None:
    """Connect to the cluster at RAY_ADDRESS, or start one on this machine."""
    address = os.environ.get("RAY_ADDRESS")
    if "ray" not in sys.modules:  # Ray reads these variables only when it is imported
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not address:  # our own cluster listens on loopback only, and asks for a secret
            # With 0, Ray takes 127.0.0.1 for this machine's address, on Linux too.
            os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="token")
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_urlsafe(32)
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "fatal"}
    if not address:
        # A cell may have more threads than the cores that it may use; with too few, Ray would never find room for it.
        cores = max(usable_cores(), int(bundle["CPU"]))
        ray.init("local", num_cpus=cores, object_store_memory=STORE, include_dashboard=False, **quiet)
        return
    remedy = "RAY_ADDRESS must be HOST:PORT of a running cluster that this machine belongs to; `ray status` shows it"
    if "://" in address:
        raise UserError(f"RAY_ADDRESS is {address}; {remedy}")
    try:
        connected = finished_within(ANSWER, lambda: ray.init(address, **quiet))
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address} ({last_line(error)}); {remedy}") from error
    if not connected:
        raise UserError(f"no Ray cluster answers at {address} within {ANSWER:g} s; {remedy}")


def finished_within(seconds: float, work: Callable[[], object]) -> bool:
    """Run work that may never end, and return whether it ended in time; raise its error."""
    errors: list[Exception] = []

    def work_and_keep_error() -> None:
        try:
            work()
        except Exception as error:  # raised below, in the thread of the caller
            errors.append(error)

    # A daemon thread: if the work never ends, this process can still exit.
    thread = threading.Thread(target=work_and_keep_error, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    return not thread.is_alive()


def last_line(error: Exception) -> str:
    """Return the last line of a message, which in Ray's comes after the traceback of the other machine."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


# On the machines of the cluster


def sees(path: str) -> bool:
    return Path(path).exists()


def meeting_place() -> tuple[str, int]:
    """Return this machine's address and a free port."""
    import ray

    # The port is released again, since rank 0 must listen on it; until then another program could take it.
    with socket.socket() as listener:
        listener.bind(("", 0))
        return ray.util.get_node_ip_address(), listener.getsockname()[1]


def run_ranks(folder: str, cwd: str, hardware: Hardware, node: int, address: tuple[str, int]) -> int:
    """Run the ranks of a cell that belong to this machine; return the exit code of one that failed, or 0."""
    if not Path(folder).exists():  # a machine that joined the cluster after the start
        raise FileNotFoundError(f"{socket.gethostname()} does not see {folder}")
    with contextlib.suppress(FileNotFoundError):  # relative paths of the configuration, where this machine has them
        os.chdir(cwd)
    processes = []
    for local in range(hardware.ranks):
        rank = node * hardware.ranks + local
        meeting = torchrun_variables(rank, local, hardware.world, *address)
        processes.append(start_rank(folder, environment(hardware.threads) | meeting))
    return wait_for_all(processes)
