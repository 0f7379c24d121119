"""The command `demo` and what it prints; `demo_photos` does the work."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyvoc.cli.flags import Json, path_flag, switch
from polyvoc.cli.terminal import linked_path, mark, print_note, progress_bar, write, write_json

if TYPE_CHECKING:
    from polyvoc.cli.demo_photos import DemoReport

app = typer.Typer()


@app.command("demo", epilog="Example: polyvoc demo --open")
def demo_command(
    out: Annotated[Path, path_flag("FOLDER", "Folder for photographs, index and page.")] = Path("polyvoc-demo"),
    show: Annotated[bool, switch("--open/--no-open", "Open the page in the browser.")] = False,
    json: Json = False,
) -> None:
    """Try polyvoc on sample photographs; writes a page with the results."""
    from polyvoc.cli.demo_photos import run_demo

    with progress_bar() as progress:
        report = run_demo(out, progress)
    if json:
        write_json(report.as_dict())
    else:
        _show(report)
    if show:
        typer.launch(report.page.absolute().as_uri())


def _show(report: DemoReport) -> None:
    """Print the rankings, their accuracy, and what to try next."""
    for result in report.results:
        write(f"{result.name}: {result.found} of {result.n_right} views in the first {result.n_right}")
        for rank, hit in enumerate(result.hits[:5], start=1):
            write(f"{rank:>4}", mark(result.is_right(hit)), f"{hit.score:8.4f}", linked_path(hit.path))
    write(
        f"\n{report.n_images} photographs, {report.n_features:,} features, {report.seconds:.1f} s. "
        f"Best hit right: {report.first_right} of {len(report.results)}. "
        f"Views in the first ranks: {report.found} of {report.n_right} ({report.found / report.n_right:.0%}). "
        f"Mean average precision: {report.mean_average_precision:.3f}."
    )
    write("Page:", linked_path(str(report.page.absolute())))
    query, index = (shlex.quote(str(path)) for path in (report.results[0].query, report.index))
    print_note(f"Try next: polyvoc serve {index} --open")
    print_note(f"          polyvoc search {query} --index {index} --timings")
    print_note("          polyvoc index ~/Pictures && polyvoc search PHOTO --html results.html")
