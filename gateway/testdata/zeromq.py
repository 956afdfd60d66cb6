"""Clients of ZeroMQ: a REQ, a DEALER with many requests at once, and Frigate's detector zmq. Prints what they get."""

import json
import sys

import numpy
import zmq

context = zmq.Context()


def connect(kind):
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 20)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60000)  # else 20 ms, which a busy machine does not keep
    socket.setsockopt(zmq.RCVTIMEO, 60000)
    socket.connect(sys.argv[1])
    return socket


got = {}
picture = bytes(48)

req = connect(zmq.REQ)
req.poll(200)  # idle for some heartbeats
req.send_multipart([b"finder", picture])
status, answer, payload = req.recv_multipart()
got["REQ"] = [status.decode(), json.loads(answer), len(payload)]

dealer = connect(zmq.DEALER)
for i in range(100):
    dealer.send_multipart([b"%d" % i, b"", b"finder", picture[:30], picture[30:]])
answers = [dealer.recv_multipart() for _ in range(100)]
assert all(a[1] == b"" and len(a) == 5 for a in answers), answers[0]
got["DEALER"] = sorted(f"{a[0].decode()} {a[2].decode()}" for a in answers)

frigate = connect(zmq.REQ)
frigate.send_multipart([json.dumps({"model_request": True, "model_name": "yolo.onnx"}).encode()])
(reply,) = frigate.recv_multipart()
got["Ready"] = json.loads(reply)


def detect(tensor):
    header = {"shape": list(tensor.shape), "dtype": tensor.dtype.name, "model_type": "yologeneric"}
    frigate.send_multipart([json.dumps(header).encode(), memoryview(tensor.tobytes(order="C"))])
    return frigate.recv_multipart()


def rows(tensor):
    header, rows = detect(tensor)
    header = json.loads(header)
    return numpy.frombuffer(rows, numpy.dtype(header["dtype"])).reshape(header["shape"]).tolist()


got["Rows"] = [rows(numpy.zeros(shape, numpy.uint8)) for shape in ((1, 4, 4, 3), (2, 4, 3))]
got["Errors"] = [
    detect(tensor)[0].decode()
    for tensor in (
        numpy.zeros((1, 3, 4, 4), numpy.float32),
        numpy.zeros((1, 3, 4, 4), numpy.uint8),
        numpy.zeros((2, 4, 4, 3), numpy.uint8),
        numpy.zeros((0, 4, 3), numpy.uint8),
    )
]
print(json.dumps(got))
