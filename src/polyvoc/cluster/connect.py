"""Base of the package: the only import of Ray, errors of its tasks, retries that isolate a failing item, checks of workers."""

from __future__ import annotations

import faulthandler
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import numpy as np

from polyvoc import __version__
from polyvoc.errors import ClusterError, OptionError, PolyvocError, one_line
from polyvoc.features.extract import OPENCV
from polyvoc.storage.stores import display_name
from polyvoc.types import Location, Problem

AUTO = "auto"  # the cluster that runs on this machine, or the one at RAY_ADDRESS
LOCAL = "local"  # a cluster of this machine alone, which ends with the program
TRIES = 3  # of an isolated item before it is reported
IMAGE_SECONDS = 120.0
_ACTOR_CALLS = 16  # that run at the same time
HEAD_SECONDS = 15.0  # without a head after which this process ends; Ray's own setting replaces it
LOOPBACK = "127.0.0.1"
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_CONNECT_SECONDS = 5.0
_WATCH_SECONDS = 1.0
# Without these Ray contacts the internet to report usage, and warns about graphics cards.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_lock = threading.Lock()
Item = TypeVar("Item")


def connect(address: str) -> Any:
    """Return the module `ray`, connected to the cluster at an address; an existing connection is kept."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with _lock, _private_cluster() if address == LOCAL else nullcontext():
        try:
            import ray
        except ImportError:
            raise OptionError("Ray is not installed; install it: pip install 'polyvoc[cluster]'") from None
        if ray.is_initialized():
            return ray
        _check_address(address)
        settings: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": LOOPBACK} if address == LOCAL else {}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **settings)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_cluster(address, error) from None
        head = ray.get_runtime_context().gcs_address
        threading.Thread(target=_watch_head, args=(ray, head), name="polyvoc-head", daemon=True).start()
    return ray


@contextmanager
def _private_cluster() -> Iterator[None]:
    """Start clusters that only this machine reaches, and only with a random token; where Ray was not imported before.

    Ray replaces a loopback address by that of a network unless clusters of several machines are disabled, and runs any code for
    whoever reaches its ports: other users of the machine need the token.
    """
    private = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in private}
    if "ray" not in sys.modules:  # which reads the environment when it is imported
        os.environ.update(private)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def _watch_head(ray: Any, address: str) -> None:
    """End this process with one line when the head of its cluster is lost: Ray itself would end it later, without one."""
    host, _, port = address.rpartition(":")
    limit, seen = float(os.environ.get(_RECONNECT, HEAD_SECONDS)), time.monotonic()
    while ray.is_initialized():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            seen = time.monotonic()
        except OSError:
            if time.monotonic() - seen > limit:
                advice = "start it again and repeat the command; what was committed is kept"
                sys.stderr.write(f"polyvoc: the head of the Ray cluster, {address}, does not respond; {advice}\n")
                sys.stderr.flush()
                os._exit(1)
        time.sleep(_WATCH_SECONDS)


def _check_address(address: str) -> None:
    """Raise ClusterError if nothing listens at an address: Ray itself would wait for a minute."""
    if address in (LOCAL, AUTO):
        return
    if "://" in address:
        wanted = "HOST:PORT of the cluster itself, auto or local; run this on one of its machines"
        raise OptionError(f"ray={address!r} should be {wanted}")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> ClusterError:
    reason = "" if address == AUTO else f": {one_line(error, 120)}"
    return ClusterError(f"no Ray cluster at {address!r}{reason}; start one: ray start --head")


def cluster_cores(ray: Any) -> dict[str, float]:
    """Return the number of cores of each machine of a cluster, by the id of its Ray node."""
    return {node["NodeID"]: float(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}


def count_cores(ray: Any) -> int:
    """Return the number of cores of a cluster, at least 1."""
    return max(int(sum(cluster_cores(ray).values())), 1)


def start_actor(ray: Any, kind: type, machine: str, *arguments: Any) -> Any:
    """Start an actor on a machine, or on another one if that fails; it is restarted when it dies, but its calls are not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No cores are reserved: like a database it lives long and works in bursts.
    settings = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0, "max_concurrency": _ACTOR_CALLS}
    strategy = NodeAffinitySchedulingStrategy(machine, soft=True)
    return ray.remote(kind).options(**settings, scheduling_strategy=strategy).remote(*arguments)


