#!/usr/bin/env python3
"""Writes the evaluation's eight models and a detector, with random weights, as ONNX with a card each.

    export_torchvision.py [--jobs N] [--variants N] DIR [NAME...]

    NAME: alexnet mobilenetv2 resnet50 resnet152 resnext50 vgg16 vgg19 gnmt yolov8n; all if left out

With --variants N each model is also written as NAME-2 to NAME-N, with weights from other seeds.

Seven are torchvision's architectures, node for node what its exported networks run once
batch normalisation is folded into the convolutions, and their parameters have
torchvision's names; the eighth is a translator of its own (Translator, below). The detector
is YOLOv8n. They are for measuring what the architectures cost, never for answers: the weights
are drawn from a seed, and the cards say so.

Pictures: input "picture" f16 [n, 3, 224, 224], output "prob" f32 [n, 1000]. Sentences:
input "words" f16 [n, 1, 5, 2], output "translation" f32 [n, 5]. The detector: input "picture"
f16 [n, 3, 640, 640], output "boxes" f32 [n, 84, 8400], with some tens of boxes. n is dynamic.
Inside all is f16, as it would be served.

Random weights must not make the numbers absurd: nothing overflows f16, and other pictures
have other answers. So each filter's weights are drawn evenly, have sum zero, and are
scaled by what goes in, which leaves variance 1 before each activation (scaled weight
standardisation: Brock, De and Smith, "Characterizing signal propagation to close the
performance gap in unnormalized ResNets", ICLR 2021).

The weights are the same bits on every machine: they are drawn as bytes, sums are of
integers, and the rest is one IEEE operation an element.

DIR/NAME/model.onnx and DIR/NAME/card.yaml are written, and DIR/exported.json last, which
says what there is in DIR; what it says is there is not written again. Needs numpy and
onnx.
"""

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import pathlib
import sys
import zlib

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 20261121
# With this seed the translator has a clear answer to the sentence of noise that a node
# checks a GPU with (libml/onnx/check.go). For each of its words, the second best choice is
# at least 0.19 standard deviations behind, a hundred times the rounding error of f16.
# The seeds after the first are those of its variants: at least 0.11 behind.
TRANSLATOR_SEEDS = [4, 22, 24, 18, 38, 37]
OPSET = 17
SIDE = 224

# Mean and standard deviation of ImageNet's pixels, from 0 to 255.
MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]

# The variance of N(0, 1) after a ReLU: (1 - 1/π)/2.
RELU_VARIANCE = 0.5 * (1 - 1 / math.pi)

# The variance of N(0, 1) after x * sigmoid(x), and that of noise from 0 to 1.
SILU_VARIANCE = 0.313
NOISE_VARIANCE = 1 / 12

# The standard deviation of a residual branch; a stage begins with 1.
BRANCH = 0.25

PICTURE_CARD = """\
# {title} with RANDOM weights (seed {seed}), f16: for measuring what the
# architecture costs. Its answers mean nothing.
name: {name}
version: 1
framework: onnx
model: model.onnx
input:
  name: picture
  size: [{side}, {side}, 3] # height, width, channels
  wire: {{type: u8, layout: hwc}} # RGB, {wire_bytes:,} bytes
  tensor: {{type: f16, layout: chw}}
  mean: {mean} # ImageNet's
  std: {std}
outputs:
  - {{name: prob, shape: [1000]}}
batches: {batches}
slo: 25ms
decoder: {{name: topk, k: 5}}
"""

DETECTOR_CARD = """\
# YOLOv8n with RANDOM weights (seed {seed}), f16: for measuring what the
# architecture costs. Its answers mean nothing.
name: {name}
version: 1
framework: onnx
model: model.onnx
input:
  name: picture
  size: [{side}, {side}, 3] # height, width, channels
  wire: {{type: u8, layout: hwc}} # RGB, {wire_bytes:,} bytes
  tensor: {{type: f16, layout: chw}}
  mean: [0, 0, 0]
  std: [255, 255, 255]
outputs:
  - {{name: boxes, shape: [84, 8400]}}
batches: {batches}
slo: 100ms
decoder: {{name: yolo}}
"""

