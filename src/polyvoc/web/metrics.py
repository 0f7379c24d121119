"""Prometheus counters, access log."""

from __future__ import annotations

import logging
import time
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvoc.search.hits import SearchResult
from polyvoc.web.pool import Pool
from polyvoc.web.service import Service

logger = logging.getLogger("polyvoc.web")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)


class Metrics:
    """Counters of one server."""

    def __init__(self, service: Service, *pools: Pool) -> None:
        """Count from zero."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "polyvoc_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = self._histogram("request", "route")
        self._stages = self._histogram("stage", "stage")
        for pool in (*service.pools, *pools):
            self._watch(pool)
        facts = {
            "images": ("Photographs in the index.", lambda: len(service.current)),
            "commit": ("Commit of the index that is served.", lambda: service.current.commit),
            "uploads": ("Photographs kept to be asked again.", lambda: len(service.uploads)),
            "thumbnail_bytes": ("Bytes of thumbnails kept.", lambda: service.thumbnails.bytes),
        }
        for name, (text, value) in facts.items():
            Gauge(f"polyvoc_{name}", text, registry=self._registry).set_function(value)

    def _histogram(self, what: str, label: str) -> Histogram:
        text = f"Seconds per {what}."
        return Histogram(f"polyvoc_{what}_seconds", text, [label], buckets=BUCKETS, registry=self._registry)

    def _watch(self, pool: Pool) -> None:
        for state in ("running", "waiting"):
            gauge = Gauge(f"polyvoc_{pool.name}_{state}", f"Pieces of work: {pool.name}, {state}.", registry=self._registry)
            gauge.set_function(partial(getattr, pool, state))

    def watched(self, answer: SearchResult) -> SearchResult:
        """Count the stages of a search, and give its answer on."""
        for stage, value in answer.seconds.items():
            self._stages.labels(stage).observe(value)
        return answer

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. The log has its route only: what follows a question mark may be somebody's."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)
        logger.info("%s %s %d %.0f ms", method, route, status, 1000 * seconds)

    def text(self) -> bytes:
        """Give all of it in Prometheus' format."""
        return generate_latest(self._registry)


class Clock:
    """Counts every request, as ASGI middleware; the outermost."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Stand before an application."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "/page" if scope["path"].startswith("/page/") else "none")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
            self._metrics.count_request(method, route, status, time.perf_counter() - started)