# -- results of tasks


class TaskError(ClusterError):
    """A task failed with an unexpected exception."""


class LostTaskError(TaskError):
    """The process or machine of a task is gone."""


def get_result(ray: Any, reference: Any) -> Any:
    """Return the result of a task or actor call (or of a list of them); raise TaskError, or the PolyvocError of the task."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)  # raised by the task itself
        if isinstance(cause, PolyvocError):
            raise cause from None
        if isinstance(cause, ImportError) or "failed to import" in str(error):
            raise ClusterError("a machine lacks polyvoc, or a part of it; install the same version on all machines") from None
        failure = cause or error
        kind = TaskError if isinstance(error, ray.exceptions.RayTaskError) else LostTaskError
        reason = f"{type(failure).__name__}: {one_line(failure)}"
        raise kind(f"a task on the cluster failed ({reason}); see the Ray logs and the memory of the machines") from error


@dataclass(frozen=True)
class Attempt(Generic[Item]):
    """Items for one task. If tasks are lost, the items are halved until the one that crashes its worker is isolated."""

    items: Sequence[Item]
    halved: bool = False  # a part of a batch that was lost
    losses: int = 0  # of tasks with exactly these items

    @property
    def isolated(self) -> Item | None:
        """Return the item that is left of a lost batch, None if there are several."""
        return self.items[0] if self.halved and len(self.items) == 1 else None

    def after_loss(self, tries: int = TRIES, counts: bool = True) -> list[Attempt[Item]]:
        """Return what to run after the task was lost: the same items again, or halves; nothing if an isolated item has failed.

        counts: whether the loss counts as one of the tries of an isolated item.
        """
        if self.isolated is not None:
            losses = self.losses + counts
            return [replace(self, losses=losses)] if losses < tries else []
        middle = len(self.items) // 2
        if middle and not self.halved and not self.losses:  # a machine may be lost; repeating a half costs little
            return [replace(self, losses=1)]
        return [Attempt(part, halved=True) for part in (self.items[:middle], self.items[middle:]) if part]


def report_failing_image(path: Location) -> Problem:
    """Return the problem of an isolated image; it is read again only when its file changes."""
    return Problem(str(path), f"{display_name(path)}: every process that reads it crashes or takes too long; remove it")


# -- workers


@cache
def versions() -> dict[str, str]:
    """Return the versions of the libraries here that determine the features of an image."""
    return {"polyvoc": __version__, "OpenCV": OPENCV, "Pillow": version("pillow"), "NumPy": np.__version__}


@dataclass(frozen=True)
class WorkerCheck:
    """Requirements on worker processes; made by the driver, checked in every task."""

    timeout: float = IMAGE_SECONDS  # a process that reads one image for longer is ended
    versions: dict[str, str] = field(default_factory=versions)

    def check(self) -> None:
        """Raise ClusterError if this process has other versions than the driver: features would differ."""
        here = versions()
        for name, required in self.versions.items():
            if here.get(name) != required:
                machine = socket.gethostname()
                raise ClusterError(f"{machine} has {name} {here.get(name)}, not {required}; install the same version on all")

    @contextmanager
    def limit_time(self) -> Iterator[None]:
        """End this process if the block takes longer than the timeout."""
        with open(os.devnull, "w", encoding="utf-8") as null:
            # The system's timer: neither a decoder nor an unresponsive disk can block it.
            faulthandler.dump_traceback_later(self.timeout, exit=True, file=null)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
