"""Photographs that are added and removed while the index is served. One change at a time; searches go on meanwhile."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from polyvoc import inventory, storage
from polyvoc.errors import ImageError
from polyvoc.home import Home
from polyvoc.images import IMAGE_SUFFIXES
from polyvoc.records import Problem
from polyvoc.web.pool import Pool
from polyvoc.web.service import AbsentError, Sent, Service
from polyvoc.writer import IndexWriter

QUEUE = 16  # changes that may wait
LONGEST_NAME = 45  # characters, of up to four bytes: a file's name may have 255


class Changes:
    """What may be changed of the index that a service serves."""

    def __init__(self, service: Service) -> None:
        """Write to the index that is served, and keep new photographs in its folder for them."""
        self._service = service
        self._folder = service.settings.kept_photographs
        self.pool = Pool("changes", 1, QUEUE)

    def add(self, sent: Iterable[Sent]) -> dict[str, Any]:
        """Keep photographs as files and index them; files that cannot be used are not kept."""
        problems: list[Problem] = []
        kept: list[Path] = []
        with self._taken_back() as written:
            for one in sent:
                kept += self._keep(one, written, problems)
            if kept:
                problems += self._index(kept)
        self._service.refresh()
        catalogue = self._service.index.home.catalogue
        rows = [row for path in dict.fromkeys(kept) if (row := catalogue.image_at(str(path))) is not None]
        return {"added": list(map(inventory.photograph, rows)), "problems": [vars(problem) for problem in problems]}

    def remove(self, image: int) -> dict[str, Any]:
        """Take an image out of the index; its file stays."""
        with self._writer() as writer:
            row = writer.catalogue.image(image)  # asked under the lock: another may have come to its path meanwhile
            if row is None:
                raise AbsentError(f"image {image} is not in the index")
            writer.remove([row.path])
        self._service.refresh()
        return {"removed": image}

    def close(self) -> None:
        """Finish what runs."""
        self.pool.close()

    def _writer(self) -> IndexWriter:
        path = self._service.settings.index
        Home(path).catalogue.close()  # an index that is not there any more should not be made anew
        return IndexWriter.open(path)

    def _index(self, kept: Sequence[Path]) -> list[Problem]:
        """Index files; those that cannot be used go again, and nothing remembers them."""
        with self._writer() as writer:
            problems = writer.update(kept, keep_missing=True).problems
            with writer.catalogue.transaction():
                writer.catalogue.drop_problems([problem.path for problem in problems])
        for problem in problems:
            Path(problem.path).unlink(missing_ok=True)
        return [Problem(PurePath(problem.path).name, problem.reason) for problem in problems]

    @contextmanager
    def _taken_back(self) -> Iterator[list[Path]]:
        """Give a list for files that are written; they go again if what follows fails."""
        written: list[Path] = []
        try:
            yield written
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise

    def _keep(self, sent: Sent, written: list[Path], problems: list[Problem]) -> list[Path]:
        """Write a photograph to its file, unless it is there; none if it cannot be decoded."""
        try:
            self._service.check(sent)
        except ImageError as error:
            problems.append(Problem(sent.name, str(error)))
            return []
        with storage.writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / file_name(sent)
            if not path.exists():
                partial = path.with_name(f".{path.name}.partial")
                try:
                    partial.write_bytes(sent.content)
                    storage.flush_path(partial)
                    partial.rename(path)
                finally:
                    partial.unlink(missing_ok=True)
                written.append(path)
        return [path]


def file_name(sent: Sent) -> str:
    """Give the name of the file for a photograph: its own, made harmless, and the beginning of its digest.

    So the same photograph sent twice is one file, and another one of the same name does not replace it.
    """
    own = PurePath(re.split(r"[/\\]", sent.name)[-1])
    stem = re.sub(r"[^\w\- ]+", "-", own.stem).strip("- ")[:LONGEST_NAME] or "photograph"
    suffix = own.suffix.lower() if own.suffix.lower() in IMAGE_SUFFIXES else ".jpg"
    return f"{stem}-{hashlib.blake2b(sent.content, digest_size=8).hexdigest()}{suffix}"
