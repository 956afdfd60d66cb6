#!/usr/bin/env python3
"""Makes a model that is fixed at batch 1 take any batch, and proves that it still
gives the same answers.

    python3 -m venv /tmp/convert
    /tmp/convert/bin/pip install onnx==1.23.2 onnxruntime==1.27.0 numpy pillow
    /tmp/convert/bin/python research/convert/make_dynamic.py face   face_detection_front_128x128_barracuda.onnx models/zoo/face/model.onnx
    /tmp/convert/bin/python research/convert/make_dynamic.py detect nanodet_h.onnx models/zoo/detect/model.onnx

NOTICE says where the originals come from. What is changed in the graph, weights
untouched:

  - the batch dimension of the input and of the outputs gets the name "n", and
    the outputs' other dimensions are written down;
  - a Reshape to [1, a, b] becomes a Reshape to [0, a, b]: 0 copies the dimension;
  - a Concat on the channel axis with a constant block of zeros of batch 1
    (BlazeFace widens its channels so) becomes a Pad, whose zeros are as many as
    the batch has images;
  - shapes noted for the nodes in between are dropped.

The proof, in ONNX Runtime, on the pictures in models/zoo/pictures and on noise: with
batch 1 the outputs are the original's, and each row of a batch of 2, 3, 4 and 8
is the row that the image gives alone. The largest difference is printed;
above the tolerance the script fails and writes nothing.
"""

import argparse
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

PICTURES = pathlib.Path(__file__).resolve().parents[2] / "models/zoo/pictures"

# Another batch size may use another matrix kernel, which sums in another order.
# float32 has an error of 2^-24 per rounding. The magnitude of logits stays below
# 100 here, that of boxes below 200.
ATOL, RTOL = 1e-4, 1e-4

BATCHES = (2, 3, 4, 8)


def face_input(picture):
    """BlazeFace: RGB, HWC, v/127.5-1."""
    return np.asarray(picture.resize((128, 128)), np.float32) / 127.5 - 1


def detect_input(picture):
    """NanoDet: BGR, CHW, ImageNet's mean and deviation."""
    bgr = np.asarray(picture.resize((416, 416)), np.float32)[:, :, ::-1]
    normal = (bgr - [103.53, 116.28, 123.675]) / [57.375, 57.12, 58.395]
    return normal.transpose(2, 0, 1).astype(np.float32)


MODELS = {
    "face": {
        "input": face_input,
        "outputs": {
            "Identity:0": [512, 1],
            "Identity_1:0": [384, 1],
            "Identity_2:0": [512, 16],
            "Identity_3:0": [384, 16],
        },
    },
    "detect": {
        "input": detect_input,
        # Stride 8, 16, 32: the probabilities of 80 classes, then 4 distances in
        # 11 bins each. The original does not have these shapes.
        "outputs": {
            "Identity": [2704, 80],
            "Identity_1": [676, 80],
            "Identity_2": [169, 80],
            "Identity_3": [2704, 44],
            "Identity_4": [676, 44],
            "Identity_5": [169, 44],
        },
    },
}


def make_dynamic(model, outputs):
    """Returns a copy of model with a batch dimension "n"."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    constants = {i.name: i for i in graph.initializer}

    for name in [v.name for v in graph.input if v.name not in constants]:
        value = next(v for v in graph.input if v.name == name)
        first = value.type.tensor_type.shape.dim[0]
        if first.dim_value != 1:
            sys.exit(f"input {name}: batch is {first.dim_value or first.dim_param}, want 1")
        first.ClearField("dim_value")
        first.dim_param = "n"
    for value in graph.output:
        shape = outputs[value.name]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, ["n", *shape]))
    del graph.value_info[:]

    shapes_of_reshapes = {n.input[1] for n in graph.node if n.op_type == "Reshape"}
    for name in shapes_of_reshapes:
        shape = numpy_helper.to_array(constants[name]).copy()
        if shape[0] != 1:
            sys.exit(f"reshape to {shape.tolist()}: first dimension is not the batch")
        shape[0] = 0
        constants[name].CopyFrom(numpy_helper.from_array(shape, name))

    zeros = {
        n.output[0]: numpy_helper.to_array(constants[n.input[0]])
        for n in graph.node
        if n.op_type == "ConstantOfShape"
    }
    for node in graph.node:
        if node.op_type != "Concat" or node.input[1] not in zeros:
            continue
        block = zeros[node.input[1]]
        if len(node.input) != 2 or node.attribute[0].i != 1 or block[0] != 1 or len(block) != 4:
            sys.exit(f"concat {node.output[0]}: not a widening of channels by zeros")
        pads = f"pads_channels_{block[1]}"
        if pads not in constants:
            graph.initializer.append(
                numpy_helper.from_array(np.array([0, 0, 0, 0, 0, block[1], 0, 0], np.int64), pads)
            )
            constants[pads] = graph.initializer[-1]
        node.CopyFrom(helper.make_node("Pad", [node.input[0], pads], list(node.output), name=node.name))
    kept = [n for n in graph.node if n.output[0] not in zeros]
    del graph.node[:]
    graph.node.extend(kept)
    used = {i for n in graph.node for i in n.input}
    kept = [i for i in graph.initializer if i.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)

    onnx.checker.check_model(model, full_check=True)
    return model


def session(model):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(sess, batch):
    return dict(zip((o.name for o in sess.get_outputs()), sess.run(None, {sess.get_inputs()[0].name: batch})))


def worst(what, got, want):
    """The largest absolute difference; fails over the tolerance."""
    largest = 0.0
    for name, w in want.items():
        g = got[name]
        if g.shape != w.shape:
            sys.exit(f"{what}: {name} has shape {g.shape}, want {w.shape}")
        if not np.allclose(g, w, rtol=RTOL, atol=ATOL):
            sys.exit(f"{what}: {name} differs by {np.abs(g - w).max():g}, tolerance {ATOL:g} + {RTOL:g} relative")
        largest = max(largest, float(np.abs(g - w).max()))
    return largest


def prove(original, dynamic, to_input):
    before, after = session(original), session(dynamic)
    inputs = [to_input(Image.open(p).convert("RGB")) for p in sorted(PICTURES.glob("*.jpg"))]
    if not inputs:
        sys.exit(f"no pictures in {PICTURES}")
    random = np.random.default_rng(1)
    while len(inputs) < max(BATCHES):
        inputs.append(random.normal(0, 1, inputs[0].shape).astype(np.float32))

    singles, largest = [], 0.0
    for image in inputs:
        singles.append(run(after, image[None]))
        largest = max(largest, worst("batch 1", singles[-1], run(before, image[None])))
    print(f"batch 1 against the original: {len(inputs)} inputs, largest difference {largest:g}")
    for n in BATCHES:
        # Rotate, so that an image is not always in the same row.
        order = np.roll(np.arange(len(inputs)), n)[:n]
        got = run(after, np.stack([inputs[i] for i in order]))
        largest = max(
            worst(f"batch {n} row {row}", {k: v[row : row + 1] for k, v in got.items()}, singles[i])
            for row, i in enumerate(order)
        )
        print(f"batch {n} against single runs: largest difference {largest:g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("original", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()

    spec = MODELS[args.model]
    original = onnx.load(args.original)
    outputs = spec["outputs"]
    for name, shape in outputs.items():
        print(f"output {name}: [n, {', '.join(map(str, shape))}]")

    dynamic = make_dynamic(original, outputs)
    prove(original, dynamic, spec["input"])
    args.out.write_bytes(dynamic.SerializeToString())
    print(f"wrote {args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
