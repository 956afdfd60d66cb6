"""Uses the extensions of the protocol with Triton's clients of HTTP and gRPC, unmodified, against a Penstock gateway.

Usage: extensions.py HOST:PORT PHOTO. The node has the functions face and fashion, and may load detect.
"""

import json
import os
import sys
import urllib.request

import grpc as transport
import numpy
import tritonclient.grpc as grpc
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

url, file = sys.argv[1:]
photo = open(file, "rb").read()
clients = {http: http.InferenceServerClient(url, network_timeout=60), grpc: grpc.InferenceServerClient(url)}


def refused(call, *arguments, want):
    try:
        call(*arguments)
    except InferenceServerException as e:
        assert want in e.message(), (e.message(), want)
    else:
        raise SystemExit("answered, want " + want)


def pictures(module):
    """A picture's file twice has the boxes of a plain request with the file, in its pixels."""
    request = urllib.request.Request(f"http://{url}/v2/models/face/infer", photo, {"Content-Type": "image/jpeg"})
    with urllib.request.urlopen(request) as answer:
        want = {o["name"]: o["data"] for o in json.load(answer)["outputs"]}
    assert len(want["boxes"]) == 4 and min(want["boxes"]) > 1, want
    for shape in [2], [2, 1]:
        tensor = module.InferInput("input:0", shape, "BYTES")
        tensor.set_data_from_numpy(numpy.array([photo, photo], dtype=object).reshape(shape))
        boxes = clients[module].infer("face", [tensor]).as_numpy("boxes")
        assert boxes.shape == (2, 1, 4) and all(numpy.array_equal(b.ravel(), numpy.float32(want["boxes"])) for b in boxes), boxes


def clothes(module, images=3):
    tensor = module.InferInput("image", [images, 28, 28, 1], "UINT8")
    values = numpy.random.default_rng(0).integers(0, 256, (images, 28, 28, 1), numpy.uint8)
    tensor.set_data_from_numpy(values)
    return values, [tensor]


def classification(module):
    """The best classes are those that the answer has without the extension."""
    _, inputs = clothes(module)
    plain = clients[module].infer("fashion", inputs)
    outputs = [module.InferRequestedOutput("scores", class_count=2), module.InferRequestedOutput("classes")]
    best = clients[module].infer("fashion", inputs, outputs=outputs)
    want = [plain.as_numpy(name) for name in ("scores", "classes", "labels")]
    texts = best.as_numpy("scores")
    assert texts.shape == (3, 2) and numpy.array_equal(best.as_numpy("classes"), want[1]), texts
    for i in range(3):
        for k in range(2):
            score, number, label = texts[i][k].decode().split(":")
            label_there = want[2][i][k].decode() if isinstance(want[2][i][k], bytes) else want[2][i][k]
            assert abs(float(score) - want[0][i][k]) < 1e-5 and int(number) == want[1][i][k] and label == label_there, (texts[i][k], want)


def compression(module):
    """Compressed requests have the answers of plain ones. 32 pictures are half of the slots that a function has at least:
    of more one may be answered busy."""
    _, inputs = clothes(module, 32)
    want = clients[module].infer("fashion", inputs, timeout=10_000_000).as_numpy("scores")
    for way in ("gzip", "deflate"):
        more = {"request_compression_algorithm": way, "response_compression_algorithm": way}
        if module is grpc:
            more = {"compression_algorithm": way}
        got = clients[module].infer("fashion", inputs, timeout=10_000_000, **more).as_numpy("scores")
        assert numpy.array_equal(got, want), way


def memory(module):
    """Tensors in shared memory, inputs and outputs. A file that its producer makes shorter ends the request, not the gateway."""
    client = clients[module]
    values, inputs = clothes(module)
    want = client.infer("fashion", inputs)
    key = f"/penstock-e2e-{os.getpid()}-{module.__name__}"
    size, room = values.nbytes, 4096
    region = shm.create_shared_memory_region("clothes", key, room + size)
    try:
        shm.set_shared_memory_region(region, [values], offset=room)
        client.register_system_shared_memory("clothes", key, room + size)
        refused(client.register_system_shared_memory, "clothes", key, size, want="want a new name")
        refused(client.register_system_shared_memory, "other", "/../../etc/passwd", 1, want="want a file in /dev/shm/")
        status = client.get_system_shared_memory_status("clothes")
        status = status[0] if module is http else client.get_system_shared_memory_status("clothes", as_json=True)["regions"]["clothes"]
        assert status["key"] == key and int(status["byte_size"]) == room + size, status
        inputs[0].set_shared_memory("clothes", size, offset=room)
        outputs = [module.InferRequestedOutput("scores"), module.InferRequestedOutput("classes")]
        outputs[0].set_shared_memory("clothes", room)
        answer = client.infer("fashion", inputs, outputs=outputs)
        assert numpy.array_equal(answer.as_numpy("classes"), want.as_numpy("classes"))
        scores = shm.get_contents_as_numpy(region, numpy.float32, want.as_numpy("scores").shape)
        assert numpy.array_equal(scores, want.as_numpy("scores")), scores

        os.truncate("/dev/shm" + key, room)
        refused(client.infer, "fashion", inputs, want="whose file must keep its length")
        assert client.is_server_live() and client.is_model_ready("fashion")
        client.unregister_system_shared_memory("clothes")
        refused(client.infer, "fashion", inputs, want="want one that is registered")
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
    finally:
        shm.destroy_shared_memory_region(region)


def repository(module):
    """A function that is loaded serves and is in the index, until it is unloaded."""
    client = clients[module]

    def names():
        index = client.get_model_repository_index()
        return {m["name"] for m in index} if module is http else {m.name for m in index.models}

    assert "detect" not in names()
    client.load_model("detect")
    assert client.is_model_ready("detect") and "detect" in names(), names()
    refused(client.load_model, "nope", want="failed to load 'nope'")
    client.unload_model("detect")
    assert not client.is_model_ready("detect") and "detect" not in names(), names()
    refused(client.unload_model, "detect", want="failed to unload 'detect'")


for check in (pictures, classification, compression, memory, repository):
    for module in clients:
        try:
            check(module)
        except (AssertionError, InferenceServerException, transport.RpcError) as e:
            raise SystemExit(f"{check.__name__}, {module.__name__}: {e!r} {e}") from e
