"""A request that litserve's own server takes, a form with a file, gets the answer of a plain request with the file.

    litserve_client.py HOST:PORT PHOTO [PORT]

With PORT it is litserve's server.
"""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time

import litserve
import requests

gateway, photo, *port = sys.argv[1:]


class Digest(litserve.LitAPI):
    """Answers the digest of the file, so that the client sees that it came whole."""

    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["content"].file.read()

    def predict(self, file):
        return hashlib.sha256(file).hexdigest()

    def encode_response(self, digest):
        return {"digest": digest}


def send(url):
    with open(photo, "rb") as file:
        answer = requests.post(url, files={"content": file}, timeout=60)
    answer.raise_for_status()
    return answer.json()


def main():
    with open(photo, "rb") as file:
        content = file.read()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # Its processes do not end with the first one.
    server = subprocess.Popen([sys.executable, __file__, gateway, photo, port], start_new_session=True)
    try:
        while server.poll() is None:
            try:
                if requests.get(f"http://127.0.0.1:{port}/health", timeout=60).ok:
                    break
            except requests.ConnectionError:
                time.sleep(0.1)
        got = send(f"http://127.0.0.1:{port}/predict")
        assert got == {"digest": hashlib.sha256(content).hexdigest()}, got
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    url = f"http://{gateway}/v2/models/detect/infer"
    got, want = send(url), requests.post(url, content, headers={"Content-Type": "image/jpeg"}, timeout=60).json()
    assert got["outputs"] == want["outputs"] and "person" in str(got["outputs"]), (got, want)


if __name__ == "__main__":
    if port:
        litserve.LitServer(Digest(), accelerator="cpu").run(host="127.0.0.1", port=int(port[0]), generate_client_file=False)
    else:
        main()
