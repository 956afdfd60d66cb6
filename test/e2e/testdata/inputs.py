"""Asks a Penstock gateway for y = x * k * 16000 with Triton's client library, unmodified.

Usage: inputs.py HOST:PORT MODEL. The inputs x and k are named, in any order, as JSON and as binary data.
"""

import itertools
import sys

import numpy
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

url, model = sys.argv[1:]
client = http.InferenceServerClient(url)
described = client.get_model_metadata(model)["inputs"]
assert described == [
    {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
    {"name": "k", "datatype": "INT64", "shape": [-1, 1]},
], described


def tensor(name, datatype, values, binary):
    t = http.InferInput(name, list(values.shape), datatype)
    t.set_data_from_numpy(values, binary_data=binary)
    return t


values = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
factors = numpy.arange(4, dtype=numpy.int64).reshape(4, 1) - 2
for x_binary, k_binary, turned, count in itertools.product((True, False), (True, False), (True, False), (1, 4)):
    x, k = values[:count], factors[:count]
    inputs = [tensor("x", "FP32", x, x_binary), tensor("k", "INT64", k, k_binary)]
    y = client.infer(model, inputs[::-1] if turned else inputs).as_numpy("y")
    assert numpy.array_equal(y, x * k * 16000), (x_binary, k_binary, turned, y)

x, k = tensor("x", "FP32", values, True), tensor("k", "INT64", factors, True)
for inputs, want in (
    ([x], 'input "k" is missing, want "x" (FP32 [3]), "k" (INT64 [1])'),
    ([x, k, x], 'input "x" is there twice'),
    ([x, k, tensor("sr", "FP32", numpy.float32([1]), True)], 'no input "sr"'),
    ([x, tensor("k", "INT32", factors.astype(numpy.int32), True)], 'datatype is "INT32", want "INT64"'),
    ([x, tensor("k", "INT64", factors.reshape(2, 2), True)], "shape is [2 2], want [1]"),
    ([x, tensor("k", "INT64", factors[:3], True)], 'input "k" is of 3 images, "x" of 4'),
):
    try:
        client.infer(model, inputs)
        raise SystemExit("answered, want " + want)
    except InferenceServerException as e:
        assert want in e.message(), (e.message(), want)
