"""What a page needs to know before anybody asks: the index, the rules to choose from, and what is allowed here."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import polyvoc
from polyvoc.evidence import plain_options
from polyvoc.flags import SEARCH_TEXTS
from polyvoc.presets import Preset
from polyvoc.web.parameters import OPTIONS
from polyvoc.web.service import Service
from polyvoc.web.settings import MEGA


def about(service: Service) -> dict[str, Any]:
    """Give it, as plain values for JSON."""
    index, settings = service.index, service.settings
    return {
        "version": polyvoc.__version__,
        "index": settings.index.absolute().name,
        "images": len(index),
        "commit": index.commit,
        "vocabularies": len(index.engine.sizes),
        "bits": index.engine.bits,
        "probabilities": index.confidence is not None,
        "smooth": index.engine.neighbours is not None,
        "fuse": index.home.embeds,
        "write": settings.write,
        "originals": settings.originals,
        "token": "none" if settings.token is None else "all" if settings.private else "write",
        "presets": {name: plain_options(index.preset(name)) for name in get_args(Preset)},
        "choices": {name: list(get_args(kind)) for name, kind in OPTIONS.items() if get_origin(kind) is Literal},
        "texts": {name: SEARCH_TEXTS[name] for name in OPTIONS},
        "limits": {"upload_bytes": settings.max_upload * MEGA, "pixels": settings.max_pixels * MEGA},
    }
