"""All of the paper's experiments in one run: find the datasets, run every section, write the report."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from polyvoc import __version__
from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.cache import current_commit
from polyvoc.experiments.datasets.hessian_affine import HessianAffine, has_pyhesaff
from polyvoc.experiments.datasets.readers import READERS, Dataset, first_questions, list_images
from polyvoc.experiments.paper.cells import dataset_title, size_text
from polyvoc.experiments.paper.efficiency import efficiency
from polyvoc.experiments.paper.figures import figure2, figure3, figure4, figure5, figure6, figure7
from polyvoc.experiments.paper.open_questions import ablations, criteria, hamming, three
from polyvoc.experiments.paper.readings import readings
from polyvoc.experiments.paper.setup import AFFINE, FULL, PER_WORD, Plan, Reading, Setup
from polyvoc.experiments.paper.signature_length import codes
from polyvoc.experiments.paper.tables import assignment, table2, table3, table4, table5, table6
from polyvoc.experiments.report.html import render_report
from polyvoc.experiments.report.plots import save_svg
from polyvoc.experiments.report.report import Report, Section
from polyvoc.experiments.workbench import MissingResult, Workbench

Experiment = Callable[[Setup], Section]
TABLES = (table2, table3, table4, table5, table6)
FIGURES = (figure2, figure3, figure4, figure5, figure6, figure7)
MORE = (efficiency, assignment, ablations, three, hamming, criteria, codes)
EXPERIMENTS: Mapping[str, Experiment] = {run.__name__: run for run in (readings, *TABLES, *FIGURES, *MORE)}  # by id of section
USED = ("holidays", "oxford", "ukbench")  # by the paper
TRAINING = ("train", "flickr", "photos")  # how a folder of training photographs may begin
REPORT, NUMBERS, PLOTS, CELLS = "report.html", "report.json", "plots", "cells"


def set_up(data: Path, train: Path | None, distractors: Path | None, plan: Plan, workbench: Workbench) -> Setup:
    """Find the datasets below a folder, and photographs to train on.

    A sub-folder is a dataset if its name begins with that of one (`holidays`, `holidays150`, ...). Without a folder of
    distractors every other training photograph is one, and no vocabulary is trained on it.
    """
    found = find_datasets(data)
    if plan.questions is not None:
        found = {name: first_questions(dataset, plan.questions) for name, dataset in found.items()}
    folder = train or next((path for path in _folders(data) if path.name.lower().startswith(TRAINING)), None)
    if folder is None:
        raise OptionError(
            f"{data} has no folder of training photographs (train*, flickr*, photos*); give one with --train FOLDER"
        )
    photographs = list_images(folder)
    training = (photographs[0::2] if distractors is None else photographs)[: plan.training]
    known = {path.resolve() for path in training}
    others = photographs[1::2] if distractors is None else list_images(distractors)
    others = tuple(path for path in others if path.resolve() not in known)
    missing = tuple(dataset_title(name) for name in USED if name not in found)
    setup = Setup(workbench, plan, found, training, others, missing, folder.name)
    if plan is FULL and has_pyhesaff():
        affine = replace(setup, workbench=replace(workbench, features=HessianAffine()), plan=AFFINE)
        return replace(setup, affine=affine)
    return setup


def find_datasets(data: Path) -> dict[str, Dataset]:
    """Read every dataset whose folder lies below `data`, by name; the longest matching name decides."""
    found: dict[str, Dataset] = {}
    for folder in _folders(data):
        names = [name for name in READERS if folder.name.lower().startswith(name)]
        if names:
            name = max(names, key=len)
            if name in found:
                raise DatasetError(f"{data} has two folders of {name}: {found[name].folder.name}, {folder.name}; leave one")
            found[name] = READERS[name](folder)
    if not found:
        wanted = ", ".join(f"{name}*/" for name in READERS if name != "groups")
        raise DatasetError(f"{data}: no dataset found; expected sub-folders such as {wanted}")
    return found


def _folders(data: Path) -> list[Path]:
    if not data.is_dir():
        raise DatasetError(f"{data} is not a folder; give the one that holds the datasets")
    return sorted(path for path in data.iterdir() if path.is_dir())


def run_experiments(setup: Setup, chosen: Sequence[str] = ()) -> Report:
    """Run all experiments, or those named; results of an earlier run are taken from their files.

    A workbench with `finished` makes none: experiments that are not finished are left out, or only what they lack, if that is
    one dataset or the Hessian-affine features. Raise OptionError if nothing is finished.
    """
    names, sections = named(chosen), []
    for number, name in enumerate(names):
        setup.workbench.progress(f"experiments: {name}", number, len(names))
        sections += _finished_sections(EXPERIMENTS[name], setup)
    setup.workbench.progress("experiments: done", len(names), len(names))
    if not sections:
        raise OptionError("nothing is finished yet; run it without --finished")
    unfinished = [name for name in names if name not in {section.id for section in sections}]
    facts = [*_facts(setup), *([("not finished", ", ".join(unfinished))] if unfinished else [])]
    return Report("Bayes merging of multiple vocabularies, redone", _subtitle(setup), facts, sections)


def _finished_sections(experiment: Experiment, setup: Setup) -> list[Section]:
    """Return the section of an experiment, without what is not finished; none if that is too much."""
    for part, lacks in _parts(setup):
        with suppress(MissingResult):
            section = experiment(part)
            return [replace(section, text=(*section.text, f"Not finished: {lacks}."))] if lacks else [section]
    return []


def _parts(setup: Setup) -> Iterator[tuple[Setup, str]]:
    """Yield the setup, then parts of it and what they lack: first of the Hessian-affine features, then a whole dataset."""
    affine = "Hessian-affine features"
    yield setup, ""
    if setup.affine is not None:
        for missing in setup.datasets:
            yield replace(setup, affine=_without(setup.affine, missing)), f"{dataset_title(missing)} with {affine}"
        yield replace(setup, affine=None), affine
    for missing in setup.datasets if len(setup.datasets) > 1 else ():
        kept, title = _without(setup, missing), dataset_title(missing)
        yield kept, title
        if setup.affine is not None:
            yield replace(kept, affine=None), f"{title}, {affine}"


def _without(setup: Setup, missing: str) -> Setup:
    """Return a setup without one of its datasets."""
    kept = {name: dataset for name, dataset in setup.datasets.items() if name != missing}
    return replace(setup, datasets=kept, affine=None if setup.affine is None else _without(setup.affine, missing))


def named(chosen: Sequence[str]) -> list[str]:
    """Return the names of the experiments in their order: all, or those chosen."""
    unknown = sorted(set(chosen) - set(EXPERIMENTS))
    if unknown:
        raise OptionError(f"no experiment {', '.join(unknown)}; choose from {', '.join(EXPERIMENTS)}")
    return [name for name in EXPERIMENTS if not chosen or name in chosen]


def write_report(report: Report, out: Path) -> Path:
    """Write the page, its numbers as JSON, and each plot as a file of its own; give the path of the page."""
    (out / PLOTS).mkdir(parents=True, exist_ok=True)
    (out / NUMBERS).write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
    for section in report.sections:
        for number, figure in enumerate(section.figures):
            suffix = f"-{number + 1}" if len(section.figures) > 1 else ""
            save_svg(figure, out / PLOTS / f"{section.id}{suffix}.svg")
    page = out / REPORT
    page.write_text(render_report(report), encoding="utf-8")
    return page


def _subtitle(setup: Setup) -> str:
    used = ", ".join(
        f"{len(dataset.images):,} photographs of {dataset_title(name)}" for name, dataset in setup.datasets.items()
    )
    return (
        f"Zheng, Wang, Zhou, Tian (CVPR 2014), every table and figure on {used}, with the paper's own numbers where there are "
        "any. Absolute values depend on the size of the database; compare the differences between rules."
    )


def _facts(setup: Setup) -> list[tuple[str, str]]:
    plan = setup.plan
    facts = [("run", f"{plan.name}; polyvoc {__version__}{_commit_text()}, {datetime.now(UTC):%Y-%m-%d}, {_machine()}")]
    for name, dataset in setup.datasets.items():
        counts = f"{len(dataset.images):,} images, {len(dataset.questions):,} queries, {dataset.measure}"
        facts.append((dataset_title(name), "; ".join([counts, *dataset.notes])))
    if "oxford" in setup.datasets:
        facts.append(("use of Oxford", "reported only: nothing is chosen or fitted on it, but its own line in Fig. 3 is shown"))
    sizes = ", ".join(size_text(plan.words(size)) for size in setup.sizes if size != plan.size)
    trained = f"{setup.n_descriptors:,} features of {len(setup.training):,} photographs of {setup.source}"
    most = plan.features
    facts += [
        (
            "vocabularies of the plan",
            f"{plan.most} of {plan.words(plan.size):,} words, {plan.each} each of {sizes}; trained on {trained}",
        ),
        ("training", f"at least {PER_WORD} descriptors per word and a million, 6 rounds of k-means (100K words: 5, 200K: 3)"),
        ("distractors", f"{len(setup.distractors):,} photographs that no vocabulary was trained on"),
        ("features", "; ".join([f"OpenCV SIFT as rootSIFT, at most {most:,} per photograph", *_affine_facts(setup)])),
        ("the paper's reading", str(Reading())),
        ("term 2", setup.origin),
        ("intervals", "95 %, bootstrap over groups of questions; several sets of seeds are averaged first"),
    ]
    if setup.missing:
        facts.append(("not available", f"{', '.join(setup.missing)}: only the paper's figures are shown"))
    return facts


def _affine_facts(setup: Setup) -> list[str]:
    """Return what is known of the Hessian-affine features, if there are any."""
    if setup.affine is None:
        return ["Hessian-affine features, as the paper used, need pyhesaff: pip install 'polyvoc[paper]'"]
    counts = []
    for name, dataset in setup.datasets.items():
        with suppress(MissingResult):
            mean = setup.affine.count_features(dataset.images) / len(dataset.images)
            counts.append(f"{dataset_title(name)} {mean:,.0f}")
    text = "Hessian-affine (pyhesaff) as rootSIFT, all that are found"
    return [f"{text}: {', '.join(counts)} per photograph" if counts else text]


def _commit_text() -> str:
    commit = current_commit()
    return f" ({commit})" if commit else ""


def _machine() -> str:
    return f"{platform.system()}, {os.cpu_count()} cores"
