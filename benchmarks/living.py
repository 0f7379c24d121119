"""Living with an index of many photographs: opening it, deleting, adding, merging, and the first search from a cold disk.

    python benchmarks/living.py TRAINING QUERIES --work FOLDER [--images 262144] [--keep]

The images are those of `million.py`, with words of two vocabularies beside the codes, ids and paths in a catalogue. FOLDER needs
50 bytes per feature (25 GB for a million images) and may be deleted afterwards; with --keep another run uses it again. Every
measurement runs in a process of its own: `seconds` by the clock, `cpu` of all threads, `read` from the disk and `peak` memory in
bytes. Cold means that no file of the index is in the page cache. The sequential read takes as many bytes as the visited lists
have, in whole pages, from the same files with reads of 4 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics as st
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import polyvoc
from machine import write_result
from million import draw_batch, fast, photographs, real_features, usual
from polyvoc.features.extract import extract_many
from polyvoc.index.build import SegmentBuilder
from polyvoc.index.catalogue import Catalogue, ImageRow
from polyvoc.index.commit import Commits
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import MAX_IMAGES, Batch, Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.options import CODE_CUT, FeatureOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.pipeline import search, warm_up
from polyvoc.search.query import Query
from polyvoc.storage.blocks import FILE
from polyvoc.storage.files import META
from polyvoc.storage.folders import FileState
from polyvoc.types import FeatureCodes, Features
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.codes import Coder
from polyvoc.vocabulary.vocabulary import VocabularySet

PARTS = 8  # segments that are merged to a full one
DELETED = 10  # every so many-th image is deleted
ADDED = 9  # photographs that are added one after the other: the small segments of eight are merged
ASSIGNMENTS = 10
PAGE = 4096
READ = 4 << 20
INDEX, MERGED, FIRST, PHOTOS = "index.polyvoc", "merged.polyvoc", "first.polyvoc", "photographs"


# -- the index


def real_words(real: dict[str, np.ndarray], vocabularies: VocabularySet, work: Path) -> np.ndarray:
    """Return the words [F, K] of features by their codes, cached in the work folder."""
    cache = work / "words.npy"
    if not cache.exists():
        assert vocabularies.fine is not None
        coder, quantiser = Coder(vocabularies.fine), Quantiser(vocabularies.words, None, False)
        parts = []
        for at in np.array_split(np.arange(len(real["words"])), 64):
            stored = FeatureCodes(real["words"][at].astype(np.uint32), real["codes"][at], real["rest"][at])
            parts.append(quantiser.quantise(coder.decode(stored))[0])
        np.save(cache, np.concatenate(parts).astype(np.int32))
    return np.load(cache)


def draw(real: dict[str, np.ndarray], first: int, n_images: int) -> Batch:
    """Return images as `draw_batch`, with words. The rest of a drawn feature is its row in `real` (`load_real`)."""
    batch = draw_batch(real, first, n_images)
    assert batch.codes is not None
    rows = batch.codes.rest.view(np.int64).ravel()
    codes = FeatureCodes(batch.codes.words, batch.codes.codes, real["bytes"][rows])
    return replace(batch, words=real["two"][rows], codes=codes)


def load_real(training: Path, work: Path, vocabularies: VocabularySet) -> dict[str, np.ndarray]:
    """Return the features of photographs, where the eight bytes of the rest of each are its row: so `draw` finds the others."""
    assert vocabularies.fine is not None
    real = real_features(training, work, Coder(vocabularies.fine))
    two = real_words(real, vocabularies, work)
    rows = np.arange(len(two), dtype=np.int64).view(np.uint8).reshape(-1, 8)
    return {**real, "two": two, "bytes": real["rest"], "rest": rows}


def add_segment(path: Path, batch: Batch) -> None:
    """Write images and their rows to an index, without merging."""
    folder = IndexFolder(path)
    catalogue = Catalogue.open(path, writable=True)
    commits = Commits(folder, catalogue)
    commits.open_staging()
    lengths = np.diff(batch.feature_starts).tolist()
    rows = [
        ImageRow(image, f"/photographs/{image // 1000:04d}/{image:07d}.jpg", FileState(400_000 + image, 1_700_000_000 + image),
                 f"{image:032x}", 1024, 768, n, 0, 0)
        for image, n in zip(batch.ids.tolist(), lengths, strict=True)
    ]  # fmt: skip
    commits.add(SegmentBuilder.of(folder).stage(batch), rows, ())
    commits.remove_staging()
    catalogue.close()
    folder.close()


def make_index(path: Path, real: dict[str, np.ndarray], n_images: int, step: int) -> dict[str, float]:
    """Write an index of drawn images in segments of `step`, unless it exists; return the seconds."""
    if path.exists():
        return {}
    partial = path.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with IndexWriter.open(partial):
        pass
    begin, drawn = time.perf_counter(), 0.0
    for first in range(1, n_images + 1, step):
        at = time.perf_counter()
        batch = draw(real, first, min(step, n_images + 1 - first))
        drawn += time.perf_counter() - at
        add_segment(partial, batch)
        print(f"{first + len(batch.ids) - 1} images", file=sys.stderr, flush=True)
        del batch
    partial.rename(path)
    return {"build_and_commit": time.perf_counter() - begin - drawn}


# -- measuring


def index_files(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if file.is_file())


def drop_cache(path: Path) -> None:
    """Drop the files of an index from the page cache, as far as no process uses them."""
    for file in index_files(path):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_bytes() -> int:
    """Return the bytes that this process has read from the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def peak_bytes() -> int:
    """Return the most memory that this process had, mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@contextmanager
def measured(result: dict[str, Any], name: str) -> Iterator[None]:
    """Record seconds, CPU seconds and bytes read of what is done inside."""
    begin, cpu, read = time.perf_counter(), time.process_time(), read_bytes()
    yield
    result[name] = {
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "read": read_bytes() - read,
    }


# -- the steps, each in a process of its own


def step_open(path: Path, _: Path) -> dict[str, Any]:
    """Open an index."""
    result: dict[str, Any] = {}
    with measured(result, "open"):
        index = polyvoc.open(path)
    return {**result["open"], "images": len(index)}


def step_add(path: Path, photo: Path) -> dict[str, Any]:
    """Add one photograph, with the vocabularies loaded before, and open the index again."""
    result: dict[str, Any] = {}
    with measured(result, "load"), IndexWriter.open(path) as writer:
        _ = writer.folder.models.quantiser, writer.folder.models.coder
    with measured(result, "add"), IndexWriter.open(path) as second:
        second.folder.loaded = writer.folder.loaded
        report = second.update([photo])
    assert report.added == 1, report
    with measured(result, "reopen"):
        polyvoc.open(path)
    return result


def step_remove(path: Path, photo: Path) -> dict[str, Any]:
    """Remove one photograph."""
    result: dict[str, Any] = {}
    with measured(result, "remove"), IndexWriter.open(path, create=False) as writer:
        assert writer.remove([photo]) == 1
    return result


def step_merge(path: Path, _: Path) -> dict[str, Any]:
    """Merge the segments of an index."""
    result: dict[str, Any] = {}
    with measured(result, "merge"), IndexWriter.open(path, create=False) as writer:
        writer._merge()
    return {**result, "peak": peak_bytes()}


def step_search(path: Path, photo: Path, options: Callable[[int], Any] = fast) -> dict[str, Any]:
    """Search a cold index, and the warm one."""
    drop_cache(path / "segments")
    index, result = polyvoc.open(path), dict[str, Any]()
    ((_, found),) = extract_many([str(photo)], FeatureOptions())
    assert isinstance(found, Features) and index.coder is not None
    codes = index.coder.query(found.descriptors, ASSIGNMENTS, CODE_CUT)
    warm_up((), 0, 128)
    query = Query(codes, keypoints=found.keypoints)
    for name in ("cold", "warm", "warm again"):
        with measured(result, name):
            search(index.engine, query, options(ASSIGNMENTS))
    return {**result, "visited": visited_bytes(index.engine, codes.words), "peak": peak_bytes()}


def step_default(path: Path, photo: Path) -> dict[str, Any]:
    """Search with verification."""
    return step_search(path, photo, usual)


def step_read(path: Path, size: Path) -> dict[str, Any]:
    """Read so many bytes of the codes of all segments, in sequence."""
    drop_cache(path / "segments")
    starts = {folder: json.loads((folder / META).read_text())["arrays"]["codes"][2] for folder in (path / "segments").iterdir()}
    result: dict[str, Any] = {}
    with measured(result, "sequential"):
        for folder, start in sorted(starts.items()):
            with (folder / FILE).open("rb", buffering=0) as opened:
                opened.seek(start)
                left = int(str(size)) // len(starts)
                buffer = bytearray(READ)
                while left > 0 and (n := opened.readinto(buffer)):
                    left -= n
    return result


def visited_bytes(engine: Engine, words: np.ndarray) -> int:
    """Return the bytes of the pages that hold the visited lists."""
    numbers = np.unique(words[words >= 0])
    return sum(_pages(segment, numbers, width) * times for segment in engine.segments for width, times in ((8, 2), (2, 1)))


def _pages(segment: Segment, numbers: np.ndarray, width: int) -> int:
    starts = segment.arrays["code_starts"].astype(np.int64)
    first, last = starts[numbers] * width // PAGE, (starts[numbers + 1] * width + PAGE - 1) // PAGE
    first = np.maximum(first, np.concatenate([[0], last[:-1]]))
    return int(np.maximum(last - first, 0).sum()) * PAGE


STEPS = {"open": step_open, "add": step_add, "remove": step_remove, "merge": step_merge, "search": step_search,
         "default": step_default, "read": step_read}  # fmt: skip


def run(step: str, path: Path, argument: str | Path = "") -> dict[str, Any]:
    """Run a step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, str(path), str(argument)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(step, argument, json.dumps(result), flush=True)
    return result


