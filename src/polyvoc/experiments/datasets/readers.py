"""Photographs with ground truth: which images, which questions, which answers are right? One small interface for all."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.datasets.descriptor_files import reading
from polyvoc.experiments.datasets.ground_truth import read_ground_truth
from polyvoc.experiments.datasets.image_folder import ImageFolder, Kind, stem
from polyvoc.experiments.measures import Truth
from polyvoc.types import Region

__all__ = [  # Kind and Region are defined elsewhere, and used with datasets
    "READERS", "Dataset", "Kind", "Question", "Reader", "Region", "first_questions", "list_images", "read_groups",
    "read_holidays", "read_oxford", "read_paris", "read_roxford", "read_rparis", "read_ukbench", "with_distractors",
]  # fmt: skip
# Why something is not used, after its number
_NO_QUERY = "groups do not ask for want of a query, or of other images"
_NOT_FOUR = "groups do not ask for want of four images"
_UNANSWERABLE = "questions are left out for want of their image or of right answers"
_PAGES = "files are left out that hold a web page instead of a photograph"  # 20 of the published Paris images


@dataclass(frozen=True)
class Question:
    """A query: a photograph, or a region of it; only features strictly inside the region ask."""

    name: str
    source: Path  # its photograph or descriptor file
    image: int | None  # its number in the database, None if it is not there
    region: Region | None = None
    group: str = ""  # questions of one group show the same thing: they are not independent of each other


@dataclass(frozen=True)
class Dataset:
    """A database of images, questions to it, and the right answers."""

    name: str
    folder: Path
    kind: Kind  # what the files of the images are
    images: tuple[Path, ...]  # the database; an image's number is its place here
    questions: tuple[Question, ...]
    truths: Mapping[str, tuple[Truth, ...]]  # one truth per question; "" or, for revisited sets, "easy", "medium", "hard"
    measure: str  # the one that the set is known for: "mAP" or "N-S"
    notes: tuple[str, ...] = ()  # what is left out, one line each


class Reader(Protocol):
    """Reads the dataset in a folder; unless a kind is given, photographs if there are any, else descriptors."""

    def __call__(self, folder: Path, kind: Kind | None = None) -> Dataset:
        """Give the dataset."""


def read_holidays(folder: Path, kind: Kind | None = None) -> Dataset:
    """Give INRIA Holidays: the images NNNNNN of one group share the first four digits; the one that ends in 00 asks.

    The query is left out of its ranking (Jégou, Douze, Schmid, ECCV 2008).
    """
    images = ImageFolder.find(folder, kind, r"\d{6}", "100000.jpg, 100001.jpg, ... or 100000.siftgeo, ...")
    found = _Answers("holidays", images)
    for group, members in images.groups(lambda name: name[:4]).items():
        query = images.numbers.get(f"{group}00")
        if query is None or len(members) == 1:
            found.leave_out(_NO_QUERY, group)
        else:
            found.add(_whole(images, query, group), {"": Truth(members - {query}, frozenset({query}))})
    return found.dataset()


def read_ukbench(folder: Path, kind: Kind | None = None) -> Dataset:
    """Give Ukbench: four images ukbenchNNNNN in a row show one thing; each asks, and is one of its own four right answers.

    An incomplete four does not ask: its N-S would have another scale (Nistér, Stewénius, CVPR 2006).
    """
    images = ImageFolder.find(folder, kind, r"ukbench\d{5}", "ukbench00000.jpg, ukbench00001.jpg, ...")
    found = _Answers("ukbench", images)
    for group, members in images.groups(lambda name: str(int(name[-5:]) // 4)).items():
        if len(members) < 4:
            found.leave_out(_NOT_FOUR, group)
            continue
        for number in sorted(members):
            found.add(_whole(images, number, group), {"": Truth(members)})
    return replace(found.dataset(), measure="N-S")


def read_oxford(folder: Path, kind: Kind | None = None) -> Dataset:
    """Give the Oxford buildings with their text files of ground truth (Philbin et al., CVPR 2007)."""
    return _read_buildings("oxford", folder, kind, "gt_files/all_souls_1_query.txt, ... and images as oxbuild_images/*.jpg")


def read_paris(folder: Path, kind: Kind | None = None) -> Dataset:
    """Give the Paris buildings with their text files of ground truth (Philbin et al., CVPR 2008)."""
    return _read_buildings("paris", folder, kind, "paris_120310/defense_1_query.txt, ... and images as paris/*/*.jpg")


def _read_buildings(name: str, folder: Path, kind: Kind | None, expected: str) -> Dataset:
    """Give a dataset whose questions are files <landmark>_<n>_query.txt, each with its good, ok and junk images beside it.

    The image of a query stays in the database, as one of the right answers.
    """
    everything = ImageFolder.find(folder, kind, r".+", expected)
    asked = everything.ground_truth(r".+_\d+_query\.txt")
    pages = {name for name, path in zip(everything.names, everything.paths, strict=True) if _is_web_page(path)}
    images = everything.only(set(everything.names) - pages)
    found = _Answers(name, images, left_out={_PAGES: sorted(pages)} if pages else {})
    for path in asked:
        title = path.name.removesuffix("_query.txt")
        source, region = _read_query(path)
        good, ok, junk = (_read_names(path.with_name(f"{title}_{part}.txt")) for part in ("good", "ok", "junk"))
        truth = Truth(found.known([*good, *ok]), found.known(junk))
        query = images.numbers.get(source)
        if query is None or not truth.relevant:
            found.leave_out(_UNANSWERABLE, title)
        else:
            found.add(Question(title, images.paths[query], query, region, title.rpartition("_")[0]), {"": truth})
    return found.dataset()


def read_roxford(folder: Path, kind: Kind | None = None) -> Dataset:
    """Give the Oxford buildings under the revisited protocol."""
    return _read_revisited("roxford", folder, kind, "gnd_roxford5k.pkl")


def read_rparis(folder: Path, kind: Kind | None = None) -> Dataset:
    """Give the Paris buildings under the revisited protocol."""
    return _read_revisited("rparis", folder, kind, "gnd_rparis6k.pkl")


def _read_revisited(name: str, folder: Path, kind: Kind | None, file: str) -> Dataset:
    """Give a dataset of the revisited protocol, whose queries are not in the database (Radenović et al., CVPR 2018).

    Easy questions take the hard images as junk, hard questions the easy ones; for medium questions both are right.
    """
    everything = ImageFolder.find(folder, kind, r".+", f"{file} and images as jpg/*.jpg")
    published = read_ground_truth(everything.ground_truth(file.replace(".", r"\."))[0])
    found = _Answers(name, everything.only(published.images))
    for title, entry in zip(published.queries, published.entries, strict=True):
        easy, hard, junk = (found.known(published.images[i] for i in part) for part in (entry.easy, entry.hard, entry.junk))
        query = everything.numbers.get(title)
        if query is None or not easy | hard:
            found.leave_out(_UNANSWERABLE, title)
            continue
        question = Question(title, everything.paths[query], None, entry.region)
        levels = {"easy": Truth(easy, junk | hard), "medium": Truth(easy | hard, junk), "hard": Truth(hard, junk | easy)}
        found.add(question, levels)
    dataset = found.dataset()
    return replace(dataset, questions=_grouped_by_answers(dataset.questions, dataset.truths["medium"]))


def read_groups(folder: Path, kind: Kind | None = None) -> Dataset:
    """Give any folder of groups: every image of a group of two or more asks, and is left out of its ranking.

    If sub-folders hold images, each of them is a group, and images beside them belong to none. Otherwise the names tell: a
    group is the part before the last '-' or '_', or else before the digits at the end ("tower-a", "tower-b"; "dog1", "dog2").
    """
    expected = "sub-folders of photographs that show the same thing, or names that begin alike (tower-a.jpg, tower-b.jpg, ...)"
    images = ImageFolder.find(folder, kind, None, expected)
    nested = any("/" in name for name in images.names)
    found = _Answers("groups", images)
    for group, members in images.groups(_folder_of if nested else _prefix_of).items():
        if len(members) == len(images.names):
            raise DatasetError(
                f"{folder}: all images are of one group, {group!r}, so any ranking is right; expected {expected}"
            )
        for number in sorted(members) if group and len(members) > 1 else ():
            found.add(_whole(images, number, group), {"": Truth(members - {number}, frozenset({number}))})
    return found.dataset()


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
    """Give the images of a kind below a folder, in the order of their paths."""
    return ImageFolder.find(folder, kind, None, kind if kind == "photographs" else f"files of descriptors ({kind})").paths


def with_distractors(dataset: Dataset, more: Path | Sequence[Path]) -> Dataset:
    """Give the dataset with more images, which answer no question: those below a folder, or those listed.

    Images that the dataset has already are passed over.
    """
    paths = list_images(more, dataset.kind) if isinstance(more, Path) else tuple(more)
    present = {os.path.realpath(path) for path in (*dataset.images, *(question.source for question in dataset.questions))}
    added = tuple(path for path in paths if os.path.realpath(path) not in present)
    return replace(dataset, name=f"{dataset.name} + {len(added)}", images=dataset.images + added)


def first_questions(dataset: Dataset, n: int) -> Dataset:
    """Give the dataset with n of its questions, evenly spread; all of them if there are no more."""
    if n < 1:
        raise OptionError(f"n={n!r} should be at least 1")
    count = len(dataset.questions)
    if n >= count:
        return dataset
    chosen = [place * count // n for place in range(n)]
    questions = tuple(dataset.questions[i] for i in chosen)
    truths = {level: tuple(own[i] for i in chosen) for level, own in dataset.truths.items()}
    return replace(dataset, questions=questions, truths=truths, notes=(*dataset.notes, f"{n} of {count} questions ask"))


@dataclass(eq=False)
class _Answers:
    """A dataset in the making: questions with their right answers, and what is missing."""

    name: str
    images: ImageFolder
    questions: list[Question] = field(default_factory=list)
    truths: dict[str, list[Truth]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    def add(self, question: Question, levels: Mapping[str, Truth]) -> None:
        """Take a question with its truth at each level."""
        self.questions.append(question)
        for level, truth in levels.items():
            self.truths.setdefault(level, []).append(truth)

    def known(self, names: Iterable[str]) -> frozenset[int]:
        """Give the numbers of the named images; remember those that are absent."""
        numbers = {name: self.images.numbers.get(name) for name in names}
        self.absent |= {name for name, number in numbers.items() if number is None}
        return frozenset(number for number in numbers.values() if number is not None)

    def leave_out(self, why: str, name: str) -> None:
        """Remember what is not used, and why."""
        self.left_out.setdefault(why, []).append(name)

    def dataset(self) -> Dataset:
        """Give the dataset, unless nothing is left to ask."""
        own = self.images
        notes = [f"{len(names)} {why} ({_some(names)})" for why, names in self.left_out.items()]
        if own.ignored:
            notes.append(f"{own.ignored} images are left out that do not have the names of this dataset")
        if self.absent:
            notes.append(f"{len(self.absent)} images of the ground truth are not there ({_some(sorted(self.absent))})")
        if not self.questions:
            reason = "; ".join(notes) or "no two images belong together"
            raise DatasetError(f"{own.folder}: no question is left: {reason}; expected {own.expected}")
        truths = {level: tuple(values) for level, values in self.truths.items()}
        return Dataset(self.name, own.folder, own.kind, own.paths, tuple(self.questions), truths, "mAP", tuple(notes))


def _whole(images: ImageFolder, number: int, group: str) -> Question:
    """Give the question that a whole image of the database asks."""
    return Question(images.names[number], images.paths[number], number, group=group)


def _is_web_page(path: Path) -> bool:
    with reading(path) as (file, _):
        return file.read(1) == b"<"


def _read_names(path: Path) -> list[str]:
    with reading(path) as (file, _):
        content = file.read()
    if not content.isascii():
        raise DatasetError(f"{path}: not a list of image names; take it from the published ground truth")
    return content.decode("ascii").split()


def _read_query(path: Path) -> tuple[str, Region]:
    """Give the image and the region of a question; Oxford's names have the prefix oxc1_ here alone."""
    parts = _read_names(path)
    try:
        name, x1, y1, x2, y2 = parts[0], *map(float, parts[1:])
        if not (math.isfinite(x1 + y1 + x2 + y2) and x1 < x2 and y1 < y2):
            raise ValueError
    except (ValueError, IndexError):
        raise DatasetError(f"{path}: expected an image name and a region x1 y1 x2 y2; take the published file") from None
    return name.removeprefix("oxc1_"), (x1, y1, x2, y2)


def _grouped_by_answers(questions: Sequence[Question], truths: Sequence[Truth]) -> tuple[Question, ...]:
    """Give the questions in groups: those that share a right answer, directly or through others, show the same thing."""
    groups: list[tuple[frozenset[int], list[int]]] = []  # right answers, questions
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
    """Give the first names of a list for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
