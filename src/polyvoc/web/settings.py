"""Settings of `polyvoc serve`; its flags are made from the fields."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from polyvoc.errors import OptionError, require
from polyvoc.options import ClusterOptions

MEGA = 1_000_000
ACCESS, LIMITS = "Access", "Limits"  # groups of flags in the help


def _flag(default: Any, text: str, metavar: str | None = None, group: str | None = None, least: float | None = None,
          most: float | None = None) -> Any:  # fmt: skip
    """Return a field that is also a flag of the command line."""
    return field(default=default, metadata={"help": text, "metavar": metavar, "group": group, "min": least, "max": most})


@dataclass(frozen=True)
class Settings:
    """Settings of a server. A field with metadata is a flag: help, metavar, group; min and max limit its value."""

    index: Path
    host: str = _flag("127.0.0.1", "Address to listen at. 0.0.0.0: reachable from other machines.", "ADDRESS")
    port: int = _flag(8000, "Port to listen at. 0: any free port.", "NUMBER", least=0, most=65535)
    write: bool = _flag(False, "Allow adding and removing photographs.", group=ACCESS)
    photos: Path | None = _flag(None, "Folder for added photographs. Default: beside the index.", "FOLDER", ACCESS)  # noqa: RUF009
    private: bool = _flag(False, "Require the token for reading, too.", group=ACCESS)
    token: str | None = field(default=None, repr=False)
    allow_host: tuple[str, ...] = _flag((), "Further host name of this server, as behind a proxy; repeatable.", "NAME", ACCESS)
    cors: tuple[str, ...] = _flag((), "Allow requests from pages of this origin; repeatable.", "ORIGIN", ACCESS)
    originals: bool = _flag(False, "Allow downloading the original files, metadata included.", group=ACCESS)
    workers: int = _flag(0, "Searches at a time. 0: one per core.", "NUMBER", LIMITS, least=0)
    queue: int = _flag(32, "Searches that may wait.", "NUMBER", LIMITS, least=0)
    max_upload: int = _flag(32, "Megabytes per request; eight times that for several photographs.", "MB", LIMITS, least=1)
    max_pixels: int = _flag(100, "Megapixels of an uploaded photograph.", "MP", LIMITS, least=1)
    decode_seconds: float = _flag(10.0, "Seconds to decode or fetch a photograph.", "SECONDS", LIMITS, least=0.001, most=3600)
    cluster: ClusterOptions | None = None  # the Ray cluster that holds the segments; None: this process does

    def __post_init__(self) -> None:
        """Raise OptionError if a value is out of range, or if writing or a private server would be open to everybody."""
        for option in fields(self):
            value, least, most = getattr(self, option.name), option.metadata.get("min"), option.metadata.get("max")
            require(least is None or value >= least, option.name, value, f"at least {least}")
            require(most is None or value <= most, option.name, value, f"at most {most}")
        if self.token is not None and (len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()):
            raise OptionError("the token should have at least 8 printable ASCII characters")
        for origin in self.cors:
            valid = re.fullmatch(r"https?://[^/\s?#*]+", origin) is not None
            require(valid, "cors", origin, "an origin, such as https://photos.example")
        if self.token is None and (self.private or (self.write and not is_local(self.host, *self.allow_host))):
            raise OptionError("a token is required; set the environment variable POLYVOC_TOKEN or use --token-file")

    @property
    def threads(self) -> int:
        """Return how many searches run at a time."""
        return self.workers or os.cpu_count() or 1

    @property
    def photo_folder(self) -> Path:
        """Return the folder for added photographs; not inside the index, which `polyvoc index` skips."""
        index = Path(os.path.abspath(self.index))  # without "..", like the paths in the catalogue
        return Path(os.path.abspath(self.photos or index.with_name(f"{index.stem}-added")))


def is_local(*hosts: str) -> bool:
    """Return whether a server with these host names can be reached from this machine only."""
    return all(map(is_loopback, hosts))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's loopback."""
    address = ip_address(host.strip("[]"))
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text stands for; None if it is no address."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
