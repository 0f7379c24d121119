"""Every benchmark whose result a page cites: how it is called, which results it writes, and what these depend on.

Names in braces are folders and files: those of options of `benchmarks/all` (`FOLDERS`), and those that are made (`MADE`). It needs no polyvoc.
"""

from __future__ import annotations

from dataclasses import dataclass

from digests import Needs

FOLDERS = {  # option: what it is
    "data": "folder with the folders holidays150, ukbench500 and photos1200",
    "training": "folder of photographs that vocabularies are trained on",
    "embedding": "ONNX file of a global embedding, as examples/efficientnet_lite.py makes one",
    "before": "folder src of the version of commit c2e8464, which decodes in its own process",
    "xfeat": "ONNX file of XFeat, as examples/xfeat.py makes one",
}
SETS = {"holidays": "holidays150", "ukbench": "ukbench500", "photos": "photos1200"}  # folders of `data`
MADE = {"synthetic": "benchmarks/synthetic.py {photos} {synthetic} --images 10000 --cache {cache}"}  # unless they exist
SPECIAL = (
    "vocabularies/xfeat",
    "hit_probability_orb.json",
    "hit_probability_xfeat.json",
)  # data that counts only for benchmarks that name it

COMMANDS = ("src/polyvoc/cli/index.py", "src/polyvoc/cli/search.py")
SERVER = ("src/polyvoc/cli/search.py", "src/polyvoc/web/*.py")
RESEARCH = ("agent", "experiments")
UNUSED = (*RESEARCH, "cli/main.py", "duplicates")  # of a command line that runs one command
SERVED = ("agent", "cli/main.py", "experiments/baselines", "experiments/paper", "experiments/report")


@dataclass(frozen=True)
class Benchmark:
    """A script with arguments, and what its results depend on; see `digests.Needs`."""

    name: str
    arguments: str
    quick: str = ""  # arguments of a trial of a few minutes; "": there is none
    script: str = ""  # path in the repository; "": benchmarks/NAME.py
    results: tuple[str, ...] = ()  # (): NAME
    packages: tuple[str, ...] = ()  # modules beyond those of the package
    pieces: bool = False  # a run adds to the result: how long it was is not part of its state
    also: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.script or f"benchmarks/{self.name}.py"

    @property
    def files(self) -> tuple[str, ...]:
        return self.results or (self.name,)

    @property
    def needs(self) -> Needs:
        made = tuple(command.split()[0] for name, command in MADE.items() if f"{{{name}}}" in self.arguments)
        return Needs(self.path, (*self.also, *made), self.data, self.without, self.inputs)


