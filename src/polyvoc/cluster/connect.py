"""The door to Ray; what every worker must have."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

from polyvoc import __version__
from polyvoc.errors import ClusterError, OptionError
from polyvoc.features.extract import OPENCV

CALLS = 16  # that one actor works on at a time
PROBE_SECONDS = 5.0
AUTO = "auto"  # the cluster that runs on this machine, or the one that the environment names, RAY_ADDRESS
LOCAL = "local"  # a cluster of this machine alone, which ends with the program
_lock = threading.Lock()
# Ray would ask the internet whether it may count its users, and warn of what the next version does with graphics cards.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def connect(address: str) -> Any:
    """Give the module of Ray, connected to a cluster: at its address, at "auto", or "local" for one on this machine.

    A program that is connected already stays so.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise OptionError("Ray is not installed; install it: pip install 'polyvoc[cluster]'") from None
    with _lock:
        if ray.is_initialized():
            return ray
        _probe(address)
        try:
            ray.init(address, include_dashboard=False if address == LOCAL else None, log_to_driver=False,
                     logging_level=logging.ERROR)  # fmt: skip
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_answer(address, f": {error}" if address != AUTO else "") from None
    return ray


def _probe(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would wait for a minute."""
    if address in (LOCAL, AUTO):
        return
    if "://" in address:
        raise OptionError(
            f"ray={address!r} should be HOST:PORT of the cluster itself, auto or local; run this on one of its machines"
        )
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PROBE_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_answer(address, f": {error}") from None


def _no_answer(address: str, reason: str) -> ClusterError:
    return ClusterError(f"no Ray cluster answers at {address!r}{' '.join(reason.split())[:120]}; start one: ray start --head")


def disconnect() -> None:
    """Leave the cluster, if the program is in one; one of this machine alone ends."""
    import ray

    with _lock:
        if ray.is_initialized():
            ray.shutdown()


def count_cores(ray: Any) -> int:
    """Count the cores that the machines of a cluster offer, at least 1."""
    return max(int(sum(cluster_cores(ray).values())), 1)


def cluster_cores(ray: Any) -> dict[str, float]:
    """Give the cores that each machine of a cluster offers, by the machine's id."""
    return {node["NodeID"]: float(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}


def start_actor(ray: Any, kind: type, machine: str, *arguments: Any) -> Any:
    """Start an actor on a machine, or elsewhere if that one goes; restarted whenever it dies, without its calls."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No cores are reserved: like a database it stays for long and works in bursts.
    settings = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0, "max_concurrency": CALLS}
    return (
        ray.remote(kind)
        .options(**settings, scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=True))
        .remote(*arguments)
    )


TIMEOUT = 120.0  # seconds for one photograph


@cache
def versions() -> dict[str, str]:
    """Give the versions here of what decides which features a photograph has."""
    return {"polyvoc": __version__, "OpenCV": OPENCV, "Pillow": version("pillow"), "NumPy": np.__version__}


@dataclass(frozen=True)
class WorkerCheck:
    """What every process that works for a program must keep to; made by the program that asks."""

    patience: float = TIMEOUT  # seconds after which a process that still reads the same photograph ends
    versions: dict[str, str] = field(default_factory=versions)

    def check(self) -> None:
        """Refuse to work with other versions than the program that asks: features would differ."""
        here = versions()
        for name, wanted in self.versions.items():
            if here.get(name) != wanted:
                machine = socket.gethostname()
                raise ClusterError(f"{machine} has {name} {here.get(name)}, not {wanted}; install the same version on all")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """End this process if what is done meanwhile takes too long."""
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            # The system's timer: neither a decoder nor a disk without answer can hold it up.
            faulthandler.dump_traceback_later(self.patience, exit=True, file=nowhere)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
