"""What does a global embedding say beside the words? It is one more witness, heard by whoever asks with `fuse`.

An index remembers which model made its vectors: those of two models do not compare. The words stay the default, and they alone
explain. Of an image without a vector (its pixels are not at hand, or the model refuses them) this witness is silent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from polyvoc import fusion
from polyvoc.catalogue import Catalogue
from polyvoc.embedding import Embedder
from polyvoc.engine import Engine
from polyvoc.errors import DamagedError, OptionError
from polyvoc.kernels import cosines
from polyvoc.records import Floats
from polyvoc.shards import Held, Scores

CANDIDATES = 1000  # best images of each witness that are weighed by both
FACT = "embedding"
NO_PIXELS = "fuse needs the pixels of the query: give a photograph, not its features or words"

Embedding = Embedder | str | os.PathLike[str]  # a model, or the path of its ONNX file


# --- which model --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """What an index knows of the model that made its vectors."""

    fingerprint: str
    dimension: int
    file: str | None  # absolute path; None: a function, which only its owner can give again

    @classmethod
    def of(cls, catalogue: Catalogue) -> Record | None:
        """Read it from a catalogue; None if the index holds no vectors."""
        found = catalogue.fact(FACT, required=False)
        try:
            return None if found is None else cls(**found)
        except TypeError:
            raise DamagedError(f"{catalogue.path}: the fact {FACT!r} cannot be {found!r}; run 'polyvoc check'") from None


def settle(catalogue: Catalogue, model: Embedder | None) -> None:
    """Make a model that of an index, from its first image on, or note where it lies now; refuse any other."""
    if model is None:
        return
    folder, known = catalogue.path.parent, Record.of(catalogue)
    if known is None and catalogue.count_images():
        raise OptionError(f"{folder} holds images without vectors; index them again, with --embedding and a new --index")
    if known is not None and known.fingerprint != model.fingerprint:
        raise OptionError(f"{folder} holds vectors of another model ({_name(known)}); leave --embedding out, or make another "
                          "index with --index")  # fmt: skip
    wanted = Record(model.fingerprint, model.dimension, model.file or (known.file if known else None))
    if wanted != known:
        with catalogue.transaction():
            catalogue.put_facts({FACT: asdict(wanted)})


def model_of(catalogue: Catalogue, given: Embedding | None = None, threads: int | None = None) -> Embedder:
    """Give the model of an index: the one that is given, or from the file where it was; refuse any other."""
    folder, known = catalogue.path.parent, Record.of(catalogue)
    if known is None:
        raise OptionError(f"{folder} holds no vectors; index again, with --embedding MODEL.onnx and a new --index")
    if given is None and known.file is None:
        raise OptionError(f"{folder} holds vectors of a function; open it with embedding=Embedder.of(...)")
    if given is None and not os.path.isfile(known.file or ""):
        raise OptionError(f"{known.file}, the model of {folder}, is gone; say where it is: polyvoc index ... --embedding FILE")
    model = load(given or known.file or "", threads)
    if model.fingerprint != known.fingerprint:
        raise OptionError(f"{model.file or 'this function'} is not the model of {folder} ({_name(known)}), or is prepared "
                          "otherwise; restore it, or index again with a new --index")  # fmt: skip
    return model


def load(given: Embedding, threads: int | None = None) -> Embedder:
    """Give a model, read from its file where a path is given."""
    return given if isinstance(given, Embedder) else Embedder.load(given, threads=threads)


def _name(known: Record) -> str:
    return f"{known.file or 'a function'}, {known.fingerprint}"


# --- what it says -------------------------------------------------------------------------------------------------------------


def fused(engine: Engine, scores: Sequence[Scores], vector: Floats | None, threads: int | None = None) -> list[Scores]:
    """Give the joint evidence of words and vectors in nats, above 0 for all that either of them names, else 0.

    scores: of the words, one array per segment; vector: of the query [d]. Named are the best of each witness, ties included.
    Both weigh them against all live images, so it makes no difference to an image who else is named.
    """
    if vector is None:
        raise OptionError(NO_PIXELS)
    live = [part.live for part in engine.standing(threads)]
    words = np.maximum(_join([part[positions] for part, positions in zip(scores, live, strict=True)]), 0)
    near = _join([part[positions] for part, positions in zip(nearness(engine, vector, threads), live, strict=True)])
    chosen = np.flatnonzero(_best(words) | _best(near))
    found = np.zeros(len(words), np.float32)
    # The last of all has no evidence for it, ln(n / n), and yet was named: everybody gets a little more.
    found[chosen] = fusion.fuse(words, near, at=chosen) + np.log1p(1 / max(len(words), 1))
    ends = np.cumsum([len(positions) for positions in live], dtype=np.int64)
    return [_spread(part, at, found[end - len(at) : end]) for part, at, end in zip(scores, live, ends, strict=True)]


def nearness(engine: Engine, vector: Floats, threads: int | None = None) -> list[npt.NDArray[np.float64]]:
    """Score every image by its vector, one array per segment: 0 where it has none."""
    scaled = np.ascontiguousarray(vector, np.float32) * cosines.SCALE
    parts = engine.shards.each(near, scaled, threads=threads)
    return [
        np.zeros(known.n_images) if part is None else fusion.nearness(part)
        for part, known in zip(parts, engine.shards.census, strict=True)
    ]


def near(held: Held, scaled: Floats) -> Floats | None:
    """Give the cosine of a vector with that of every image of a segment [n]; None if nobody has one."""
    rows = held.segment.embeddings
    if rows is None:
        return None
    if rows.shape != (held.segment.n_images, len(scaled)) or rows.dtype != np.float16:
        raise DamagedError(f"vectors {rows.dtype}{list(rows.shape)} do not compare with one of {len(scaled)} numbers; "
                           "run 'polyvoc check'")  # fmt: skip
    found = np.empty(len(rows), np.float32)
    cosines.products(rows.view(np.uint16), scaled, found)
    return found


def _best(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Tell which scores are among the best, and above 0."""
    limit = np.partition(scores, -CANDIDATES)[-CANDIDATES] if len(scores) > CANDIDATES else 0.0
    chosen: npt.NDArray[np.bool_] = (scores >= limit) & (scores > 0)
    return chosen


def _join(parts: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.float64]:
    return np.concatenate([np.empty(0), *parts])


def _spread(scores: Scores, live: npt.NDArray[np.int64], found: Scores) -> Scores:
    """Put what was found of the live images of a segment into its place."""
    spread = np.zeros_like(scores)
    spread[live] = found
    return spread
