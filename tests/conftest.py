"""Shared by the tests: photographs drawn on the spot, small vocabularies, and an index of both."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image, ImageDraw

from polyvoc.features.extract import extract
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.vocabulary.assign import project
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet, random_rotation

# A busy machine is slow, not wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# What needs more than Python: left out by `scripts/test --fast`.
SLOW = {
    "browser": ("web/test_browser",),
    "cluster": ("cluster/",),
    "network": ("storage/test_stores.py", "web/test_store_requests.py"),
    "site": ("test_docs.py",),
    "wheel": ("test_wheel.py",),
    "slow": (
        "index/test_crash.py",
        "duplicates/test_duplicates.py",
        "experiments/test_paper.py",
        "fuzz/",
        "web/test_schemas.py",
        "web/test_server.py",
        "web/test_service.py",
        "test_container.py",
        "test_example_notebook.py",
        "test_example_reconstruct.py",
        "test_power_loss.py",
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests the markers of what they need, by their files."""
    for item in items:
        name = item.path.relative_to(Path(__file__).parent).as_posix()
        for marker, files in SLOW.items():
            if name.startswith(files):
                item.add_marker(marker)


@pytest.fixture(autouse=True, scope="session")
def _notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the tests allow out of the user's own notes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


SCENES = ("bridge", "market", "tower", "wall")
VIEWS = ("a", "b", "c")


def draw_scene(seed: int, size: tuple[int, int] = (360, 270)) -> Image.Image:
    """Draw something with texture at all scales: shapes over shapes, a little noise, a little blur."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(60, 200, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(260):
        x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
        w, h = rng.gamma(1.5, 12, 2) + 3
        colour = tuple(rng.integers(0, 256, 3).tolist())
        shape = pen.ellipse if rng.random() < 0.5 else pen.rectangle
        shape((x, y, x + w, y + h), fill=colour)
    noisy = np.asarray(image, np.float32) + rng.normal(0, 4, (size[1], size[0], 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def view_of(scene: Image.Image, view: str) -> Image.Image:
    """Give a view of a scene: as it is, turned, or a darker part of it."""
    if view == "a":
        return scene
    if view == "b":
        return scene.rotate(12, Image.Resampling.BICUBIC, expand=False)
    width, height = scene.size
    part = scene.crop((width // 10, height // 10, width, height))
    return part.point([int(level * 0.7) for level in range(256)] * 3)


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 12 photographs: 4 scenes in 3 views, as `<scene>-<view>.jpg`. Read it, do not change it."""
    folder = tmp_path_factory.mktemp("photographs")
    for seed, name in enumerate(SCENES):
        scene = draw_scene(seed)
        for view in VIEWS:
            view_of(scene, view).save(folder / f"{name}-{view}.jpg", quality=92)
    return folder


@pytest.fixture(scope="session")
def vocabularies(photographs: Path) -> tuple[Vocabulary, ...]:
    """Two vocabularies of 300 words with signatures of 64 bits; their words are features of the photographs."""
    descriptors = np.concatenate([extract(photographs / f"{name}-a.jpg").descriptors for name in SCENES])
    rotation = random_rotation(descriptors.shape[1], 64)
    made = []
    for seed in range(2):
        words = descriptors[np.random.default_rng(seed).choice(len(descriptors), 300, replace=False)]
        made.append(Vocabulary.create(words, project(words, rotation), rotation, {"seed": seed}))
    return tuple(made)


@pytest.fixture(scope="session")
def fine(photographs: Path) -> Vocabulary:
    """A vocabulary of 1000 words that codes of 128 bits refer to, trained on some of the photographs."""
    descriptors = np.concatenate([extract(photographs / f"{name}-a.jpg").descriptors for name in SCENES])
    return train(descriptors, TrainOptions(size=1000, rounds=3))


@pytest.fixture(scope="session")
def _session_index(photographs: Path, vocabularies: tuple[Vocabulary, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "photos.polyvoc"
    with IndexWriter.open(path, vocabularies) as writer:
        writer.update([photographs])
    return path


@pytest.fixture
def index_path(_session_index: Path, tmp_path: Path) -> Path:
    """An index of the photographs, words with signatures and no codes; each test gets its own copy."""
    return Path(shutil.copytree(_session_index, tmp_path / "photos.polyvoc"))


MakeCoded = Callable[[Path], Path]


@pytest.fixture(scope="session")
def _make_coded(vocabularies: tuple[Vocabulary, ...], fine: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> MakeCoded:
    def make(folder: Path) -> Path:
        path = tmp_path_factory.mktemp("index") / "coded.polyvoc"
        with IndexWriter.open(path, VocabularySet(vocabularies, fine)) as writer:
            writer.update([folder])
        return path

    return make


@pytest.fixture(scope="session")
def _session_coded_index(photographs: Path, _make_coded: MakeCoded) -> Path:
    return _make_coded(photographs)


@pytest.fixture(scope="session")
def coded_views(views: Path, _make_coded: MakeCoded) -> Path:
    """An index of the views with codes. Read it, do not change it."""
    return _make_coded(views)


@pytest.fixture(scope="session")
def orb_words(photographs: Path) -> Vocabulary:
    """A vocabulary of 500 words that codes of ORB refer to."""
    paths = [photographs / f"{name}-a.jpg" for name in SCENES]
    return train(sample_descriptors(paths, FeatureOptions(detector="orb")), TrainOptions(size=500, rounds=3))


@pytest.fixture(scope="session")
def _session_orb_index(photographs: Path, orb_words: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "photos.orb.polyvoc"
    with IndexWriter.open(path, VocabularySet((), orb_words), FeatureOptions(detector="orb")) as writer:
        writer.update([photographs])
    return path


@pytest.fixture
def coded_index_path(_session_coded_index: Path, tmp_path: Path) -> Path:
    """An index of the photographs as it is by default, with codes, and words without signatures; each test gets its copy."""
    return Path(shutil.copytree(_session_coded_index, tmp_path / "coded.polyvoc"))


@pytest.fixture(scope="session")
def views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs that show six things anew, a folder each. Read them, do not change them."""
    from views import write_views  # it draws with what is above

    return write_views(tmp_path_factory.mktemp("views"))


@pytest.fixture(scope="session")
def views_index(views: Path, vocabularies: tuple[Vocabulary, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the views. Read it, do not change it."""
    path = tmp_path_factory.mktemp("index") / "views.polyvoc"
    with IndexWriter.open(path, vocabularies) as writer:
        writer.update([views])
    return path
