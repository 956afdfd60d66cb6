"""Sends pictures with the Python client. test/e2e compares the answers with those of the Go client.

Usage: client.py HOST:PORT HEIGHT WIDTH CHANNELS FILE... Prints one line of JSON per file.
"""

import asyncio
import json
import sys

import numpy as np

import penstock

address, shape = sys.argv[1], [int(n) for n in sys.argv[2:5]]
pictures = [np.fromfile(name, np.uint8).reshape(shape) for name in sys.argv[5:]]


def shown(answer):
    line = {"kind": answer.kind.value, "payload": answer.payload.hex()}
    if answer.kind is penstock.Kind.BOXES:
        boxes = answer.boxes
        line.update(classes=boxes.classes.tolist(), scores=boxes.scores.tolist(), corners=boxes.corners.tolist())
    else:
        top = answer.classes
        line.update(classes=top.classes.tolist(), scores=top.probabilities.tolist())
    return line


async def ask_async():
    async with penstock.Client(address, timeout=60) as client:
        lines = [shown(await client.infer(p, deadline=60)) for p in pictures]
        streamed = [answer.status.value async for answer in client.stream(8 * pictures, deadline=60)]
        assert set(streamed) == {"ok"} and len(streamed) == 8 * len(pictures), streamed
        return lines


def ask_sync():
    with penstock.SyncClient(address, timeout=60) as client:
        lines = [shown(client.infer(p, deadline=60)) for p in pictures]
        assert all(answer.ok for answer in client.stream(pictures, deadline=60))
        return lines


answers = asyncio.run(ask_async())
assert ask_sync() == answers
for answer in answers:
    print(json.dumps(answer))