SENTENCE_CARD = """\
# A translator in GNMT's place with RANDOM weights (seed {seed}), f16: for measuring what
# such an architecture costs. Its answers mean nothing.
name: {name}
version: 1
framework: onnx
model: model.onnx
input:
  name: words
  size: [1, {words}, 2] # a sentence of {words} words, two bytes each, the high one first
  wire: {{type: u8, layout: hwc}}
  tensor: {{type: f16, layout: hwc}}
outputs:
  - {{name: translation, shape: [{words}]}} # words' numbers
batches: {batches}
slo: 25ms
decoder: {{name: raw}}
"""


class Graph:
    """Builds an ONNX graph node by node. A string names a value."""

    def __init__(self, name, seed):
        self.name, self.seed = name, seed
        self.nodes, self.initializers, self.parameters = [], [], 0

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [f"{op.lower()}_{len(self.nodes)}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"node_{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, name, value):
        if all(i.name != name for i in self.initializers):
            self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def draw(self, name, shape):
        """Draws odd numbers from -255 to 255 with equal probability. Each name has its own random stream."""
        key = [self.seed, zlib.crc32(f"{self.name}/{name}".encode())]
        drawn = numpy.random.Generator(numpy.random.PCG64(key)).bytes(math.prod(shape))
        return 2 * numpy.frombuffer(drawn, numpy.uint8).astype(numpy.int16).reshape(shape) - 255

    def weight(self, name, shape, deviation, axes=None):
        """Draws f16 weights with this standard deviation. Their sum over axes is zero."""
        drawn = self.draw(name, shape)
        values = drawn.astype(numpy.float32)
        if axes:
            count = math.prod(shape[a] for a in axes)
            values -= (drawn.sum(axis=axes, dtype=numpy.int64, keepdims=True) / count).astype(numpy.float32)
        values *= numpy.float32(deviation / math.sqrt((256**2 - 1) / 3))
        self.parameters += values.size
        return self.constant(name, values.astype(numpy.float16))

    def model(self, inputs, outputs):
        graph = helper.make_graph(self.nodes, self.name, inputs, outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="penstock")
        model.ir_version = 8  # opset 17's
        return model


class Pictures(Graph):
    """Layers of networks for pictures. Convolutions have torchvision's names."""

    def conv(self, name, x, channels, kernel, stride=1, padding=0, groups=1, variance=RELU_VARIANCE, deviation=1.0):
        """A convolution of x with channels [from, to]. variance is that of x, deviation
        the standard deviation of the output."""
        before, after = channels
        fan_in = before // groups * kernel * kernel
        w = self.weight(name + ".weight", (after, before // groups, kernel, kernel),
                        deviation / math.sqrt(fan_in * variance), axes=(1, 2, 3))
        b = self.weight(name + ".bias", (after,), 0.1 * deviation)
        return self.node("Conv", x, w, b, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4,
                         dilations=[1, 1], group=groups)

    def linear(self, name, x, before, after, variance=RELU_VARIANCE, deviation=1.0):
        w = self.weight(name + ".weight", (after, before), deviation / math.sqrt(before * variance), axes=(1,))
        b = self.weight(name + ".bias", (after,), 0.1 * deviation)
        return self.node("Gemm", x, w, b, alpha=1.0, beta=1.0, transB=1)

    def relu(self, x):
        return self.node("Relu", x)

    def relu6(self, x):
        return self.node("Clip", x, self.constant("least", numpy.float16(0)), self.constant("most", numpy.float16(6)))

    def pool(self, x, kernel, stride, padding=0):
        return self.node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)

    def finish(self, logits):
        """Probabilities, in f32."""
        self.node("Softmax", self.node("Cast", logits, to=TensorProto.FLOAT), axis=1)
        self.nodes[-1].output[0] = "prob"
        return self.model(
            [helper.make_tensor_value_info("picture", TensorProto.FLOAT16, ["n", 3, SIDE, SIDE])],
            [helper.make_tensor_value_info("prob", TensorProto.FLOAT, ["n", 1000])])


# LOGITS sets the spread of the classes' logits per architecture, because the variance after
# pooling differs. Pictures of noise then give standard deviations of 1 to 2.
def alexnet(g):
    x = g.relu(g.conv("features.0", "picture", (3, 64), 11, stride=4, padding=2, variance=1))
    x = g.pool(x, 3, 2)
    x = g.relu(g.conv("features.3", x, (64, 192), 5, padding=2))
    x = g.pool(x, 3, 2)
    x = g.relu(g.conv("features.6", x, (192, 384), 3, padding=1))
    x = g.relu(g.conv("features.8", x, (384, 256), 3, padding=1))
    x = g.relu(g.conv("features.10", x, (256, 256), 3, padding=1))
    x = g.pool(x, 3, 2)
    x = g.node("Flatten", x, axis=1)
    x = g.relu(g.linear("classifier.1", x, 256 * 6 * 6, 4096))
    x = g.relu(g.linear("classifier.4", x, 4096, 4096))
    return g.finish(g.linear("classifier.6", x, 4096, 1000, deviation=LOGITS["alexnet"]))


def vgg(g, counts):
    x, before, at, variance = "picture", 3, 0, 1.0
    for count, after in zip(counts, (64, 128, 256, 512, 512)):
        for _ in range(count):
            x = g.relu(g.conv(f"features.{at}", x, (before, after), 3, padding=1, variance=variance))
            before, at, variance = after, at + 2, RELU_VARIANCE
        x, at = g.pool(x, 2, 2), at + 1
    x = g.node("Flatten", x, axis=1)
    x = g.relu(g.linear("classifier.0", x, 512 * 7 * 7, 4096))
    x = g.relu(g.linear("classifier.3", x, 4096, 4096))
    return g.finish(g.linear("classifier.6", x, 4096, 1000, deviation=LOGITS[g.name]))


def resnet(g, counts, groups=1, width_per_group=64):
    x = g.relu(g.conv("conv1", "picture", (3, 64), 7, stride=2, padding=3, variance=1))
    x, before = g.pool(x, 3, 2, 1), 64
    variance = 1.0  # of what goes into a block's ReLU
    for stage, count in enumerate(counts):
        planes = 64 << stage
        width, after = planes * width_per_group // 64 * groups, 4 * planes
        for block in range(count):
            name = f"layer{stage + 1}.{block}."
            stride = 2 if stage > 0 and block == 0 else 1
            into = RELU_VARIANCE * variance
            y = g.relu(g.conv(name + "conv1", x, (before, width), 1, variance=into))
            y = g.relu(g.conv(name + "conv2", y, (width, width), 3, stride=stride, padding=1, groups=groups))
            y = g.conv(name + "conv3", y, (width, after), 1, deviation=BRANCH)
            if block == 0:
                x = g.conv(name + "downsample.0", x, (before, after), 1, stride=stride, variance=into)
                variance = 1.0
            x = g.relu(g.node("Add", y, x))
            variance += BRANCH**2
            before = after
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    return g.finish(g.linear("fc", x, before, 1000, variance=RELU_VARIANCE * variance, deviation=LOGITS[g.name]))


def mobilenetv2(g):
    x = g.relu6(g.conv("features.0.0", "picture", (3, 32), 3, stride=2, padding=1, variance=1))
    before, at, variance, into = 32, 1, 1.0, RELU_VARIANCE
    for expand, after, count, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(count):
            stride, width, layer = (first if i == 0 else 1), before * expand, 0
            name, y = f"features.{at}.conv.", x
            if expand > 1:
                y, layer = g.relu6(g.conv(name + "0.0", y, (before, width), 1, variance=into)), 1
            y = g.relu6(g.conv(f"{name}{layer}.0", y, (width, width), 3, stride=stride, padding=1, groups=width, deviation=1.6))
            residual = stride == 1 and before == after
            y = g.conv(f"{name}{layer + 1}", y, (width, after), 1, deviation=BRANCH if residual else 1.0)
            x = g.node("Add", x, y) if residual else y
            variance = variance + BRANCH**2 if residual else 1.0
            before, at, into = after, at + 1, variance
    x = g.relu6(g.conv(f"features.{at}.0", x, (before, 1280), 1, variance=into))
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    return g.finish(g.linear("classifier.1", x, 1280, 1000, deviation=LOGITS[g.name]))


class Detector(Pictures):
    """YOLOv8n: a backbone, two ways through its pyramid, and heads for strides 8, 16 and 32."""

    SIDE, CLASSES, BINS = 640, 80, 16
    STRIDES = (8, 16, 32)
    # The variance of x grows in the network. With these, logits of pictures of noise have a standard deviation of 1, and
    # some tens of boxes have a score above 0.25.
    BOX, CLASS, RARE = 0.1, 0.08, 6

    def block(self, name, x, before, after, kernel=3, stride=1, variance=SILU_VARIANCE):
        x = self.conv(name, x, (before, after), kernel, stride, kernel // 2, variance=variance)
        return self.node("Mul", x, self.node("Sigmoid", x))

    def c2f(self, name, x, before, after, count=1, residual=True):
        half = after // 2
        x = self.block(name + ".cv1", x, before, after, 1)
        parts = list(self.node("Split", x, outputs=2, axis=1))
        for i in range(count):
            y = self.block(f"{name}.m.{i}.cv1", parts[-1], half, half)
            y = self.block(f"{name}.m.{i}.cv2", y, half, half)
            parts.append(self.node("Add", y, parts[-1]) if residual else y)
        return self.block(name + ".cv2", self.node("Concat", *parts, axis=1), half * (2 + count), after, 1)

    def enlarge(self, x):
        scales = self.constant("scales", numpy.array([1, 1, 2, 2], numpy.float32))
        return self.node("Resize", x, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")

    def reshape(self, x, *shape):
        return self.node("Reshape", x, self.constant("shape_" + "_".join(map(str, shape)), numpy.array(shape, numpy.int64)))

    def head(self, level, kind, x, before, width, after, deviation):
        x = self.block(f"{kind}.{level}.0", x, before, width)
        x = self.block(f"{kind}.{level}.1", x, width, width)
        x = self.conv(f"{kind}.{level}.2", x, (width, after), 1, variance=SILU_VARIANCE, deviation=deviation)
        return self.reshape(x, 0, after, -1)

    def build(self):
        x = self.block("0", "picture", 3, 16, stride=2, variance=NOISE_VARIANCE)
        x = self.c2f("2", self.block("1", x, 16, 32, stride=2), 32, 32)
        p3 = self.c2f("4", self.block("3", x, 32, 64, stride=2), 64, 64, 2)
        p4 = self.c2f("6", self.block("5", p3, 64, 128, stride=2), 128, 128, 2)
        x = self.c2f("8", self.block("7", p4, 128, 256, stride=2), 256, 256)
        pooled = [self.block("9.cv1", x, 256, 128, 1)]
        for _ in range(3):
            pooled.append(self.pool(pooled[-1], 5, 1, 2))
        p5 = self.block("9.cv2", self.node("Concat", *pooled, axis=1), 512, 256, 1)

        join = lambda *x: self.node("Concat", *x, axis=1)
        p4 = self.c2f("12", join(self.enlarge(p5), p4), 384, 128, residual=False)
        p3 = self.c2f("15", join(self.enlarge(p4), p3), 192, 64, residual=False)
        p4 = self.c2f("18", join(self.block("16", p3, 64, 64, stride=2), p4), 192, 128, residual=False)
        p5 = self.c2f("21", join(self.block("19", p4, 128, 128, stride=2), p5), 384, 256, residual=False)

        boxes, classes = [], []
        for level, (p, channels) in enumerate(((p3, 64), (p4, 128), (p5, 256))):
            boxes.append(self.head(level, "box", p, channels, 64, 4 * self.BINS, self.BOX))
            classes.append(self.head(level, "class", p, channels, 80, self.CLASSES, self.CLASS))
        rare = self.constant("rare", numpy.float16(self.RARE))
        scores = self.node("Sigmoid", self.node("Sub", self.node("Concat", *classes, axis=2), rare))

        cells = [(s, c + 0.5, r + 0.5) for s in self.STRIDES for r in range(self.SIDE // s) for c in range(self.SIDE // s)]
        middles = self.constant("middles", numpy.array([[c for _, c, _ in cells], [r for *_, r in cells]], numpy.float16)[None])
        strides = self.constant("strides", numpy.array([s for s, *_ in cells], numpy.float16)[None, None])
        x = self.node("Transpose", self.reshape(self.node("Concat", *boxes, axis=2), 0, 4, self.BINS, len(cells)), perm=[0, 2, 1, 3])
        bins = self.constant("bins", numpy.arange(self.BINS, dtype=numpy.float16).reshape(1, self.BINS, 1, 1))
        x = self.reshape(self.node("Conv", self.node("Softmax", x, axis=1), bins, kernel_shape=[1, 1]), 0, 4, len(cells))
        before, after = self.node("Split", x, outputs=2, axis=1)
        first, last = self.node("Sub", middles, before), self.node("Add", middles, after)
        middle = self.node("Mul", self.node("Add", first, last), self.constant("half", numpy.float16(0.5)))
        box = self.node("Mul", join(middle, self.node("Sub", last, first)), strides)
        self.node("Cast", join(box, scores), to=TensorProto.FLOAT)
        self.nodes[-1].output[0] = "boxes"
        return self.model(
            [helper.make_tensor_value_info("picture", TensorProto.FLOAT16, ["n", 3, self.SIDE, self.SIDE])],
            [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["n", 4 + self.CLASSES, len(cells)])])


class Translator(Graph):
    """A small recurrent translator with GNMT's architecture (Wu et al., arXiv 1609.08144).

    The encoder reads a sentence in both directions and then once more. The decoder
    attends to it and returns as many words; each word is the input of the next step. A
    sentence has five words, as in the paper, so the graph needs no loops. A cell consists
    of matrix products and elementwise functions, because a CUDA graph cannot capture
    cuDNN's LSTM."""

    WORDS = 5
    VOCABULARY = 1 << 14
    UNITS = 1024

    def matrix(self, name, before, after):
        return self.weight(name, (before, after), 2 / math.sqrt(before))

    def add(self, *values):
        x = values[0]
        for y in values[1:]:
            x = self.node("Add", x, y)
        return x

    def cell(self, gates, c):
        """The output and the new state of an LSTM cell. The first cell has no state c."""
        i, f, o, g = self.node("Split", gates, outputs=4, axis=2)
        new = self.node("Mul", self.node("Sigmoid", i), self.node("Tanh", g))
        if c:
            new = self.add(self.node("Mul", self.node("Sigmoid", f), c), new)
        return self.node("Mul", self.node("Sigmoid", o), self.node("Tanh", new)), new

    def layer(self, name, x, before, backwards=False):
        """An LSTM over x [n, words, before]: all outputs [n, words, units], and the last state."""
        units = self.UNITS
        into = self.node("MatMul", x, self.matrix(name + ".input", before, 4 * units))
        into = self.add(into, self.weight(name + ".bias", (4 * units,), 0.1))
        steps = self.node("Split", into, outputs=self.WORDS, axis=1)
        recurrent = self.matrix(name + ".recurrent", units, 4 * units)
        h = c = None
        said = []
        for gates in reversed(steps) if backwards else steps:
            if h:
                gates = self.add(gates, self.node("MatMul", h, recurrent))
            h, c = self.cell(gates, c)
            said.append(h)
        return self.node("Concat", *(reversed(said) if backwards else said), axis=1), (h, c)

    def build(self):
        units = self.UNITS
        # A word's number is the upper 14 of its 16 bits. The f32 arithmetic is exact for all bytes.
        pair = self.node("Mul", self.node("Cast", "words", to=TensorProto.FLOAT),
                         self.constant("places", numpy.array([2**6, 2**-2], numpy.float32)))
        number = self.node("ReduceSum", pair, self.constant("last", numpy.array([3], numpy.int64)), keepdims=0)
        number = self.node("Reshape", number, self.constant("sentence", numpy.array([0, self.WORDS], numpy.int64)))
        embedding = self.weight("embedding", (self.VOCABULARY, units), 1)
        x = self.node("Gather", embedding, self.node("Cast", number, to=TensorProto.INT64), axis=0)

        forward, _ = self.layer("encoder.0.forward", x, units)
        backward, _ = self.layer("encoder.0.backward", x, units, backwards=True)
        encoded, (h1, c1) = self.layer("encoder.1", self.node("Concat", forward, backward, axis=2), 2 * units)
        keys = self.node("Transpose", encoded, perm=[0, 2, 1])

        # The decoder starts with the encoder's last state.
        h0, c0 = h1, c1
        names = ("decoder.0.word", "decoder.0.context", "decoder.0.recurrent", "decoder.1.input", "decoder.1.recurrent")
        word, context, recurrent0, input1, recurrent1 = (self.matrix(n, units, 4 * units) for n in names)
        bias0, bias1 = (self.weight(f"decoder.{i}.bias", (4 * units,), 0.1) for i in (0, 1))
        query = self.matrix("attention.query", units, units)
        projection = self.matrix("projection", units, self.VOCABULARY)
        one = self.constant("one", numpy.array([1], numpy.int64))
        flat = self.constant("flat", numpy.array([0, 1, units], numpy.int64))
        said, fed = [], None
        for step in range(self.WORDS):
            weights = self.node("Softmax", self.node("MatMul", self.node("MatMul", h1, query), keys), axis=2)
            attended = self.node("MatMul", weights, encoded)
            gates = self.add(self.node("MatMul", attended, context), self.node("MatMul", h0, recurrent0), bias0)
            if fed:
                gates = self.add(gates, self.node("MatMul", fed, word))
            h0, c0 = self.cell(gates, c0)
            gates = self.add(self.node("MatMul", h0, input1), self.node("MatMul", h1, recurrent1), bias1)
            h1, c1 = self.cell(gates, c1)
            # ONNX Runtime has no ArgMax on CUDA from opset 12 on, but TopK.
            _, best = self.node("TopK", self.node("MatMul", h1, projection), one, outputs=2, axis=2)
            said.append(best)
            if step + 1 < self.WORDS:
                fed = self.node("Reshape", self.node("Gather", embedding, best, axis=0), flat)
        said = self.node("Reshape", self.node("Concat", *said, axis=1), self.constant("sentence", None))
        self.node("Cast", said, to=TensorProto.FLOAT)
        self.nodes[-1].output[0] = "translation"
        return self.model(
            [helper.make_tensor_value_info("words", TensorProto.FLOAT16, ["n", 1, self.WORDS, 2])],
            [helper.make_tensor_value_info("translation", TensorProto.FLOAT, ["n", self.WORDS])])


LOGITS = {"alexnet": 0.8, "mobilenetv2": 1.5, "resnet50": 6.0, "resnet152": 6.0, "resnext50": 6.0, "vgg16": 0.6, "vgg19": 0.6}

MODELS = {
    "alexnet": ("AlexNet of torchvision", alexnet),
    "mobilenetv2": ("MobileNetV2 of torchvision", mobilenetv2),
    "resnet50": ("ResNet-50 of torchvision", lambda g: resnet(g, (3, 4, 6, 3))),
    "resnet152": ("ResNet-152 of torchvision", lambda g: resnet(g, (3, 8, 36, 3))),
    "resnext50": ("ResNeXt-50 (32x4d) of torchvision", lambda g: resnet(g, (3, 4, 6, 3), groups=32, width_per_group=4)),
    "vgg16": ("VGG-16 of torchvision", lambda g: vgg(g, (2, 2, 3, 3, 3))),
    "vgg19": ("VGG-19 of torchvision", lambda g: vgg(g, (2, 2, 4, 4, 4))),
    "gnmt": ("a translator in GNMT's place", None),
    "yolov8n": ("YOLOv8n", None),
}

# Light models profit from larger batches. MobileNetV2 is light too, but cuDNN compiles its
# depthwise convolutions for each batch size, which takes three seconds per size.
LIGHT = ("alexnet", "gnmt")


def variant(name):
    """Splits NAME-3 into NAME and 3. A NAME alone is variant 1."""
    name, _, number = name.partition("-")
    return name, int(number or 1)


def export(folder, name):
    """Writes model and card; returns their entry in exported.json."""
    model_name, number = variant(name)
    title, build = MODELS[model_name]
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    batches = [1, 2, 4, 8, 16, 32] + ([64] if model_name in LIGHT else [])
    if model_name == "gnmt":
        graph = Translator(model_name, TRANSLATOR_SEEDS[number - 1])
        model = graph.build()
        card = SENTENCE_CARD.format(seed=graph.seed, name=name, words=Translator.WORDS, batches=batches)
    elif model_name == "yolov8n":
        graph = Detector(model_name, SEED + number - 1)
        model = graph.build()
        card = DETECTOR_CARD.format(seed=graph.seed, name=name, side=graph.SIDE, wire_bytes=graph.SIDE**2 * 3, batches=batches)
    else:
        graph = Pictures(model_name, SEED + number - 1)
        model = build(graph)
        card = PICTURE_CARD.format(title=title, seed=graph.seed, name=name, side=SIDE, wire_bytes=SIDE * SIDE * 3,
                                   mean=MEAN, std=STD, batches=batches)
    data = model.SerializeToString(deterministic=True)
    (folder / "model.onnx.new").write_bytes(data)
    os.replace(folder / "model.onnx.new", folder / "model.onnx")
    (folder / "card.yaml").write_text(card)
    return {"seed": graph.seed, "parameters": graph.parameters, "nodes": len(graph.nodes), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=pathlib.Path)
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--jobs", type=int, default=min(len(MODELS), os.cpu_count() or 1), help="models at once")
    parser.add_argument("--variants", type=int, default=1, choices=range(1, len(TRANSLATOR_SEEDS) + 1),
                        help="how many of each model, with different weights")
    args = parser.parse_intermixed_args()
    names = list(dict.fromkeys(args.names)) or list(MODELS)
    if unknown := [n for n in names if n not in MODELS]:
        sys.exit(f"no model {', '.join(unknown)}; there are: {', '.join(MODELS)}")
    names += [f"{n}-{number}" for number in range(2, args.variants + 1) for n in names]
    args.folder.mkdir(parents=True, exist_ok=True)
    done = args.folder / "exported.json"
    told = {"weights": "random", "script": hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest(),
            "onnx": onnx.__version__, "numpy": numpy.__version__, "models": {}}
    if done.exists():  # keep what this version of the script has written
        before = json.loads(done.read_text())
        if before.get("script") == told["script"]:
            told["models"] = before["models"]
    names = [n for n in names if n not in told["models"]]
    if not names:
        return
    done.unlink(missing_ok=True)
    # Start with the largest: they take longest.
    order = sorted(names, key=lambda n: variant(n)[0] not in ("vgg19", "vgg16", "gnmt", "alexnet"))
    with multiprocessing.Pool(min(args.jobs, len(order))) as pool:
        results = [(n, pool.apply_async(export, (args.folder, n))) for n in order]
        for name, result in results:
            told["models"][name] = result.get()
            print(name, told["models"][name], flush=True)
    done.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