# -- all of them


def delete_some(path: Path) -> None:
    """Delete every so many-th image of an index."""
    folder, catalogue = IndexFolder(path), Catalogue.open(path, writable=True)
    images = [row.image for row in catalogue.images()][::DELETED]
    Commits(folder, catalogue).add(None, [], images)
    catalogue.close()


def measure_opening(path: Path) -> dict[str, Any]:
    """Return the seconds to open an index, whole and with deleted images, cold and warm."""
    result, kept = {}, path / "catalogue.sqlite"
    for name in ("whole", "deleted"):
        if name == "deleted":
            shutil.copy(kept, path.parent / "catalogue.kept")
            delete_some(path)
        drop_cache(path)
        result[name] = {"cold": run("open", path), "warm": [run("open", path) for _ in range(3)]}
    (path.parent / "catalogue.kept").replace(kept)
    return result


def measure_changes(path: Path, photos: list[str], work: Path) -> dict[str, Any]:
    """Return the seconds to add photographs, one after the other, and to remove one."""
    folder = work / PHOTOS
    folder.mkdir(exist_ok=True)
    copies = [Path(shutil.copy(photo, folder / f"{number}.jpg")) for number, photo in enumerate(photos[:ADDED])]
    run("add", work / FIRST, copies[0])  # compiles what is not compiled yet
    shutil.rmtree(work / FIRST)
    added = [run("add", path, copy) for copy in copies]
    removed = run("remove", path, copies[0])
    with IndexWriter.open(path, create=False) as writer:
        writer.remove([folder])
    return {"added": added, "removed": removed}