BENCHMARKS = (  # in the order in which they run: inputs of others come before them
    Benchmark(
        "search",
        "{photos} {queries} --work {work}",
        "{holidays} {queries} --work {work} --repeats 1",
        also=COMMANDS,
        without=UNUSED,
    ),
    Benchmark(
        "peers",
        "{data} {training} --embedding {embedding} --cache {cache}",
        "{data} {training} --embedding {embedding} --cache {cache} --questions 5",
        packages=("asmk", "imagehash", "pycolmap", "onnxruntime"),
    ),
    Benchmark("quantise", "{photos}", packages=("faiss",)),
    Benchmark("indexing", "{photos} --work {work}", "{photos} --work {work} --every 100 --rounds 1"),
    Benchmark("moved", "{photos} --work {work}", "{ukbench} --work {work}", also=COMMANDS[:1], without=UNUSED),
    Benchmark(
        "decoding",
        "{photos} {queries} --before {before} --work {work}",
        "{photos} {queries} --before {before} --work {work} --images 10 --repeats 1",
        also=COMMANDS,
        without=UNUSED,
    ),
    Benchmark("extraction", "--holidays {holidays} --ukbench {ukbench}"),
    Benchmark("accuracy", "--holidays {holidays} --ukbench {ukbench} --cache {cache}"),
    Benchmark(
        "components",
        "--holidays {holidays} --ukbench {ukbench} --cache {cache} --embedding {embedding}",
        "--holidays {holidays} --ukbench {ukbench} --cache {cache} --embedding {embedding} --questions 10",
        packages=("onnxruntime",),
    ),
    Benchmark(
        "pareto",
        "{data} --train {training} --cache {cache}",
        packages=("matplotlib",),
    ),
    Benchmark("calibration", "--holidays {holidays} --ukbench {ukbench} --others {photos} --work {work} --cache {cache}"),
    Benchmark("codes", "{data} --cache {cache}", "{data} --cache {cache} --step 20"),
    Benchmark("limits", "{data} --cache {cache}"),
    Benchmark("evidence", "{training} {data} --cache {cache}", "{training} {data} --cache {cache} --photographs 32 --step 40"),
    Benchmark("words", "{training} {data} --cache {cache}"),
    Benchmark(
        "confidence",
        "{data} --distractors {training} --photographs 4622 --cache {cache}",
        "{data} --distractors {training} --photographs 2222 --cache {cache} --questions 10",
        packages=("matplotlib",),
        without=("data/hit_probability.json",),
    ),
    Benchmark("expansion", "{data} --cache {cache}", "{data} --cache {cache} --step 40", inputs=("confidence",)),
    Benchmark(
        "several",
        "{data} --work {work} --kinds sift {xfeat} --distractors --altered",
        "{data} --work {work} --quick",
        data=("vocabularies/xfeat", "hit_probability_orb.json", "hit_probability_xfeat.json"),
    ),
    Benchmark(
        "learned",
        "{data} --xfeat {xfeat} --work {work}",
        "{data} --xfeat {xfeat} --work {work} --quick",
        packages=("onnxruntime",),
        data=("vocabularies/xfeat",),
    ),
    Benchmark(
        "front",
        "{data} --train {training} --xfeat {xfeat} --embedding {embedding} --work {work}",
        packages=("onnxruntime",),
        data=("vocabularies/xfeat", "hit_probability_orb.json", "hit_probability_xfeat.json"),
    ),
    Benchmark("features", "--holidays {holidays} --ukbench {ukbench} --train {training} --work {work}"),
    Benchmark(
        "duplicates",
        "{data} --work {work}",
        "{data} --work {work} --originals 20 --others 50",
        packages=("imagehash", "matplotlib"),
    ),
    Benchmark(
        "duplicates_times",
        "{data} --work {work} --times 200 1200",
        "{data} --work {work} --times 50",
        script="benchmarks/duplicates.py",
        packages=("imagehash", "matplotlib"),
    ),
    Benchmark(
        "pairs",
        "{data} {training} --large {synthetic} --cache {cache} --figure docs/pairs.svg",
        "{data} {training} --cache {cache} --most 20",
        packages=("pycolmap", "matplotlib"),
    ),
    Benchmark(
        "serve",
        "{photos} --work {work} --cache {cache}",
        "{photos} --work {work} --cache {cache} --images 500 --queries 4 --pairs 4 --uploads 8 --searches 20 --mixed 400",
        also=SERVER,
        without=SERVED,
    ),
    Benchmark(
        "ray",
        "{synthetic} {photos}",
        "{synthetic} {photos} --images 10 --searches 5",
        packages=("ray",),
        without=RESEARCH[:1],
    ),
    Benchmark(
        "endtoend",
        "{photos} {queries} --work {work} --cache {cache}",
        "{photos} {queries} --work {work} --cache {cache} --images 2000 --repeats 1",
    ),
    Benchmark(
        "engine",
        "{training} --work {work}",
        "{ukbench} --work {work} --images 8192 --queries 1 --repeats 1",
    ),
    Benchmark(
        "million",
        "{training} {photos} --work {work}",
        "{ukbench} {holidays} --work {work} --images 8192 --n-queries 2 --repeats 1",
    ),
    Benchmark(
        "million-words",
        "{training} {photos} --work {work} --images 65536 --assignments 1 2 3 5 10 20 --name million-words",
        script="benchmarks/million.py",
    ),
    Benchmark(
        "million-large",
        "{training} {photos} --work {work} --images 1000000 --least-features 2900 --name million-large",
        script="benchmarks/million.py",
    ),
    Benchmark(
        "million-avx2",
        "{training} {photos} --work {work} --images 65536 1000000 --avx2 --name million-avx2",
        script="benchmarks/million.py",
    ),
    Benchmark(
        "formats",
        "{ukbench} --work {work}",
        "{ukbench} --work {work} --groups 5",
        packages=("pillow_heif", "pillow_jxl"),
    ),
    Benchmark(
        "living",
        "{training} {photos} --work {work} --images 1000000",
        "{ukbench} {holidays} --work {work} --images 8192",
    ),
    Benchmark("scale", "", "--machine-hour 5", inputs=("endtoend", "search", "serve", "ray")),
    Benchmark(
        "slowclients",
        "{photos} --work {work}",
        packages=("httpx",),
        also=SERVER,
        without=SERVED,
    ),
    Benchmark(
        "soak",
        "{photos} --work {work} --minutes 60",
        "{photos} --work {work} --minutes 1 --clients 8 --try",
        packages=("httpx", "matplotlib"),
        pieces=True,
        also=SERVER,
        without=SERVED,
    ),
    Benchmark(
        "kills",
        "--kills 1000 --work {work}",
        "--kills 13 --work {work}",
        pieces=True,
        without=RESEARCH,
    ),
    Benchmark(
        "powerloss",
        "--work {work}",
        "--work {work} --random 0 --every 1000",
        pieces=True,
        without=RESEARCH,
    ),
    Benchmark(
        "corruptions",
        "{holidays} {queries} --training {training} --work {work}",
        "{ukbench} {queries} --training {training} --work {work} --count 10 --images 0",
        pieces=True,
    ),
    Benchmark(
        "fuzz",
        "--seconds 3600 --result",
        "--seconds 60",
        script="tests/fuzz/__main__.py",
        packages=("atheris",),
        pieces=True,
        also=("tests/fuzz/targets/*.py",),
        without=("experiments/paper", "experiments/report"),
    ),
)


def benchmark_of(result: str) -> Benchmark | None:
    """Return the benchmark that writes a result."""
    return next((one for one in BENCHMARKS if result in one.files), None)
