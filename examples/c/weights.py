"""Writes the parameters of models/zoo/fashion/model.onnx as fashion.c takes them:

    python3 examples/c/weights.py models/zoo/fashion/model.onnx examples/c/fashion.weights

It needs the packages onnx and numpy.
"""

import sys

import numpy
import onnx
from onnx import numpy_helper

model, out = sys.argv[1:]
graph = onnx.load(model).graph
named = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
parameters = []
for node in graph.node:
    if node.op_type == "Conv":  # [to, from, 3, 3] becomes [from, 3, 3, to]
        parameters += [named[node.input[1]].transpose(1, 2, 3, 0), named[node.input[2]]]
    elif node.op_type == "Gemm":  # [classes, channels] becomes [channels, classes]
        parameters += [named[node.input[1]].T, named[node.input[2]]]
numpy.concatenate([p.ravel() for p in parameters]).astype("<f4").tofile(out)
