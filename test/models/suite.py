"""What the suites share. A suite runs a package's own code, takes the inputs that this code gives its model, sends them
to Penstock, and compares the answers. The first one that differs ends the suite.

    SUITE.py GATEWAY FUNCTION=ADDRESS...
"""

import io
import json
import sys
import urllib.request

import numpy as np
import onnxruntime
import penstock

PATIENCE = 60  # seconds
PICTURES = "../../models/zoo/pictures/"

gateway = sys.argv[1]
addresses = dict(word.split("=") for word in sys.argv[2:])


def client(function):
    c = penstock.SyncClient(addresses[function], timeout=PATIENCE)
    c.open()
    return c


clients = {f: client(f) for f in addresses}
inputs = []  # of the package's models, since the last call of taken


def _run(self, names, feeds, *more, run=onnxruntime.InferenceSession.run):
    inputs.extend(feeds.values())
    return run(self, names, feeds, *more)


onnxruntime.InferenceSession.run = _run


def taken():
    """The one input of the model's last run."""
    (tensor,) = inputs
    inputs.clear()
    return np.asarray(tensor[0])


def picture(mean, std):
    """The picture that became this input: from [3, rows, columns] to bytes [rows, columns, 3]."""
    return np.rint(taken().transpose(1, 2, 0) * std + mean).astype(np.uint8)


def ask(function, array):
    """The answer to an array of any type."""
    return clients[function].infer(np.ascontiguousarray(array).view(np.uint8), deadline=PATIENCE)


def ask_photo(function, photo):
    """The outputs of the gateway's answer to a picture of Pillow."""
    file = io.BytesIO()
    photo.save(file, "PNG")
    request = urllib.request.Request(f"{gateway}/v2/models/{function}/infer?timeout=10s", file.getvalue(), {"Content-Type": "image/png"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return {o["name"]: np.reshape(o["data"], o["shape"])[0] for o in json.load(answer)["outputs"]}


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: Penstock answers {got!r}, the package {want!r}")


def near(what, got, want, within):
    """Checks numbers, and returns the largest difference."""
    far = np.max(np.abs(np.subtract(got, want)))
    if not far <= within:
        sys.exit(f"{what}: Penstock answers {got}, the package {want}: {far} is more than {within}")
    return far
