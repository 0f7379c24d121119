"""The OpenAPI description: complete, and every response of the server conforms to it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.engine import events

from polyvoc.options import Option, SearchOptions
from polyvoc.web.schemas import OPTIONS, SearchParameters, _limits
from servers import PATIENCE, Served, serving

SETTINGS = {"write": True, "originals": True}
EXAMPLES = 8  # per operation, besides those that cover each keyword of its description
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.fixture(scope="module")
def description(served: Served) -> dict[str, Any]:
    return dict(served.get("/openapi.json").json())


@pytest.mark.parametrize(("path", "method"), [("/search", "post"), ("/search/batch", "post"), ("/explain", "get")])
def test_every_option_is_a_parameter_of_the_same_name(description: dict[str, Any], path: str, method: str) -> None:
    parameters = {one["name"]: one for one in description["paths"][path][method]["parameters"]}
    tables = {"likelihood_table", "code_table"}
    options = {field.name for field in fields(SearchOptions)} - tables
    assert options <= set(parameters) and not tables & set(parameters)
    assert all(parameters[name]["description"] and parameters[name]["in"] == "query" for name in options)


def test_all_routes_and_their_errors_are_described(description: dict[str, Any]) -> None:
    assert {(path, method) for path, methods in description["paths"].items() for method in methods} == {
        ("/search", "post"), ("/search/batch", "post"), ("/explain", "get"), ("/queries", "post"), ("/queries/{query}", "get"),
        ("/queries/{query}/picture", "get"), ("/images", "get"), ("/images", "post"), ("/images/{image}", "get"),
        ("/images/{image}", "delete"), ("/images/{image}/thumbnail", "get"), ("/images/{image}/file", "get"),
        ("/folders", "get"), ("/setup", "get"), ("/setup", "post"), ("/groups", "get"), ("/groups", "post"), ("/job", "get"),
        ("/job", "delete"), ("/duplicates", "get"), ("/duplicates", "post"), ("/duplicates/verdict", "post"),
        ("/duplicates/move", "post"), ("/duplicates/undo", "post"),
        ("/setup", "delete"), ("/setup/folders", "get"), ("/statistics", "get"), ("/about", "get"), ("/health", "get"),
        ("/metrics", "get"), ("/session", "post"),
    }  # fmt: skip
    assert description["openapi"].startswith("3.1")
    assert list(description["components"]["schemas"]["Error"]["properties"]) == ["error"]
    for path, methods in description["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
            for name in re.findall(r"{(\w+)}", path):
                assert any(one["name"] == name and one["in"] == "path" for one in operation["parameters"])
            for status in ("401", "403", "404", "413", "421", "422", "503"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Error"}


@pytest.mark.parametrize("option", [option for option in OPTIONS.values() if _limits(option)], ids=lambda option: option.name)
def test_both_limits_of_a_parameter_are_valid_options(option: Option) -> None:
    limits = _limits(option)
    for limit in (limits.get("ge", limits.get("gt", 0) + 1e-6), limits["le"]):
        value = int(limit) if int in (option.kind, *get_args(option.kind)) else limit
        assert getattr(SearchOptions(**{option.name: value}), option.name) == value
        assert getattr(SearchParameters(**{option.name: value}), option.name) == value


def test_none_and_lists_of_numbers(served: Served) -> None:
    for text, value in (("none", None), ("12", 12)):
        assert served.search(query=1, hamming=text, merge="b1").json()["options"]["hamming"] == value
    assert served.search(query=1, line="0.5,-0.25").json()["options"]["line"] == [0.5, -0.25]
    assert served.search(query=1, region="1,2.5,300,200").json()["region"] == [1.0, 2.5, 300.0, 200.0]


def send_requests(
    description: dict[str, Any], served: Served, mode: str, only: str = ".*", **extra: Any
) -> Counter[tuple[str, int]]:
    """Send requests made from the description alone; return how often each operation returned each status."""
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
    counts: Counter[tuple[str, int]] = Counter()
    errors = []
    for event in engine.from_schema(schema.include(path_regex=only)).execute():
        assert not isinstance(event, (events.FatalError, events.NonFatalError)), vars(event)
        if isinstance(event, events.ScenarioFinished):
            statuses = [one.response.status_code for one in event.recorder.interactions.values() if one.response is not None]
            counts += Counter((event.recorder.label, status) for status in statuses)
            errors += errors_of(event.recorder)
    assert not errors, "\n\n".join(errors)
    return counts


def test_valid_and_invalid_requests_get_the_described_responses(description: dict[str, Any], served: Served) -> None:
    counts = send_requests(description, served, "all")
    assert len({label for label, _ in counts}) == 31
    assert {status for _, status in counts} <= {200, 201, 202, 400, 401, 404, 409, 422, 503}
    assert served.get("/health").json()["status"] == "ok"
    for label, status in (("POST /images", 201), ("DELETE /images/{image}", 200), ("GET /images/{image}/thumbnail", 200)):
        assert counts[label, status]


def test_any_combination_of_options_is_searched_or_rejected(description: dict[str, Any], _session_index: Path) -> None:
    known = {"query.query": ["1", "5", "12"], "query.image": ["2", "6"], "query.fuse": "false", "query.smooth": "0"}
    fuzzing = {"coverage": {"enabled": False}, "stateful": {"enabled": False}}
    with serving(_session_index) as served:
        counts = send_requests(
            description, served, "positive", "^/(search|search/batch|explain)$", parameters=known, phases=fuzzing
        )
    labels = {"POST /search", "POST /search/batch", "GET /explain"}
    assert {label for label, _ in counts} == labels and all(counts[label, 200] for label in labels), counts


def errors_of(recorder: Any) -> list[str]:
    """Return which request got a response that does not conform, and why."""
    return [
        f"{recorder.label}: {node.name}: {node.failure_info.failure.title}: {node.failure_info.failure.message[:500]} "
        f"{recorder.interactions[case].request.uri}"
        for case, nodes in recorder.checks.items()
        for node in nodes
        if node.failure_info is not None
    ]
