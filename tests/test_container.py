"""The program that the container image starts, with the environment of the Dockerfile and its health check."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

from containers import health_command, started
from servers import PATIENCE


def test_the_program_of_the_image_indexes_and_serves(photographs: Path, tmp_path: Path) -> None:
    """The steps of a container, run here: no image can be built where the tests run."""
    folder = Path(shutil.copytree(photographs, tmp_path / "photographs"))
    for path in folder.iterdir():
        if not path.name.startswith("wall"):
            path.unlink()
    for path in (*folder.iterdir(), folder):
        path.chmod(path.stat().st_mode & ~0o222)

    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}

    with started(tmp_path, folder, "--port", "0") as popen:
        assert popen.stdout is not None
        lines = []
        while "Serving" not in (line := popen.stdout.readline()):
            assert line, lines  # the end, without having served
            lines.append(line)
        (address,) = re.findall(r"http://[\d.:]+", line)
        done = subprocess.run(health_command(address), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        popen.send_signal(signal.SIGTERM)
        popen.stdout.read()
        popen.wait(PATIENCE)
    assert subprocess.run(health_command(address), capture_output=True, check=False).returncode != 0
    with started(tmp_path, folder, "info", "--json") as popen:
        assert json.loads(popen.communicate(timeout=PATIENCE)[0])["images"] == 3
    before = state()
    with started(tmp_path, tmp_path / "not-mounted") as popen:
        assert f"there is no folder {tmp_path / 'not-mounted'}" in popen.communicate(timeout=PATIENCE)[0]
        assert popen.returncode == 1
    assert state() == before
