"""Readers of published datasets and of folders of groups: images, questions and their relevant images."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.datasets.descriptor_files import fail, open_file
from polyvoc.experiments.datasets.ground_truth import read_ground_truth
from polyvoc.experiments.datasets.image_folder import ImageFolder, Kind, stem
from polyvoc.experiments.measures import Truth
from polyvoc.types import Region

__all__ = [  # Kind and Region are defined elsewhere, and used with datasets
    "READERS", "Dataset", "Kind", "Question", "Reader", "Region", "first_questions", "list_images", "read_groups",
    "read_holidays", "read_oxford", "read_paris", "read_roxford", "read_rparis", "read_ukbench", "with_distractors",
]  # fmt: skip
# Notes on what is left out, after its number
_NO_QUERY = "groups are left out: no query, or no other images"
_NOT_FOUR = "groups are left out: fewer than four images"
_UNANSWERABLE = "queries are left out: their image or all relevant images are missing"
_PAGES = "files are left out: a web page instead of a photograph"  # 20 of the published Paris images


@dataclass(frozen=True)
class Question:
    """A query of a dataset: a photograph, or a region of it (only the features strictly inside it are used)."""

    name: str
    source: Path  # its photograph or descriptor file
    image: int | None  # its number in the database; None: not in the database
    region: Region | None = None
    group: str = ""  # questions of one group show the same object: they are not independent of each other


@dataclass(frozen=True)
class Dataset:
    """A database of images, questions, and the relevant images of each question."""

    name: str
    folder: Path
    kind: Kind  # what the files of the images are
    images: tuple[Path, ...]  # the database; an image's number is its position here
    questions: tuple[Question, ...]
    truths: Mapping[str, tuple[Truth, ...]]  # one truth per question; "" or, for revisited sets, "easy", "medium", "hard"
    measure: str  # the one that the set is known for: "mAP" or "N-S"
    notes: tuple[str, ...] = ()  # what is left out, one line each

    @property
    def main_level(self) -> str:
        """Return the level of the ground truth that rules are known by: the medium one of the revisited sets."""
        return "medium" if "medium" in self.truths else next(iter(self.truths))


class Reader(Protocol):
    """Reads the dataset in a folder; unless a kind is given, photographs if there are any, else descriptors."""

    def __call__(self, folder: Path, kind: Kind | None = None) -> Dataset:
        """Return the dataset."""


def read_holidays(folder: Path, kind: Kind | None = None) -> Dataset:
    """Return INRIA Holidays: images NNNNNN of one group share the first four digits; the one that ends in 00 is the query.

    The query is left out of its ranking (Jégou, Douze, Schmid, ECCV 2008).
    """
    images = ImageFolder.find(folder, kind, r"\d{6}", "100000.jpg, 100001.jpg, ... or 100000.siftgeo, ...")
    builder = _DatasetBuilder("holidays", images)
    for group, members in images.groups(lambda name: name[:4]).items():
        query = images.numbers.get(f"{group}00")
        if query is None or len(members) == 1:
            builder.leave_out(_NO_QUERY, group)
        else:
            builder.add(_question(images, query, group), {"": Truth(members - {query}, frozenset({query}))})
    return builder.dataset()


def read_ukbench(folder: Path, kind: Kind | None = None) -> Dataset:
    """Return Ukbench: four images ukbenchNNNNN in a row show one object; each is a query, and one of its own four answers.

    An incomplete four is left out: its N-S would have another scale (Nistér, Stewénius, CVPR 2006).
    """
    images = ImageFolder.find(folder, kind, r"ukbench\d{5}", "ukbench00000.jpg, ukbench00001.jpg, ...")
    builder = _DatasetBuilder("ukbench", images)
    for group, members in images.groups(lambda name: str(int(name[-5:]) // 4)).items():
        if len(members) < 4:
            builder.leave_out(_NOT_FOUR, group)
            continue
        for number in sorted(members):
            builder.add(_question(images, number, group), {"": Truth(members)})
    return replace(builder.dataset(), measure="N-S")


def read_oxford(folder: Path, kind: Kind | None = None) -> Dataset:
    """Return the Oxford buildings with their text files of ground truth (Philbin et al., CVPR 2007)."""
    return _read_buildings("oxford", folder, kind, "gt_files/all_souls_1_query.txt, ... and images as oxbuild_images/*.jpg")


def read_paris(folder: Path, kind: Kind | None = None) -> Dataset:
    """Return the Paris buildings with their text files of ground truth (Philbin et al., CVPR 2008)."""
    return _read_buildings("paris", folder, kind, "paris_120310/defense_1_query.txt, ... and images as paris/*/*.jpg")


def _read_buildings(name: str, folder: Path, kind: Kind | None, expected: str) -> Dataset:
    """Return a dataset whose questions are files <landmark>_<n>_query.txt, each with its good, ok and junk images beside it.

    The image of a query stays in the database, as one of the right answers.
    """
    everything = ImageFolder.find(folder, kind, r".+", expected)
    queries = everything.ground_truth(r".+_\d+_query\.txt")
    pages = {name for name, path in zip(everything.names, everything.paths, strict=True) if _is_web_page(path)}
    images = everything.only(set(everything.names) - pages)
    builder = _DatasetBuilder(name, images, left_out={_PAGES: sorted(pages)} if pages else {})
    for path in queries:
        title = path.name.removesuffix("_query.txt")
        source, region = _read_query(path)
        good, ok, junk = (_read_names(path.with_name(f"{title}_{part}.txt")) for part in ("good", "ok", "junk"))
        truth = Truth(builder.known([*good, *ok]), builder.known(junk))
        query = images.numbers.get(source)
        if query is None or not truth.relevant:
            builder.leave_out(_UNANSWERABLE, title)
        else:
            builder.add(Question(title, images.paths[query], query, region, title.rpartition("_")[0]), {"": truth})
    return builder.dataset()


def read_roxford(folder: Path, kind: Kind | None = None) -> Dataset:
    """Return the Oxford buildings under the revisited protocol."""
    return _read_revisited("roxford", folder, kind, "gnd_roxford5k.pkl")


def read_rparis(folder: Path, kind: Kind | None = None) -> Dataset:
    """Return the Paris buildings under the revisited protocol."""
    return _read_revisited("rparis", folder, kind, "gnd_rparis6k.pkl")


def _read_revisited(name: str, folder: Path, kind: Kind | None, file: str) -> Dataset:
    """Return a dataset of the revisited protocol, whose queries are not in the database (Radenović et al., CVPR 2018).

    Easy questions take the hard images as junk, hard questions the easy ones; for medium questions both are relevant.
    """
    everything = ImageFolder.find(folder, kind, r".+", f"{file} and images as jpg/*.jpg")
    published = read_ground_truth(everything.ground_truth(file.replace(".", r"\."))[0])
    builder = _DatasetBuilder(name, everything.only(published.images))
    for title, entry in zip(published.queries, published.entries, strict=True):
        easy, hard, junk = (builder.known(published.images[i] for i in part) for part in (entry.easy, entry.hard, entry.junk))
        query = everything.numbers.get(title)
        if query is None or not easy | hard:
            builder.leave_out(_UNANSWERABLE, title)
            continue
        question = Question(title, everything.paths[query], None, entry.region)
        levels = {"easy": Truth(easy, junk | hard), "medium": Truth(easy | hard, junk), "hard": Truth(hard, junk | easy)}
        builder.add(question, levels)
    dataset = builder.dataset()
    return replace(dataset, questions=_grouped_by_answers(dataset.questions, dataset.truths["medium"]))


def read_groups(folder: Path, kind: Kind | None = None) -> Dataset:
    """Return any folder of groups: every image of a group of two or more is a query, and is left out of its ranking.

    If sub-folders hold images, each of them is a group, and images beside them belong to none. Otherwise the group of a name
    is the part before the last '-' or '_', or else before the digits at the end ("tower-a", "tower-b"; "dog1", "dog2").
    """
    expected = "sub-folders of photographs that show the same thing, or names that begin alike (tower-a.jpg, tower-b.jpg, ...)"
    images = ImageFolder.find(folder, kind, None, expected)
    nested = any("/" in name for name in images.names)
    builder = _DatasetBuilder("groups", images)
    for group, members in images.groups(_folder_of if nested else _prefix_of).items():
        if len(members) == len(images.names):
            raise DatasetError(
                f"{folder}: all images are of one group, {group!r}, so every ranking is perfect; expected {expected}"
            )
        for number in sorted(members) if group and len(members) > 1 else ():
            builder.add(_question(images, number, group), {"": Truth(members - {number}, frozenset({number}))})
    return builder.dataset()


READERS: Mapping[str, Reader] = MappingProxyType({
    "holidays": read_holidays,
    "ukbench": read_ukbench,
    "oxford": read_oxford,
    "paris": read_paris,
    "roxford": read_roxford,
    "rparis": read_rparis,
    "groups": read_groups,
})  # fmt: skip


def list_images(folder: Path, kind: Kind = "photographs") -> tuple[Path, ...]:
    """Return the images of a kind below a folder, in the order of their paths."""
    return ImageFolder.find(folder, kind, None, kind if kind == "photographs" else f"files of descriptors ({kind})").paths


def with_distractors(dataset: Dataset, more: Path | Sequence[Path]) -> Dataset:
    """Return the dataset with distractors: the images below a folder, or those listed.

    Images that the dataset already has are skipped.
    """
    paths = list_images(more, dataset.kind) if isinstance(more, Path) else tuple(more)
    present = {os.path.realpath(path) for path in (*dataset.images, *(question.source for question in dataset.questions))}
    added = tuple(path for path in paths if os.path.realpath(path) not in present)
    return replace(dataset, name=f"{dataset.name} + {len(added)}", images=dataset.images + added)


def first_questions(dataset: Dataset, n: int) -> Dataset:
    """Return the dataset with n of its questions, evenly spread, or all if it has fewer."""
    if n < 1:
        raise OptionError(f"n={n!r} should be at least 1")
    count = len(dataset.questions)
    if n >= count:
        return dataset
    chosen = [i * count // n for i in range(n)]
    questions = tuple(dataset.questions[i] for i in chosen)
    truths = {level: tuple(own[i] for i in chosen) for level, own in dataset.truths.items()}
    return replace(dataset, questions=questions, truths=truths, notes=(*dataset.notes, f"{n} of {count} queries are used"))


@dataclass(eq=False)
class _DatasetBuilder:
    """Collects questions with their relevant images, and what is missing."""

    name: str
    images: ImageFolder
    questions: list[Question] = field(default_factory=list)
    truths: dict[str, list[Truth]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    def add(self, question: Question, levels: Mapping[str, Truth]) -> None:
        """Add a question with its truth at each level."""
        self.questions.append(question)
        for level, truth in levels.items():
            self.truths.setdefault(level, []).append(truth)

    def known(self, names: Iterable[str]) -> frozenset[int]:
        """Return the numbers of the named images; note those that are absent."""
        numbers = {name: self.images.numbers.get(name) for name in names}
        self.absent |= {name for name, number in numbers.items() if number is None}
        return frozenset(number for number in numbers.values() if number is not None)

    def leave_out(self, why: str, name: str) -> None:
        """Note what is not used, and why."""
        self.left_out.setdefault(why, []).append(name)

    def dataset(self) -> Dataset:
        """Return the dataset; raise DatasetError if no question is left."""
        images = self.images
        notes = [f"{len(names)} {why} ({_some(names)})" for why, names in self.left_out.items()]
        if images.ignored:
            notes.append(f"{images.ignored} images are left out: their names do not belong to this dataset")
        if self.absent:
            notes.append(f"{len(self.absent)} images of the ground truth are missing ({_some(sorted(self.absent))})")
        if not self.questions:
            reason = "; ".join(notes) or "no two images belong together"
            raise DatasetError(f"{images.folder}: no question is left: {reason}; expected {images.expected}")
        truths = {level: tuple(values) for level, values in self.truths.items()}
        return Dataset(self.name, images.folder, images.kind, images.paths, tuple(self.questions), truths, "mAP", tuple(notes))


def _question(images: ImageFolder, number: int, group: str) -> Question:
    """Return a question whose query is an image of the database."""
    return Question(images.names[number], images.paths[number], number, group=group)


def _is_web_page(path: Path) -> bool:
    with open_file(path) as (file, _):
        return file.read(1) == b"<"


def _read_names(path: Path) -> list[str]:
    with open_file(path) as (file, _):
        content = file.read()
    if not content.isascii():
        fail(path, "not a list of image names", "take it from the published ground truth")
    return content.decode("ascii").split()


def _read_query(path: Path) -> tuple[str, Region]:
    """Return the image and the region of a question; Oxford's names have the prefix oxc1_ here alone."""
    parts = _read_names(path)
    try:
        name, x1, y1, x2, y2 = parts[0], *map(float, parts[1:])
        if not (math.isfinite(x1 + y1 + x2 + y2) and x1 < x2 and y1 < y2):
            raise ValueError
    except (ValueError, IndexError):
        fail(path, "expected an image name and a region x1 y1 x2 y2", "take the published file")
    return name.removeprefix("oxc1_"), (x1, y1, x2, y2)


def _grouped_by_answers(questions: Sequence[Question], truths: Sequence[Truth]) -> tuple[Question, ...]:
    """Return the questions in groups: those that share a relevant image, directly or through others, show the same object."""
    groups: list[tuple[frozenset[int], list[int]]] = []  # relevant images, questions
    for number, truth in enumerate(truths):
        joined = [group for group in groups if group[0] & truth.relevant]
        groups = [group for group in groups if not group[0] & truth.relevant]
        answers = truth.relevant.union(*(group[0] for group in joined))
        groups.append((answers, [*(member for group in joined for member in group[1]), number]))
    names = {number: questions[min(members)].name for _, members in groups for number in members}
    return tuple(replace(question, group=names[number]) for number, question in enumerate(questions))


def _folder_of(name: str) -> str:
    return os.path.dirname(name)


def _prefix_of(name: str) -> str:
    bare = stem(name)
    cut = max(bare.rfind("-"), bare.rfind("_"))
    return bare[:cut] if cut >= 0 else bare.rstrip("0123456789")


def _some(names: Sequence[str]) -> str:
    """Return the first names of a list for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
