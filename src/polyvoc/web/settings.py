"""Settings of `polyvoc serve`; its flags are made from the fields."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from polyvoc.errors import OptionError, require
from polyvoc.options import ClusterOptions, option, options_of
from polyvoc.storage.files import require_local_path

MEGA = 1_000_000
ACCESS, LIMITS, NETWORK = "Access", "Limits", "Network"  # groups of flags in the help


@dataclass(frozen=True)
class Settings:
    """Settings of a server; a field with metadata is a flag of `polyvoc serve`."""

    index: Path
    host: str = option("127.0.0.1", "Address to listen at. 0.0.0.0: reachable from other machines.", metavar="ADDRESS")
    port: int = option(8000, "Port to listen at. 0: any free port.", metavar="NUMBER", minimum=0, maximum=65535)
    write: bool = option(False, "Allow adding and removing photographs; for this machine, also moving copies.", ACCESS)
    photos: Path | None = option(None, "Folder for added photographs. Default: beside the index.", ACCESS, metavar="FOLDER")  # noqa: RUF009
    private: bool = option(False, "Require the token for reading, too.", ACCESS)
    token: str | None = field(default=None, repr=False)
    allow_host: tuple[str, ...] = option(
        (), "Further host name of this server, as behind a proxy; repeatable.", ACCESS, metavar="NAME"
    )
    cors: tuple[str, ...] = option((), "Allow requests from pages of this origin; repeatable.", ACCESS, metavar="ORIGIN")
    forwarded_by: tuple[str, ...] = option(
        (), "Address of a proxy, whose X-Forwarded-For names the client; repeatable.", ACCESS, metavar="ADDRESS"
    )
    originals: bool = option(False, "Allow downloading the original files, metadata included.", ACCESS)
    root: tuple[str, ...] = option(
        (),
        "Folder that may be chosen where there is no index; repeatable. Default: your home folder.",
        ACCESS,
        metavar="FOLDER",
    )
    workers: int = option(0, "Searches at a time. 0: one per core.", LIMITS, metavar="NUMBER", minimum=0)
    queue: int = option(32, "Searches that may wait.", LIMITS, metavar="NUMBER", minimum=0)
    max_upload: int = option(
        32, "Megabytes per request; eight times that for several photographs.", LIMITS, metavar="MB", minimum=1
    )
    max_pixels: int = option(100, "Megapixels of an uploaded photograph.", LIMITS, metavar="MP", minimum=1)
    decode_seconds: float = option(
        10.0, "Seconds to decode or fetch a photograph.", LIMITS, metavar="SECONDS", minimum=0.001, maximum=3600
    )
    query_cache: int = option(128, "Megabytes of stored queries.", LIMITS, metavar="MB", minimum=1)
    thumbnail_cache: int = option(64, "Megabytes of thumbnails.", LIMITS, metavar="MB", minimum=1)
    max_connections: int = option(512, "Connections at a time.", NETWORK, metavar="NUMBER", minimum=1)
    max_per_address: int = option(
        128, "Connections of one address at a time; not of those of --forwarded-by.", NETWORK, metavar="NUMBER", minimum=1
    )
    header_seconds: float = option(
        10.0, "Seconds for the headers of a request to arrive.", NETWORK, metavar="SECONDS", minimum=0.001, maximum=3600
    )
    body_rate: float = option(
        10.0, "Least kilobytes per second of an upload, on average after 10 seconds.", NETWORK, metavar="KB", minimum=0
    )
    request_seconds: float = option(
        300.0, "Seconds from the first byte of a request to the last of the response.", NETWORK, metavar="SECONDS",
        minimum=0.001, maximum=86400,
    )  # fmt: skip
    log_lines: int = option(600, "Lines of the log per minute and kind.", NETWORK, metavar="NUMBER", minimum=1)
    others: tuple[Path, ...] = ()  # indexes that are searched together with `index`
    beside: bool = False  # where there is no index, it is made beside the chosen folder; else at `index`
    cluster: ClusterOptions | None = None  # the Ray cluster that holds the segments; None: this process does

    def __post_init__(self) -> None:
        """Raise OptionError if a value is out of range, or if writing or a private server would be open to everybody."""
        for one in options_of(Settings):
            if one.minimum is not None:
                one.check(getattr(self, one.name))
        if self.photos is not None:
            require_local_path(self.photos)
        if self.others and (self.write or self.photos is not None):
            raise OptionError("several indexes are only searched; leave --write and --photos out, or serve one of them")
        if self.token is not None and (len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()):
            raise OptionError("the token should have at least 8 printable ASCII characters")
        for origin in self.cors:
            valid = re.fullmatch(r"https?://[^/\s?#*]+", origin) is not None
            require(valid, "cors", origin, "an origin, such as https://photos.example")
        for proxy in self.forwarded_by:
            require(ip_address(proxy) is not None, "forwarded_by", proxy, "an IP address, such as 127.0.0.1")
        if self.token is None and (self.private or (self.write and not is_local(self.host, *self.allow_host))):
            raise OptionError("a token is required; set the environment variable POLYVOC_TOKEN or use --token-file")

    def client(self, host: str | None, forwarded: str = "") -> str:
        """Return the name of a client, which shares the limits per client: its address, or its network of IPv6.

        `forwarded` is the header X-Forwarded-For; its last address counts, which the proxy itself has written.
        """
        address = ip_address(host or "")
        if address is not None and self.is_proxy(host):
            address = ip_address(forwarded.rpartition(",")[2].strip()) or address
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False).network_address
        return str(address or "unknown")

    def is_proxy(self, host: str | None) -> bool:
        """Return whether connections of an address carry the requests of many clients."""
        return ip_address(host or "") in set(map(ip_address, self.forwarded_by)) - {None}

    @property
    def indexes(self) -> tuple[Path, ...]:
        """Return the folders of all indexes."""
        return self.index, *self.others

    @property
    def manages(self) -> bool:
        """Return whether files of this machine may be moved: the server allows writing, and is for this machine only."""
        return self.write and is_local(self.host, *self.allow_host) and not self.forwarded_by

    @property
    def sets_up(self) -> bool:
        """Return whether the server begins with the choice of a folder: there is no index, and it is for this machine only."""
        is_private = is_local(self.host, *self.allow_host) and not self.forwarded_by and self.cluster is None
        return is_private and not self.others and not os.path.lexists(self.index)

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
