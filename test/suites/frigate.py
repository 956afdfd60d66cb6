"""Frigate's detectors deepstack and zmq get what Penstock's own client gets. Their requests are written again from Frigate's
documentation, because Frigate is no package.

    frigate.py HOST:PORT ENDPOINT DETECT RUNTIME_DIR BINARY PHOTO

ENDPOINT is that of ZeroMQ, DETECT the address of the function.
"""

import io
import json
import subprocess
import sys
import tempfile

import numpy as np
import penstock
import requests
import zmq
from PIL import Image

gateway, endpoint, function, runtime, binary, photo = sys.argv[1:]
SIZE = 416  # of the model's picture
TENSOR = np.asarray(Image.open(photo).convert("RGB").resize((SIZE, SIZE)))[None]


def deepstack():
    """The detector sends its tensor as a JPEG, and takes rows of label, score and corners of the predictions."""
    file = io.BytesIO()
    Image.fromarray(np.squeeze(TENSOR)).save(file, "JPEG")
    url = f"http://{gateway}/v1/vision/detection"
    answer = requests.post(url, data={"api_key": ""}, files={"image": file.getvalue()}, timeout=60).json()
    got = [[p["label"], round(p["confidence"], 3), p["x_min"], p["y_min"], p["x_max"], p["y_max"]] for p in answer["predictions"]]

    with tempfile.NamedTemporaryFile(suffix=".jpg") as copy:
        copy.write(file.getvalue())
        copy.flush()
        own = json.loads(subprocess.check_output([binary, "infer", "detect", copy.name, "-o", "json", "--runtime-dir", runtime]))
    want = [[f["label"], round(f["score"], 3), *f["box"]] for f in own["found"]]
    assert got == want and any(row[0] == "person" for row in got), (got, want)


def zeromq():
    """The detector asks for its model, then sends a header and a tensor, and gets rows of class, score, top, left, bottom, right."""
    socket = zmq.Context().socket(zmq.REQ)
    socket.setsockopt(zmq.RCVTIMEO, 60_000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    socket.send_multipart([json.dumps({"model_request": True, "model_name": "any.onnx"}).encode()])
    state = json.loads(socket.recv_multipart()[0])
    assert state["model_available"] and state["model_loaded"], state

    header = {"shape": list(TENSOR.shape), "dtype": TENSOR.dtype.name, "model_type": "yolo-generic"}
    socket.send_multipart([json.dumps(header).encode(), memoryview(TENSOR.tobytes())])
    reply, payload = socket.recv_multipart()
    reply = json.loads(reply)
    rows = np.frombuffer(payload, reply["dtype"]).reshape(reply["shape"])

    with penstock.SyncClient(function) as client:
        boxes = client.infer(TENSOR[0], deadline=60).boxes
    want = np.zeros((20, 6), np.float32)
    n = min(len(boxes.scores), len(want))
    want[:n, 0], want[:n, 1] = boxes.classes[:n], boxes.scores[:n]
    want[:n, 2:] = boxes.corners[:n][:, [1, 0, 3, 2]]
    assert rows.dtype == np.float32 and n > 0 and np.array_equal(rows, want), (rows, want)


deepstack()
zeromq()
