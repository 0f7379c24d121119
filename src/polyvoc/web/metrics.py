"""Prometheus counters and the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvoc.web.caches import BytesCache, UploadCache
from polyvoc.web.connections import REASONS
from polyvoc.web.pool import Pool

logger = logging.getLogger("polyvoc.web")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)  # seconds
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
QUIET = frozenset({"GET", "HEAD", "OPTIONS"})  # methods without a line in the log, unless they fail
UNLOGGED = frozenset({"/session", "/queries"})  # steps on the way to a search, which has a line
REJECTED, SERVER_ERROR = 400, 500  # statuses from these on


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        """Create the counters of requests and stages."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        labels = ["method", "route", "status"]
        self._requests = Counter("polyvoc_requests", "Requests handled.", labels, registry=self._registry)
        self._rejections = Counter(
            "polyvoc_rejected_connections", "Connections closed by a limit.", ["reason"], registry=self._registry
        )
        for reason in REASONS:
            self._rejections.labels(reason)  # shown from the start
        self._cache_bytes, self._cache_limits = (
            Gauge(f"polyvoc_cache_{name}", text, ["cache"], registry=self._registry)
            for name, text in (("bytes", "Bytes in a cache."), ("limit_bytes", "Most bytes in a cache."))
        )
        self._seconds, self._stages = (
            Histogram(f"polyvoc_{name}_seconds", f"Seconds per {name}.", [label], buckets=BUCKETS, registry=self._registry)
            for name, label in (("request", "route"), ("stage", "stage"))
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that calls `value` when it is read."""
        Gauge(f"polyvoc_{name}", text, registry=self._registry).set_function(value)

    def watch_pool(self, pool: Pool) -> None:
        """Add gauges of the running and of the waiting tasks of a pool."""
        for state in ("running", "waiting"):
            self.watch(f"{pool.name}_{state}", f"Tasks of the pool {pool.name}: {state}.", partial(getattr, pool, state))

    def watch_cache(self, name: str, cache: BytesCache | UploadCache) -> None:
        """Add gauges of the bytes in a cache and of their limit."""
        self._cache_bytes.labels(name).set_function(lambda: cache.size)
        self._cache_limits.labels(name).set(cache.limit)

    def count_rejection(self, reason: str) -> None:
        """Count a connection that was closed by a limit."""
        self._rejections.labels(reason).inc()

    def count_stages(self, seconds: Mapping[str, float]) -> None:
        """Count the seconds of each stage of a search."""
        for stage, value in seconds.items():
            self._stages.labels(stage).observe(value)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request by its route only, since query strings may be private; log it unless a page sends it by the dozen."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)
        if is_logged(method, route, status):
            logger.info("%s %s %d %.0f ms", method, route, status, 1000 * seconds)

    def text(self) -> bytes:
        """Return all counters in the Prometheus text format."""
        return generate_latest(self._registry)


def is_logged(method: str, route: str, status: int) -> bool:
    """Return whether a request gets a line of the log: searches, changes, rejected requests; not what views are made of."""
    picture = route.endswith(("/thumbnail", "/picture"))
    return status >= SERVER_ERROR or (method not in QUIET and route not in UNLOGGED) or (status >= REJECTED and not picture)


class MetricsMiddleware:
    """ASGI middleware that counts every request; the outermost."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an application."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note_status)
        finally:
            route = getattr(scope.get("route"), "path", "/page" if scope["path"].startswith("/page/") else "none")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.count_request(method, route, status, time.perf_counter() - started)
