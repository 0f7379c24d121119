"""A synthetic dataset of descriptors: objects seen from several viewpoints, among clutter and bursts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.datasets.descriptor_files import SiftFeatures, fail, open_file, write_siftgeo
from polyvoc.experiments.datasets.readers import Dataset, list_images, read_holidays, with_distractors
from polyvoc.storage.files import replace_file, write_errors
from polyvoc.types import Floats64

Random = np.random.Generator
NOTE = "world.json"
FORMAT = "polyvoc synthetic world 1"  # another number when the same options give another world
WIDTH, HEIGHT = 640.0, 480.0  # of every image
RADIUS = 200.0  # of an object seen from the front, in pixels
LATENT = 16  # dimensions in which patterns differ; descriptors of photographs have about as many
KINDS = 400  # clusters of patterns
TEXTURES = 25  # patterns that bursts are made of
IMAGES, DISTRACTORS, TRAINING = "images", "distractors", "train"  # folders of a world


@dataclass(frozen=True)
class WorldOptions:
    """How large a world is, and how hard."""

    groups: int = 40  # objects that are queries
    views: int = 3  # images of each; the first is the query
    distractors: int = 60  # images of other objects
    training: int = 60  # images of other objects again, for vocabularies
    features: int = 300  # of an image, on average
    shown: float = 0.5  # share of an image that belongs to its object
    found: float = 0.6  # chance that a feature of an object is found in a view
    noise: float = 0.4  # change of a pattern from view to view, in spreads of its kind
    bursts: float = 0.1  # share of an image, on average, that repeats a pattern again and again
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise OptionError for values out of range."""
        least = {"groups": 1, "views": 2, "training": 1, "features": 1, "found": 0.05}
        most = {"groups": 9000, "views": 100, "shown": 1.0, "found": 1.0, "bursts": 1.0}  # names have six digits
        for name, value in asdict(self).items():
            low, high = least.get(name, 0), most.get(name, math.inf)
            if not low <= value <= high:
                raise OptionError(f"{name}={value!r} should be {low} or more" + (f", up to {high}" if name in most else ""))


def read_world(folder: Path, options: WorldOptions | None = None) -> Dataset:
    """Return the world in a folder as a dataset, by the protocol of Holidays; a missing or empty folder is filled first."""
    stored = _stored(folder)
    write_world(folder, options or stored or WorldOptions())
    dataset = read_holidays(folder / IMAGES, "siftgeo")
    if any((folder / DISTRACTORS).iterdir()):
        dataset = with_distractors(dataset, folder / DISTRACTORS)
    return replace(dataset, name="synthetic", folder=folder)


def training_images(folder: Path) -> tuple[Path, ...]:
    """Return the files of a world from which vocabularies are trained."""
    return list_images(folder / TRAINING, "siftgeo")


def write_world(folder: Path, options: WorldOptions = WorldOptions()) -> None:
    """Write the missing files of a world: images/, distractors/, train/, and the options as world.json."""
    stored = _stored(folder)
    if stored is not None and stored != options:
        raise DatasetError(f"{folder}: holds a world of other options; give another folder, or remove it")
    with write_errors(folder):
        for name in (IMAGES, DISTRACTORS, TRAINING):
            (folder / name).mkdir(parents=True, exist_ok=True)
    if stored is None:
        with replace_file(folder / NOTE) as partial:  # first, so that an interrupted world can be completed
            partial.write_text(json.dumps({"format": FORMAT, **asdict(options)}, indent=2))
    world = _World(options)
    for path, stream, view in _plan(folder, options):
        if not path.exists():
            write_siftgeo(path, world.photograph(stream, view))


def _plan(folder: Path, options: WorldOptions) -> Iterator[tuple[Path, tuple[int, int], int]]:
    """Yield every file of a world with the stream of random numbers of its object, and the number of its view."""
    for group in range(options.groups):
        for view in range(options.views):
            yield folder / IMAGES / f"{1000 + group}{view:02d}.siftgeo", (0, group), view
    for stream, name, count in ((1, DISTRACTORS, options.distractors), (2, TRAINING, options.training)):
        for number in range(count):
            yield folder / name / f"{number:06d}.siftgeo", (stream, number), 0


