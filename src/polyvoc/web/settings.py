"""What `serve` is told."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from polyvoc.errors import OptionError
from polyvoc.options import ClusterOptions

MEGA = 1_000_000


@dataclass(frozen=True)
class Settings:
    """What `polyvoc serve` is told."""

    index: Path
    host: str = "127.0.0.1"
    port: int = 8000
    write: bool = False  # may photographs be added and removed?
    photos: Path | None = None  # where added ones are kept; None: beside the index
    private: bool = False  # does reading need the token, too?
    token: str | None = field(default=None, repr=False)
    allow_hosts: tuple[str, ...] = ()  # further names that this server is called by, such as behind a proxy
    cors: tuple[str, ...] = ()  # origins whose pages may ask
    originals: bool = False  # may the files themselves be fetched, with all their metadata?
    workers: int = 0  # searches at a time; 0: one per core
    queue: int = 32  # requests that may wait for them
    max_upload: int = 32  # megabytes of a request
    max_pixels: int = 100  # million, of a photograph that is sent
    decode_seconds: float = 10.0
    cluster: ClusterOptions | None = None  # whose machines hold the index

    def __post_init__(self) -> None:
        """Refuse values that make no sense, and doors left open by mistake."""
        for name, least in (("port", 0), ("workers", 0), ("queue", 0), ("max_upload", 1), ("max_pixels", 1)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}={getattr(self, name)!r} should be at least {least}")
        if self.port > 65535:
            raise OptionError(f"port={self.port!r} should be at most 65535")
        if not 0 < self.decode_seconds < 3600:
            raise OptionError(f"decode_seconds={self.decode_seconds!r} should be positive, and less than an hour")
        if self.token is not None and (len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()):
            raise OptionError("the token should have at least 8 characters, letters, digits or signs")
        for origin in self.cors:
            if not re.fullmatch(r"https?://[^/\s?#*]+", origin):
                raise OptionError(f"cors={origin!r} should be an origin, such as https://photos.example")
        if self.token is None and (self.private or (self.write and not self.local)):
            raise OptionError("this needs a token: give one in the environment, POLYVOC_TOKEN")

    @property
    def local(self) -> bool:
        """Tell whether only programs of this machine can reach the server."""
        return is_local(self.host, *self.allow_hosts)

    @property
    def threads(self) -> int:
        """Give how many searches run at a time."""
        return self.workers or os.cpu_count() or 1

    @property
    def kept_photographs(self) -> Path:
        """Give the folder for photographs that are added; not inside the index, which `polyvoc index` passes over."""
        index = Path(os.path.abspath(self.index))  # without "..", as the catalogue has its paths
        return Path(os.path.abspath(self.photos or index.with_name(f"{index.stem}-added")))


def is_local(*hosts: str) -> bool:
    """Tell whether a server with these names can be reached from this machine alone."""
    return all(map(is_loopback, hosts))


def is_loopback(host: str) -> bool:
    """Tell whether a name or address means this very machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
