"""Here are descriptors: which words are they, in each of the K vocabularies, and what are their signatures?"""

from __future__ import annotations

from collections.abc import Sequence

from polyvoc import signatures
from polyvoc.assigner import Assigner
from polyvoc.records import Descriptors, Signatures, Words
from polyvoc.vocabulary import Vocabulary


class Quantiser:
    """K vocabularies ready to use: nearest words and Hamming signatures. May be shared by threads."""

    def __init__(self, vocabularies: Sequence[Vocabulary], threads: int | None = None) -> None:
        """Prepare the vocabularies; those of one index have the same rotation, or none has signatures.

        threads: to use at most, None for all cores.
        """
        self.vocabularies = tuple(vocabularies)
        self._assigner = Assigner(self.vocabularies, threads)
        signed = all(vocabulary.bits > 0 for vocabulary in self.vocabularies)
        self._rotation = signatures.shared_rotation(self.vocabularies) if signed else None

    @property
    def signed(self) -> bool:
        """Tell whether the vocabularies give signatures."""
        return self._rotation is not None

    def quantise(self, descriptors: Descriptors, assignments: int = 1) -> tuple[Words, Signatures | None]:
        """Give words and signatures of descriptors [n, dimension]: [n, K], or [n, K, assignments] if more than one."""
        words = self._assigner.assign(descriptors, assignments)
        if self._rotation is None:
            return words, None
        return words, signatures.sign(signatures.project(descriptors, self._rotation), words, self.vocabularies)
