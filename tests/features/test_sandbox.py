"""A decoding process: what it has of its owner, its limits, and hostile photographs."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyvoc.errors import DecoderError, ImageError
from polyvoc.features.decode import Decoders
from polyvoc.features.sandbox import MAX_FILES, MEMORY

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    with Decoders(1) as decoders:
        yield decoders


def process_folder(decoders: Decoders) -> Path:
    """Return the folder in /proc of the process that decodes next."""
    process = decoders._idle.queue[-1]
    assert process is not None
    return Path(f"/proc/{process.pid}")


# -- what it has of its owner


@linux
def test_a_process_has_no_environment(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("POLYVOC_TOKEN", "secret")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    with Decoders(1) as decoders:
        decoders.thumbnail(photographs / "tower-b.jpg", 64)
        assert (process_folder(decoders) / "environ").read_bytes() == b""


@linux
def test_a_process_has_no_descriptor_but_its_connection(photographs: Path, tmp_path: Path) -> None:
    with open(tmp_path / "open", "wb") as file, Decoders(1) as decoders:
        os.set_inheritable(file.fileno(), True)
        decoders.thumbnail(photographs / "tower-b.jpg", 64)
        links = [os.readlink(link) for link in (process_folder(decoders) / "fd").iterdir()]
    assert sorted(link.partition(":")[0] for link in links) == ["/dev/null"] * 3 + ["socket"]


@linux
def test_a_process_is_alone_in_its_network_where_that_is_permitted(decoders: Decoders, photographs: Path) -> None:
    code = "import ctypes; raise SystemExit(ctypes.CDLL(None).unshare(0x10000000 | 0x40000000) != 0)"
    if subprocess.run([sys.executable, "-c", code], check=False).returncode:
        pytest.skip("this system does not let its users make namespaces")
    decoders.thumbnail(photographs / "tower-b.jpg", 64)
    folder = process_folder(decoders)
    assert os.readlink(folder / "ns/net") != os.readlink("/proc/self/ns/net")
    devices = (folder / "net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] in ([], ["lo"])


@linux
def test_a_process_has_limits(decoders: Decoders, photographs: Path) -> None:
    decoders.thumbnail(photographs / "tower-b.jpg", 64)
    process = int(process_folder(decoders).name)
    limits = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: MAX_FILES}
    for kind, limit in limits.items():
        assert resource.prlimit(process, kind) == (limit, limit)


def test_a_process_gets_no_modules_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photographs: Path
) -> None:
    for name in ("json.py", "socket.py", "PIL.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    with Decoders(1) as decoders:
        assert decoders.thumbnail(photographs / "tower-b.jpg", 64)


def test_a_process_imports_what_decoding_needs_only() -> None:
    code = (
        "import sys\nfrom polyvoc.features import sandbox, pixels\npixels.load_formats()\n"
        "print(sorted({'numpy', 'numba', 'cv2', 'asyncio', 'fsspec', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- hostile photographs


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, bits: int, rows: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zeros(size: int) -> bytes:
    """Return that many zeros, compressed: a few bytes for each million."""
    compressor, block = zlib.compressobj(9), bytes(1 << 20)
    parts = [compressor.compress(block) for _ in range(size >> 20)]
    return b"".join([*parts, compressor.compress(bytes(size & ((1 << 20) - 1))), compressor.flush()])


def many_scans(scans: int) -> bytes:
    """Return a progressive JPEG whose last scan is repeated: each goes through all blocks again."""
    data = encode(Image.new("L", (4000, 3000), 90), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * scans + data[-2:]


@linux
def test_deep_images_are_converted_in_strips(decoders: Decoders) -> None:
    """Fewer than two bytes of memory for each byte of the decoded image, beside the process itself."""
    width, height = 10_000, 6_000
    grey = decoders.grey(png(width, height, 16, zeros((2 * width + 1) * height)), 1000)
    assert grey.pixels.shape == (600, 1000) and not grey.pixels.any()
    status = (process_folder(decoders) / "status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    assert peak < (100 << 20) + 2 * (2 * width * height)


def test_strips_are_scaled_together(decoders: Decoders) -> None:
    """The darkest and the lightest value of all strips count, not those of each."""
    values = np.linspace(-700, 1300, 2500 * 2000, dtype=np.float32).reshape(2500, 2000)  # two strips
    read = decoders.grey(encode(Image.fromarray(values), "TIFF"), 2500).pixels
    assert np.array_equal(read, np.rint((values + 700) * np.float32(255 / 2000)).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("sixteen", [False, True])
def test_a_png_bomb_raises_by_its_header(decoders: Decoders, sixteen: bool) -> None:
    bomb = png(100_000, 100_000, 16 if sixteen else 8, zeros(1 << 20))
    with pytest.raises(ImageError, match=r"too large: 100000 x 100000 pixels, the limit is 300,000,000 in all"):
        decoders.grey(bomb, 1024)


def gif_bomb() -> bytes:
    data = bytearray(encode(Image.new("L", (64, 64)), "GIF"))
    data[6:10] = struct.pack("<HH", 65_535, 65_535)
    return bytes(data)


def tiff_bomb() -> bytes:
    data = bytearray(encode(Image.new("L", (64, 64)), "TIFF"))
    count = struct.unpack_from("<H", data, struct.unpack_from("<I", data, 4)[0])[0]
    for number in range(count):
        at = struct.unpack_from("<I", data, 4)[0] + 2 + 12 * number
        if struct.unpack_from("<H", data, at)[0] in (256, 257):  # width and height
            struct.pack_into("<HHII", data, at, struct.unpack_from("<H", data, at)[0], 4, 1, 1_000_000)
    return bytes(data)


def webp_bomb() -> bytes:
    data = bytearray(encode(Image.new("RGB", (64, 64)), "WEBP", lossless=True))
    at = data.index(b"VP8L") + 9
    struct.pack_into("<I", data, at, 0x0FFFFFFF)  # 16384 x 16384
    return bytes(data)


@pytest.mark.parametrize("bomb", [gif_bomb, tiff_bomb, webp_bomb])
def test_other_bombs_cost_one_line(decoders: Decoders, photographs: Path, bomb: Callable[[], bytes]) -> None:
    with pytest.raises(ImageError, match=r"bomb: (too large|broken image|takes more than)") as caught:
        decoders.grey(bomb(), 1024, name="bomb")
    assert not isinstance(caught.value, DecoderError) and len(str(caught.value).splitlines()) == 1
    assert decoders.thumbnail(photographs / "tower-b.jpg", 64)


def test_a_jpeg_of_many_scans_is_stopped_by_its_time(photographs: Path) -> None:
    """It is not decoded again: it exceeded its own limit, of processor time."""
    bomb = many_scans(20_000)
    assert len(bomb) < 2_000_000
    with Decoders(1, seconds=0.3) as decoders:
        decoders.start()
        before = decoders._idle.queue[-1]
        with pytest.raises(ImageError, match=r"bomb: takes more than 0.3 s to decode; reduce it first") as caught:
            decoders.grey(bomb, 1024, name="bomb")
        assert not isinstance(caught.value, DecoderError)
        assert decoders.thumbnail(photographs / "tower-b.jpg", 64)
        assert decoders._idle.queue[-1] is not before


@linux
def test_a_photograph_that_needs_more_memory_costs_one_line(decoders: Decoders, photographs: Path) -> None:
    decoders.thumbnail(photographs / "tower-b.jpg", 64)
    process = process_folder(decoders)
    used = int((process / "statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(int(process.name), resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
    with pytest.raises(ImageError, match=r"bomb: takes more than \d+ (GB|MB) of memory to decode; reduce it first"):
        decoders.grey(encode(Image.new("1", (20_000, 20_000)), "PNG"), 64, name="bomb", max_pixels=10**9)
    assert process_folder(decoders) == process and decoders.thumbnail(photographs / "tower-b.jpg", 64)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
def test_a_cut_file_is_broken(decoders: Decoders, form: str) -> None:
    data = encode(Image.effect_noise((320, 240), 60), form)
    for keep in (0.1, 0.5, 0.9):
        with pytest.raises(ImageError, match="cut: broken image"):
            decoders.grey(data[: int(len(data) * keep)], 1024, name="cut")
