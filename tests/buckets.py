"""Servers of photographs for tests of stores: S3 and HTTP."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    """Run an S3 server."""
    system = pytest.importorskip("s3fs").S3FileSystem
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        settings = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**settings, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        system.clear_instance_cache()  # of another server
        yield
    system.clear_instance_cache()
    server.stop()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def folder_on_the_web(folder: Path) -> Iterator[str]:
    """Serve a folder as pages of links; yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