def measure_merge(path: Path, real: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return time and memory of merging segments to a full one."""
    make_index(path, real, MAX_IMAGES, MAX_IMAGES // PARTS)
    result = run("merge", path)
    size = sum(file.stat().st_size for file in index_files(path / "segments"))
    shutil.rmtree(path)
    return {**result, "segment": size, "peak_over_segment": result["peak"] / size}


def measure_cold(path: Path, photos: list[str]) -> dict[str, Any]:
    """Return the seconds of the first search, cold and warm, beside those of reading as many bytes."""
    rows = []
    for photo in photos:
        row = {"fast": run("search", path, photo), "default": run("default", path, photo)}
        row["sequential"] = run("read", path, str(row["fast"]["visited"]))["sequential"]
        rows.append(row)
    ratios = [row["fast"]["cold"]["seconds"] / row["sequential"]["seconds"] for row in rows]
    return {"queries": rows, "cold_over_sequential": ratios, "median": st.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("training", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=262_144)
    parser.add_argument("--n-queries", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["opening", "changes", "merge", "cold"], help="what to measure")
    parser.add_argument("--name", default="living")
    parser.add_argument("--keep", action="store_true", help="keep the index for another run")
    arguments = parser.parse_args()
    work, path = arguments.work, arguments.work / INDEX
    work.mkdir(parents=True, exist_ok=True)
    real = load_real(arguments.training, work, VocabularySet.default())
    paths = photographs(arguments.queries)
    chosen = paths[:: max(1, len(paths) // arguments.n_queries)][: arguments.n_queries]
    result: dict[str, Any] = {"images": arguments.images, **make_index(path, real, arguments.images, MAX_IMAGES)}
    result["bytes"] = sum(file.stat().st_size for file in index_files(path))
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "opening": lambda: measure_opening(path),
        "changes": lambda: measure_changes(path, paths, work),
        "merge": lambda: measure_merge(work / MERGED, real),
        "cold": lambda: measure_cold(path, chosen),
    }
    result |= {name: measures[name]() for name in arguments.only}
    print(write_result(arguments.name, result))
    if not arguments.keep:
        shutil.rmtree(work)


if __name__ == "__main__":
    if sys.argv[1] == "--step":
        print(json.dumps(STEPS[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]))))
    else:
        main()
