"""On which terms does a process of the cluster work? With the versions of the program that asks, and not for ever."""

from __future__ import annotations

import faulthandler
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version

import numpy as np

from polyvoc import __version__
from polyvoc.detectors import OPENCV
from polyvoc.errors import ClusterError

PATIENCE = 120.0  # seconds for one photograph


@cache
def versions() -> dict[str, str]:
    """Give the versions here of what decides which features a photograph has."""
    return {"polyvoc": __version__, "OpenCV": OPENCV, "Pillow": version("pillow"), "NumPy": np.__version__}


@dataclass(frozen=True)
class Terms:
    """What every process that works for a program must keep to; made by the program that asks."""

    patience: float = PATIENCE  # seconds after which a process that still reads the same photograph ends
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
