"""Which part of an address may be secret? It is not kept in an index, and not shown: neither on a page nor in an error.

A password stands before an `@`. On the web, what follows a `?` may be a signature or a token, and mostly expires.
"""

from __future__ import annotations

import re

from polyvoc.errors import OptionError

_WEB = ("http", "https")
_NO_HOST = ("file", "local", "memory", "zip", "tar", "libarchive", "github", "git")  # whose addresses may hold ":" and "@"
_HOST = re.compile(r"[^/?#]*")
_ODD_PORT = re.compile(r":(?!\d*$)")  # no port but a password with a "/" or "?" in it
_IN_TEXT = re.compile(r"(?i)(https?://)(?:[^\s/?#'\"]*@)?([^\s?'\"]*)(\?[^\s'\"]*)?")


def refuse_password(url: str) -> None:
    """Refuse an address, or a chain of them, with a password."""
    if any(map(_has_password, url.split("::"))):
        raise OptionError(f"{shown(url)}: holds a password; give it in the environment instead, as docs/stores.md says")


def refuse_query(url: str) -> None:
    """Refuse an address that an index could not keep."""
    if has_query(url):
        raise OptionError(
            f"{shown(url)}: what follows the '?' may be secret, or expire, so no index keeps it; download it first"
        )


def has_query(url: str) -> bool:
    """Tell whether an address asks a web server for something: in other stores a `?` is part of a name."""
    return any("?" in link and _protocol(link) in _WEB for link in url.split("::"))


def without_secrets(path: str) -> str:
    """Give an address, or a chain of them, without what may be secret; a path stays as it is."""
    return "::".join(map(_masked, path.split("::")))


def shown(url: str) -> str:
    """Give an address without what may be secret, on one line."""
    text = without_secrets(url)
    return text if text.isprintable() else ascii(text)


def shown_text(text: str) -> str:
    """Give a text without what may be secret in the web addresses that it quotes."""
    return _IN_TEXT.sub(lambda found: found[1] + found[2] + ("?..." if found[3] else ""), text)


def _masked(link: str) -> str:
    rest = link.partition("://")[2]
    kept = rest.partition("?")[0] + "?..." if has_query(link) else rest
    if _has_password(link):
        _, at, after = kept.rpartition("@")
        kept = f"...@{after}" if at else "..."
    return link.removesuffix(rest) + kept if rest else link


def _has_password(link: str) -> bool:
    """Tell whether there is a password; on the web a name alone is one: there it mostly is a token."""
    found = _HOST.match(link.partition("://")[2])
    user, at, host = found[0].rpartition("@") if found else ("", "", "")
    if not _protocol(link) or _protocol(link) in _NO_HOST:
        return False
    if _protocol(link) in _WEB:
        return bool(at) or _ODD_PORT.search(host) is not None
    return bool(at) and ":" in user


def _protocol(link: str) -> str:
    return link.partition("://")[0].lower() if "://" in link else ""
