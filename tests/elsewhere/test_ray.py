"""Cells on a real Ray cluster of several simulated machines, one of which is lost."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import Watcher, lines, planned
from patience import HANG, patient
from places import RARELY_SEARCHING

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # it listens on loopback alone; read when Ray is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from harness.base.errors import UserError
from harness.base.processes import python_command
from harness.cells.state import State
from harness.config import Config
from harness.elsewhere import ray as clusters
from harness.elsewhere.ray import Ray
from harness.launch import cell, launcher
from harness.matrix import Cell

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of a head without room and two machines of one core each.

    A machine that is gone refuses each of three health checks, so it is noticed after 2 instead of 15 seconds.
    """
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", RARELY_SEARCHING, prepend=os.pathsep)  # for Ray's own processes
        checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": checks}
        opened = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                opened.add_node(num_cpus=1)
            yield opened
        finally:
            opened.shutdown()


@pytest.fixture
def address(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    cluster.wait_for_nodes(HANG)  # of which a test may have just removed one
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    place: str = cluster.address
    return place


class Losing(Watcher):
    """Kills the last of the machines that a cell runs on, once, when the cell has got some way."""

    def __init__(self, cell: Cell, ray: Ray, cluster: Any) -> None:
        super().__init__(self.look)
        self.cell, self.ray, self.cluster, self.lost = cell, ray, cluster, False

    def look(self, running: list[Cell]) -> None:
        if (
            running
            and not self.lost
            and 2 <= State.read(self.cell.folder).durable_step < self.cell.config.train.steps - 2
        ):
            from ray.util import placement_group_table

            [task] = self.ray.running
            *_, name = placement_group_table(task.group)["bundles_to_node_id"].values()
            machine = next(node for node in self.cluster.worker_nodes if node.node_id == name)
            self.cluster.remove_node(machine, allow_graceful=False)
            self.cluster.add_node(num_cpus=1)
            self.lost = True


@pytest.mark.parametrize(("machines", "steps"), [(2, 10), (1, 24)], ids=["two", "one"])
def test_run_cells_with_a_lost_machine(machines: int, steps: int, cluster: Any, address: str, tmp_path: Path) -> None:
    there = planned(tmp_path / "there", f"train.steps={steps}", f"hardware.nodes={machines}")
    there.folder.mkdir(parents=True)
    ray = Ray(there.config, "cpu")
    watcher = Losing(there, ray, cluster)
    launcher.run_cells([there], ray, watcher, poll=0.05)
    assert watcher.lost
    assert [cell.label for cell in watcher.heard] == [there.label]
    state = State.read(there.folder)
    assert (state.state, state.where) == ("done", [socket.gethostname()] * machines), state
    assert "restart 1 of 3" in (there.folder / "log.txt").read_text()
    assert [*lines(there.folder)] == [*range(steps + 1)]
    if machines == 1:
        here = planned(tmp_path / "here", f"train.steps={steps}")
        here.spec.write(here.folder)
        cell.work(here.folder)
        assert lines(there.folder) == lines(here.folder)


def test_run_cells_with_a_cell_that_takes_too_long(cluster: Any, address: str, tmp_path: Path) -> None:
    slow = planned(tmp_path, "hardware.timeout_minutes=0.005")
    slow.folder.mkdir(parents=True)
    ray = Ray(slow.config, "cpu")
    launcher.run_cells([slow], ray, Watcher(), poll=0.05)
    state = State.read(slow.folder)
    assert (state.state, state.reason) == ("failed", "it took longer than hardware.timeout_minutes (0.005)")


def refusal(settings: Config) -> str:
    settings.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with pytest.raises(UserError) as error, Ray(settings, "cpu"):
        pass
    assert time.monotonic() - began < patient(30)
    return str(error.value)


def test_ray_refuses_cells_too_large_for_the_cluster(address: str, tmp_path: Path) -> None:
    message = refusal(planned(tmp_path, "hardware.threads=3").config)
    assert "a cell needs 1 machine of the cluster with 3 CPUs each" in message
    assert "but only 0 of its 3 machines have that" in message


def test_ray_refuses_results_that_a_machine_does_not_see(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "sees", os.path.islink)  # which the probe file is not
    message = refusal(planned(tmp_path).config)
    assert f"does not see the results folder {tmp_path}" in message
    assert "choose results= on a file system that all its machines share" in message


@pytest.mark.parametrize("listens", [False, True], ids=["no server", "not Ray"])
def test_connect_refuses_an_address_without_a_cluster(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, because Ray goes on trying to connect."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    command = python_command("from harness.elsewhere import ray", "ray.ANSWER = 1.0; ray.connect({'CPU': 1.0})")
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        if not listens:
            server.close()
        monkeypatch.setenv("RAY_ADDRESS", place)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert f"UserError: no Ray cluster answers at {place} within 1 s" in ran.stderr
    assert "RAY_ADDRESS must be HOST:PORT of a running cluster" in ran.stderr


def test_connect_starts_a_private_cluster() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    code = "ray.connect({'CPU': 1.0}); print(os.environ['RAY_AUTH_TOKEN']); input()"
    names = [name for name in os.environ if name.startswith("RAY_")]
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = python_command("import os; from harness.elsewhere import ray", code)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean) as driver:
        assert driver.stdout is not None
        secret = driver.stdout.readline().strip()
        places = [place for process in knowing(secret) | {driver.pid} for place in listening(process)]
        driver.communicate("\n")
    assert len(secret) > 30
    assert len(places) > 4
    assert set(places) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def knowing(secret: str) -> set[int]:
    """Return the processes that have a text in their environment."""
    processes = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if secret.encode() in path.read_bytes():
                processes.add(int(path.parent.name))
    return processes


def listening(process: int) -> list[str]:
    """Return the addresses at which a process listens, as the kernel writes them."""
    sockets = {os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()}
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def test_ray_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal(planned(tmp_path).config) == "--launcher ray needs the extra ray: pip install -e '.[ray]'"
