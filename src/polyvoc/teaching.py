"""`polyvoc train`: what the command line says of learning a vocabulary."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc import console, flags, reports
from polyvoc.flags import Binary, FeaturesFile, Folders, Json, KindName, Ray, on_disk
from polyvoc.records import FeatureOptions, Progress, TrainOptions

if TYPE_CHECKING:
    from polyvoc.training import Sample, Workers

app = typer.Typer()


@app.command(
    "train",
    epilog="Example: polyvoc train ~/Pictures --out my-words --size 10000 --seed 1\n\n"
    "Example: polyvoc train ~/Pictures --out orb-words --detector orb\n\n"
    "Example: polyvoc train --features feats-superpoint-n4096-r1024.h5 --out superpoint-words",
)
@flags.from_record(TrainOptions, flags.TRAIN_TEXTS)
@flags.from_record(FeatureOptions, flags.FEATURE_TEXTS, receiver="reading")
def train_command(  # noqa: PLR0913, PLR0917
    chosen: dict[str, Any],
    reading: dict[str, Any],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to put the vocabulary.", callback=on_disk)],
    folders: Folders = None,
    features: FeaturesFile = None,
    kind: KindName = None,
    binary: Binary = False,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Train a vocabulary on photographs of your own, or on features of others, for `polyvoc index --vocabulary`."""
    from polyvoc import exchange, inventory, training, vocabulary

    flags.only_one_source(folders, features, {"kind": kind, "binary": binary} if features is None else reading)
    vocabulary.check_target(out)  # before the hours of training, not after
    started = time.perf_counter()
    options = TrainOptions(**chosen)
    workers: training.Workers = training.Threads()
    if ray is not None:
        from polyvoc.cluster.training import RayWorkers

        workers = RayWorkers(ray)
    with console.progress() as progress:
        if features is not None:
            file = exchange.open_features(features, kind, binary)
            sample = exchange.sample(file, options, lambda done, total: progress("images", done, total))
            source = features.name
        else:
            sample, source = _draw(folders or [], FeatureOptions(**reading), options, workers, progress)
        trained = training.train(
            sample,
            options,
            lambda done, total, distortion, moved: progress(f"rounds: distortion {distortion:.4f}", done, total),
            source=source,
            workers=workers,
        )
    trained.save(out)
    facts = inventory.describe_vocabulary(trained)
    seconds = time.perf_counter() - started
    if json:
        problems = [asdict(problem) for problem in sample.problems]
        console.write_json({"vocabulary": str(out), **facts, "problems": problems, "seconds": round(seconds, 3)})
        return
    console.write_fact("vocabulary", str(out), reports.describe_words(facts), f"{seconds:.1f} s")
    reports.show_problems(sample.problems)
    given = "FOLDER" if features is None else f"--features {shlex.quote(str(features))}"
    console.talk(f"Use it: polyvoc index {given} --index NEW.polyvoc --vocabulary {shlex.quote(str(out))}")


def _draw(folders: list[str], reading: FeatureOptions, options: TrainOptions, workers: Workers,
          progress: Progress) -> tuple[Sample, str]:  # fmt: skip
    """Draw descriptors from the photographs of folders; and say in words which these were."""
    from polyvoc import collection, stores, training

    sample = training.sample_descriptors(
        [path for path, _ in collection.photographs(folders)],
        reading,
        limit=options.max_descriptors,
        seed=options.seed,
        progress=lambda done, total: progress("photographs", done, total),
        workers=workers,
    )
    return sample, ", ".join(stores.name(collection.location(folder)) for folder in folders)
