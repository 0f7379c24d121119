"""The description of the interface: it is valid, it is complete, and the server keeps to it whatever it is asked."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.engine import events

from polyvoc.options import SearchOptions
from polyvoc.web.schemas import LIMITS, OPTIONS, SearchParameters
from samples import unflushed
from servers import PATIENCE, Served, serving

__all__ = ["unflushed"]

EXAMPLES = 8  # per operation, besides those that cover each keyword of its description
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.fixture(scope="module")
def served(_session_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = Path(shutil.copytree(_session_index, tmp_path_factory.mktemp("described") / "photos.polyvoc"))
    with serving(path, write=True, originals=True) as served:
        yield served


@pytest.fixture(scope="module")
def description(served: Served) -> dict[str, Any]:
    return dict(served.get("/openapi.json").json())


# --- what is described --------------------------------------------------------------------------------------------------------


def parameters(description: dict[str, Any], path: str, method: str) -> dict[str, Any]:
    return {one["name"]: one for one in description["paths"][path][method]["parameters"]}


@pytest.mark.parametrize(("path", "method"), [("/search", "post"), ("/search/batch", "post"), ("/explain", "get")])
def test_every_option_is_described_by_the_name_of_the_library(description: dict[str, Any], path: str, method: str) -> None:
    found = parameters(description, path, method)
    wanted = {field.name for field in fields(SearchOptions)} - {"evidence"}
    assert wanted <= set(found) and "evidence" not in found
    assert all(found[name]["description"] and found[name]["in"] == "query" for name in wanted)


def test_the_description_has_all_routes(description: dict[str, Any]) -> None:
    found = {(path, method) for path, methods in description["paths"].items() for method in methods}
    assert found == {
        ("/search", "post"), ("/search/batch", "post"), ("/explain", "get"), ("/queries", "post"), ("/queries/{query}", "get"),
        ("/queries/{query}/picture", "get"), ("/images", "get"), ("/images", "post"), ("/images/{image}", "get"),
        ("/images/{image}", "delete"), ("/images/{image}/thumbnail", "get"), ("/images/{image}/file", "get"),
        ("/statistics", "get"), ("/about", "get"), ("/health", "get"), ("/metrics", "get"), ("/session", "post"),
    }  # fmt: skip
    assert description["openapi"].startswith("3.1")
    for path, methods in description["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
            for name in re.findall(r"{(\w+)}", path):
                assert any(one["name"] == name and one["in"] == "path" for one in operation["parameters"])


def test_refusals_are_described(description: dict[str, Any]) -> None:
    error = description["components"]["schemas"]["Error"]
    assert list(error["properties"]) == ["error"]
    for methods in description["paths"].values():
        for operation in methods.values():
            for status in ("401", "403", "404", "413", "421", "422", "503"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Error"}


# --- what is asked ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OPTIONS if name in LIMITS])
def test_limits_are_within_what_the_library_takes(name: str, _session_index: Path) -> None:
    """Whatever passes the limits of the server is an option of the library, at both ends."""
    limits = LIMITS[name]
    for value in (limits.get("ge", limits.get("gt", 0) + 1e-6), limits["le"]):
        given = int(value) if int in (OPTIONS[name], *get_args(OPTIONS[name])) else value
        assert getattr(SearchOptions(**{name: given}), name) == given
        assert getattr(SearchParameters(**{name: given}), name) == given


@pytest.mark.parametrize("value", ["none", "12"])
def test_none_is_typed_as_on_the_command_line(served: Served, value: str) -> None:
    told = served.search(query=1, hamming=value, merge="b1").json()["options"]["hamming"]
    assert told == (None if value == "none" else 12)


def test_pairs_are_typed_with_a_comma(served: Served) -> None:
    assert served.search(query=1, line="0.5,-0.25").json()["options"]["line"] == [0.5, -0.25]
    assert served.search(query=1, region="1,2.5,300,200").json()["region"] == [1.0, 2.5, 300.0, 200.0]


def ask_everything(
    description: dict[str, Any], served: Served, mode: str, only: str = ".*", **extra: Any
) -> Counter[tuple[str, int]]:
    """Let a program that knows the description only ask; gives how often each operation answered with each status."""
    settings = {
        "seed": 1,
        "base-url": str(served.client.base_url),
        "request-timeout": PATIENCE,
        "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none", "mode": mode},
        "phases": {"coverage": {"unexpected-methods": []}, "stateful": {"enabled": False}},
        "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
        **extra,
    }
    schema = schemathesis.openapi.from_dict(description, config=schemathesis.Config.from_dict(settings))
    asked: Counter[tuple[str, int]] = Counter()
    complaints = []
    for event in engine.from_schema(schema.include(path_regex=only)).execute():
        assert not isinstance(event, (events.FatalError, events.NonFatalError)), vars(event)
        if isinstance(event, events.ScenarioFinished):
            statuses = [one.response.status_code for one in event.recorder.interactions.values() if one.response is not None]
            asked += Counter((event.recorder.label, status) for status in statuses)
            complaints += complaints_of(event.recorder)
    assert not complaints, "\n\n".join(complaints)
    return asked


def test_the_server_keeps_to_its_description(description: dict[str, Any], served: Served) -> None:
    """Asked rightly and wrongly: nothing fails, and all answers are as described."""
    asked = ask_everything(description, served, "all")
    assert len({label for label, _ in asked}) == 17
    assert {status for _, status in asked} <= {200, 201, 400, 401, 404, 422}
    assert asked["POST /images", 201] and asked["DELETE /images/{image}", 200] and asked["GET /images/{image}/thumbnail", 200]


def test_any_options_that_are_described_are_taken(description: dict[str, Any], _session_index: Path) -> None:
    """Whatever the rules of a search, it is answered, or refused in one line."""
    known = {"query.query": ["1", "5", "12"], "query.image": ["2", "6"], "query.fuse": "false", "query.smooth": "0"}
    fuzzing = {"coverage": {"enabled": False}, "stateful": {"enabled": False}}
    with serving(_session_index) as served:
        asked = ask_everything(
            description, served, "positive", "^/(search|search/batch|explain)$", parameters=known, phases=fuzzing
        )
    assert {label for label, _ in asked} == {"POST /search", "POST /search/batch", "GET /explain"}
    for label in ("POST /search", "POST /search/batch", "GET /explain"):
        assert asked[label, 200] > 0, asked


def complaints_of(recorder: Any) -> list[str]:
    """Give what was asked, and what is wrong with the answer."""
    return [
        f"{recorder.label}: {node.name}: {node.failure_info.failure.title}: {node.failure_info.failure.message[:500]} "
        f"{recorder.interactions[case].request.uri}"
        for case, nodes in recorder.checks.items()
        for node in nodes
        if node.failure_info is not None
    ]


def test_the_server_is_well_after_all_that(served: Served) -> None:
    assert served.get("/health").json()["status"] == "ok"
