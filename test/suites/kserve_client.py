"""KServe's client gets the same answers by REST and gRPC, as numbers and as binary data, as a plain request does.

    kserve_client.py HOST:PORT
"""

import asyncio
import json
import sys
import urllib.request

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

GATEWAY, MODEL = sys.argv[1], "fashion"
URL = "http://" + GATEWAY
PICTURES = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)


def request(binary):
    tensor = InferInput("image", list(PICTURES.shape), "UINT8")
    tensor.set_data_from_numpy(PICTURES, binary_data=binary)
    return InferRequest(MODEL, [tensor], request_id="7")


def plain():
    """What the outputs must be, by name."""
    body = {"inputs": [{"name": "image", "shape": PICTURES.shape, "datatype": "UINT8", "data": PICTURES.ravel().tolist()}]}
    with urllib.request.urlopen(f"{URL}/v2/models/{MODEL}/infer", json.dumps(body).encode()) as answer:
        return {o["name"]: np.reshape(o["data"], o["shape"]).tolist() for o in json.load(answer)["outputs"]}


def read(output):
    """An output's values, as JSON would have them: FP32 with 32 bits, BYTES as text."""
    values = output.as_numpy()
    return (values.astype(str) if values.dtype == object else values).tolist()


async def main():
    want = plain()
    want["scores"] = np.float32(want["scores"]).tolist()
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest, InferenceGRPCClient(GATEWAY) as grpc:
        assert await rest.is_server_live(URL) and await rest.is_server_ready(URL) and await rest.is_model_ready(URL, MODEL)
        assert await grpc.is_server_live() and await grpc.is_server_ready() and await grpc.is_model_ready(MODEL)
        for binary in False, True:
            for answer in await rest.infer(URL, request(binary), model_name=MODEL), await grpc.infer(request(binary)):
                assert answer.id == "7" and answer.model_name == MODEL, answer
                assert {o.name: read(o) for o in answer.outputs} == want, (answer.outputs, want)


asyncio.run(main())
