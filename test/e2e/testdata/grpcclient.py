"""Asks a Penstock gateway with Triton's client of gRPC, unmodified, and compares with its client of HTTP.

Usage: grpcclient.py HOST:PORT MODEL PICTURE, where PICTURE is a file with the bytes that the model takes.
"""

import asyncio
import queue
import sys

import numpy
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as aio
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

url, model, file = sys.argv[1:]


def inputs(module, images):
    tensor = module.InferInput("input:0", [images] + shape[1:], "UINT8")
    picture = numpy.fromfile(file, dtype=numpy.uint8).reshape(shape[1:])
    tensor.set_data_from_numpy(numpy.stack([picture] * images))
    return [tensor]


def check(result, images=1):
    for name in ("boxes", "scores", "labels"):
        values = result.as_numpy(name)
        assert values.shape[0] == images and all((v == want.as_numpy(name)[0]).all() for v in values), (name, values)


web, client = http.InferenceServerClient(url), grpc.InferenceServerClient(url)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
for call in ("get_server_metadata", "get_model_repository_index"):
    assert getattr(client, call)(as_json=True), call
metadata = web.get_model_metadata(model)
shape = metadata["inputs"][0]["shape"]
assert [int(n) for n in client.get_model_metadata(model, as_json=True)["inputs"][0]["shape"]] == shape
config, other = web.get_model_config(model), client.get_model_config(model).config
assert config["max_batch_size"] == other.max_batch_size == 256 and list(other.input[0].dims) == config["input"][0]["dims"] == shape[1:], config

want = web.infer(model, inputs(http, 1))
assert len(want.as_numpy("boxes")[0]) == 1
check(client.infer(model, inputs(grpc, 1), request_id="7", timeout=5_000_000))
check(client.infer(model, inputs(grpc, 3), outputs=[grpc.InferRequestedOutput(n) for n in ("labels", "boxes", "scores")], client_timeout=10), 3)

answers = queue.Queue()
client.start_stream(callback=lambda result, error: answers.put((result, error)))
for i in range(5):
    client.async_stream_infer("nope" if i == 2 else model, inputs(grpc, 1), request_id=str(i))
for i in range(5):
    result, error = answers.get(timeout=30)
    if i == 2:
        assert "no such function" in str(error), error
    else:
        check(result)
        assert result.get_response().id == str(i)
client.stop_stream()

try:
    client.infer("nope", inputs(grpc, 1))
    raise SystemExit("a model that does not exist was answered")
except InferenceServerException as e:
    assert "no such function" in e.message() and "NOT_FOUND" in e.status(), e

for statistics in (web.get_inference_statistics(model), client.get_inference_statistics(model, as_json=True)):
    assert statistics["model_stats"][0]["name"] == model, statistics


async def ask():
    async with aio.InferenceServerClient(url) as other:
        check(await other.infer(model, inputs(aio, 1)))


asyncio.run(ask())