def _stored(folder: Path) -> WorldOptions | None:
    """Return the options of the world in a folder, None if it is missing or empty."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / NOTE).is_file():
        raise DatasetError(f"{folder}: holds something else than a synthetic world; give another folder")
    with open_file(folder / NOTE) as (file, _):
        content = file.read()
    try:
        values = json.loads(content)
        if values.pop("format") != FORMAT:
            raise ValueError
        return WorldOptions(**values)
    except (ValueError, TypeError, KeyError, AttributeError):
        fail(folder / NOTE, "not of this version's synthetic world", "give another folder")


class _Patterns(NamedTuple):
    """Features before a camera sees them."""

    latent: Floats64  # [n, LATENT]
    spread: Floats64  # [n]  of the kind of each
    xy: Floats64  # [n, 2]
    scale: Floats64  # [n]
    angle: Floats64  # [n]  degrees


class _World:
    """The patterns that a world is made of, and how a camera sees them."""

    def __init__(self, options: WorldOptions) -> None:
        """Draw the kinds of patterns: a few are very common, and clusters are dense or loose."""
        random = np.random.default_rng([options.seed, 3])
        self.options = options
        self.centres = random.normal(size=(KINDS, LATENT))
        self.spreads = 0.3 * random.lognormal(0, 0.5, KINDS)
        rarity = (np.arange(KINDS) + 5.0) ** -1.0  # Zipf's law, as of words
        self.shares = rarity / rarity.sum()
        self.camera = random.normal(size=(LATENT, 128))
        self.textures = self.scattered(random, TEXTURES)

    def scattered(self, random: Random, n: int) -> _Patterns:
        """Return n independent patterns all over an image."""
        kinds = random.choice(KINDS, n, p=self.shares)
        # Student's t: most patterns are near their kind, some far from all others
        offsets = random.standard_t(4, (n, 1)) * random.normal(size=(n, LATENT)) / math.sqrt(2)
        return _Patterns(
            self.centres[kinds] + self.spreads[kinds, None] * offsets,
            self.spreads[kinds],
            random.random((n, 2)) * (WIDTH, HEIGHT),
            4 * random.lognormal(0.7, 0.5, n),
            random.uniform(0, 360, n),
        )

    def constellation(self, random: Random) -> _Patterns:
        """Return an object: patterns within a disc of radius 1."""
        n = round(self.options.features * self.options.shown / self.options.found)
        drawn = self.scattered(random, n)
        distance, direction = np.sqrt(random.random(n)), random.uniform(0, 2 * math.pi, n)
        return drawn._replace(xy=distance[:, None] * np.column_stack([np.cos(direction), np.sin(direction)]))

    def photograph(self, stream: tuple[int, int], view: int) -> SiftFeatures:
        """Return one view of the object of a stream, with bursts and clutter around it."""
        options = self.options
        thing = self.constellation(np.random.default_rng([options.seed, *stream]))
        random = np.random.default_rng([options.seed, *stream, view + 1])  # 0 at the end would be the stream of the object
        total = random.poisson(options.features)
        seen = _seen(random, thing, options)
        repeated = self.burst(random, round(total * min(1.0, random.exponential(options.bursts))))
        clutter = self.scattered(random, max(0, total - len(seen.xy) - len(repeated.xy)))
        every = _Patterns(*map(np.concatenate, zip(seen, repeated, clutter, strict=True)))
        xy, scale, angle = (part.astype(np.float32) for part in (every.xy, every.scale, every.angle))
        return SiftFeatures(xy, scale, angle, self.described(random, every.latent))

    def burst(self, random: Random, n: int) -> _Patterns:
        """Return one of the textures n times, in rows as of windows, each time a little different."""
        one = random.choice(TEXTURES)
        latent, spread, _, scale, angle = (np.repeat(part[one : one + 1], n, axis=0) for part in self.textures)
        columns = math.ceil(math.sqrt(n))
        grid = np.column_stack(np.divmod(np.arange(n), max(columns, 1)))[:, ::-1]
        step = (WIDTH / max(columns, 1), HEIGHT / max(columns, 1))
        changed = latent + 0.5 * spread[:, None] * random.normal(size=latent.shape)
        return _Patterns(changed, spread, (grid + 0.5) * step, scale, angle)

    def described(self, random: Random, latent: Floats64) -> npt.NDArray[np.uint8]:
        """Return patterns as a camera and SIFT see them: not negative, no value above 0.2 of the norm, which is 512."""
        values: Floats64 = np.maximum(latent @ self.camera + 0.2 * random.normal(size=(len(latent), 128)), 0)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        values = np.minimum(values, 0.2)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        return np.minimum(512 * values, 255).astype(np.uint8)


def _seen(random: Random, thing: _Patterns, options: WorldOptions) -> _Patterns:
    """Return the visible part of an object from a new viewpoint: turned, nearer or farther, foreshortened, off the middle."""
    turn, axis = math.radians(random.uniform(-30, 30)), random.uniform(0, math.pi)
    zoom, stretch = math.exp(random.uniform(-0.4, 0.4)), math.exp(random.uniform(-0.2, 0.2))
    image_from_object = zoom * _rotation(turn) @ _rotation(axis) @ np.diag([stretch, 1 / stretch]) @ _rotation(-axis)
    middle = np.array([WIDTH, HEIGHT]) / 2 + random.uniform(-60, 60, 2)
    xy = thing.xy @ (RADIUS * image_from_object).T + middle + random.normal(size=thing.xy.shape)
    n = len(xy)
    kept = ((xy > 0) & (xy < (WIDTH, HEIGHT))).all(axis=1) & (random.random(n) < options.found)
    strength = options.noise * thing.spread * random.gamma(2, 0.5, n)  # some change much more than others
    latent = thing.latent + strength[:, None] * random.normal(size=thing.latent.shape)
    scale = thing.scale * zoom * np.exp(0.1 * random.normal(size=n))
    angle = (thing.angle + math.degrees(turn) + 5 * random.normal(size=n)) % 360
    return _Patterns(*(part[kept] for part in (latent, thing.spread, xy, scale, angle)))


def _rotation(angle: float) -> Floats64:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
