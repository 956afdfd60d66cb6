"""A socket of libzmq: peer.py bind|connect ADDRESS TYPE [OPTION...] < MESSAGES

It sends each line of standard input, the last one again and again, and prints each message that it receives. A line
with tabs is a message of several parts. The options are heartbeat, plain, curve and subscribe.
"""

import sys
import threading

import zmq

verb, address, kind, *options = sys.argv[1:]
context = zmq.Context()
socket = context.socket(getattr(zmq, kind))
socket.setsockopt(zmq.LINGER, 0)
if "heartbeat" in options:
    socket.setsockopt(zmq.HEARTBEAT_IVL, 50)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60000)  # else 50 ms, which a busy machine does not keep
if "plain" in options:
    socket.setsockopt(zmq.PLAIN_USERNAME, b"user")
    socket.setsockopt(zmq.PLAIN_PASSWORD, b"password")
if "curve" in options:
    public, secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, public)
if "subscribe" in options:
    socket.setsockopt(zmq.SUBSCRIBE, b"")
getattr(socket, verb)(address)

lines = []


def read():
    for line in sys.stdin.buffer:
        lines.append(line.rstrip(b"\n"))


threading.Thread(target=read, daemon=True).start()
receives = kind not in ("PUSH", "PUB", "REQ")
sends = kind not in ("SUB", "PULL", "REP")
poller = zmq.Poller()
poller.register(socket, zmq.POLLIN)
position = 0
while True:
    if sends and position < len(lines):
        try:
            socket.send_multipart(lines[position].split(b"\t"), zmq.DONTWAIT)
            position = min(position + 1, len(lines) - 1)
        except zmq.ZMQError:  # no peer yet
            pass
    if poller.poll(50) and receives:
        print(b" ".join(socket.recv_multipart()).decode(errors="backslashreplace"), flush=True)
