"""A local cluster is reachable from this machine only, and a lost head ends its driver with one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyvoc.cluster.connect import LOOPBACK

pytest.importorskip("ray", reason="needs Ray: pip install 'polyvoc[cluster]'")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
DRIVER = """
import time
from polyvoc.cluster.connect import connect

ray = connect("local")
print(ray.get(ray.remote(lambda: "started").remote()), ray.get_runtime_context().gcs_address, flush=True)
time.sleep(3600)
"""
STRANGER = """
import sys
import ray

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(ray.get(ray.remote(lambda: "run for a stranger").remote()))
"""
LISTENING = "0A"  # state of a socket in /proc/net/tcp
LOCAL_ADDRESSES = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[str]]:
    """A program with a local cluster."""
    started = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        tree = processes(started.pid)
        started.terminate()
        started.communicate()
        for process in tree:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue


def gcs_address(driver: subprocess.Popen[str]) -> str:
    """Wait until the cluster runs tasks; return its address."""
    assert driver.stdout is not None
    word, address = driver.stdout.readline().split()
    assert word == "started"
    return address


def processes(root: int) -> list[int]:
    """Return a process and all below it."""
    found, pending = [], [root]
    while pending:
        process = pending.pop()
        found.append(process)
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            pending += map(int, children.read_text().split())
    return found


def listening_addresses(process: int) -> set[str]:
    """Return the addresses, in the digits of the kernel, that a process listens at."""
    inodes = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and inode in inodes:
                found.add(local.rpartition(":")[0])
    return found


def test_a_local_cluster_listens_at_the_loopback_address_only(driver: subprocess.Popen[str]) -> None:
    address = gcs_address(driver)
    assert address.startswith(f"{LOOPBACK}:")
    listening = {process: listening_addresses(process) for process in processes(driver.pid)}
    assert sum(map(bool, listening.values())) >= 3, "the head, the node and the driver"
    assert set().union(*listening.values()) <= LOCAL_ADDRESSES


def test_another_program_needs_the_token(driver: subprocess.Popen[str]) -> None:
    """Loopback ports are open to all users of a machine, and Ray runs any code."""
    ray_version = tuple(map(int, pytest.importorskip("ray").__version__.split(".")[:2]))
    if ray_version < (2, 52):
        pytest.skip("this Ray has no tokens")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", STRANGER, gcs_address(driver)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode != 0 and "run for a stranger" not in done.stdout


def test_a_lost_head_ends_the_program_with_one_line(driver: subprocess.Popen[str]) -> None:
    address = gcs_address(driver)
    (head,) = [one for one in processes(driver.pid) if Path(f"/proc/{one}/comm").read_text().startswith("gcs_server")]
    os.kill(head, signal.SIGKILL)
    assert driver.stderr is not None
    last = [line for line in driver.stderr.read().splitlines() if line.strip()][-1]  # read to its end: the program has ended
    assert driver.wait() == 1
    assert last == (
        f"polyvoc: the head of the Ray cluster, {address}, does not respond; start it again and repeat the command; "
        "what was committed is kept"
    )
