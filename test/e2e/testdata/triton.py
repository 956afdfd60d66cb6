"""Asks a Penstock gateway with Triton's client library, unmodified.

Usage: triton.py HOST:PORT MODEL PICTURE, where PICTURE is a file with the bytes that the model
takes. Prints one line of JSON per way to ask, all of which must be equal.
"""

import asyncio
import json
import sys

import numpy
import tritonclient.http as http
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

url, model, file = sys.argv[1:]


def inputs(module, shape, binary):
    tensor = module.InferInput("input:0", shape, "UINT8")
    picture = numpy.fromfile(file, dtype=numpy.uint8).reshape(shape[-3:])
    tensor.set_data_from_numpy(numpy.broadcast_to(picture, shape).copy(), binary_data=binary)
    return [tensor]


def show(result):
    boxes = result.as_numpy("boxes")
    labels = [label.decode() if isinstance(label, bytes) else label for label in result.as_numpy("labels")[0]]
    print(json.dumps({"boxes": [[round(float(v), 4) for v in box] for box in boxes[0]], "labels": labels}))
    return boxes


client = http.InferenceServerClient(url)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
shape = client.get_model_metadata(model)["inputs"][0]["shape"]
assert shape[0] == -1, shape
shape[0] = 1

for binary in (True, False):
    show(client.infer(model, inputs(http, shape, binary)))
    outputs = [http.InferRequestedOutput(name, binary_data=binary) for name in ("boxes", "labels")]
    show(client.infer(model, inputs(http, shape, binary), outputs=outputs, request_id="7", timeout=5_000_000))

batch = client.infer(model, inputs(http, [3] + shape[1:], True)).as_numpy("boxes")
assert batch.shape[0] == 3 and (batch == batch[0]).all(), batch

try:
    client.infer("nope", inputs(http, shape, True))
    raise SystemExit("a model that does not exist was answered")
except InferenceServerException as e:
    assert "no such function" in e.message(), e.message()


async def ask():
    async with aio.InferenceServerClient(url) as other:
        show(await other.infer(model, inputs(aio, shape, True)))


asyncio.run(ask())
