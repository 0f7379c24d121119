"""`polyvoc train`: what the command line says of learning a vocabulary."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from polyvoc import console, flags, reports
from polyvoc.flags import Folders, Json, Ray, on_disk
from polyvoc.records import FeatureOptions, TrainOptions

app = typer.Typer()


@app.command(
    "train",
    epilog="Example: polyvoc train ~/Pictures --out my-words --size 10000 --seed 1\n\n"
    "Example: polyvoc train ~/Pictures --out orb-words --detector orb",
)
@flags.from_record(TrainOptions, flags.TRAIN_TEXTS)
@flags.from_record(FeatureOptions, flags.FEATURE_TEXTS, receiver="reading")
def train_command(
    folders: Folders,
    chosen: dict[str, Any],
    reading: dict[str, Any],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to put the vocabulary.", callback=on_disk)],
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Train a vocabulary on photographs of your own, for `polyvoc index --vocabulary`."""
    from polyvoc import collection, inventory, stores, training, vocabulary

    vocabulary.check_target(out)  # before the hours of training, not after
    started = time.perf_counter()
    options = TrainOptions(**chosen)
    workers: training.Workers = training.Threads()
    if ray is not None:
        from polyvoc.cluster.training import RayWorkers

        workers = RayWorkers(ray)
    paths = [path for path, _ in collection.photographs(folders)]
    with console.progress() as progress:
        sample = training.sample_descriptors(
            paths,
            FeatureOptions(**reading),
            limit=options.max_descriptors,
            seed=options.seed,
            progress=lambda done, total: progress("photographs", done, total),
            workers=workers,
        )
        trained = training.train(
            sample,
            options,
            lambda done, total, distortion, moved: progress(f"rounds: distortion {distortion:.4f}", done, total),
            source=", ".join(stores.name(collection.location(folder)) for folder in folders),
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
    console.talk(f"Use it: polyvoc index FOLDER --index NEW.polyvoc --vocabulary {shlex.quote(str(out))}")
