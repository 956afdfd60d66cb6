"""Streams while client_test.go replaces the manager."""

import sys

import numpy as np

import penstock

picture = np.arange(3000, dtype=np.uint16).view(np.uint8)

with penstock.SyncClient(sys.argv[1], timeout=60) as client:
    assert client.infer(picture).payload == picture.tobytes()
    print("answered", flush=True)
    sys.stdin.readline()

    def frames():
        for i in range(20):
            if i == 1:
                print("sent", flush=True)
            yield picture

    answers = list(client.stream(frames()))
    assert [a.payload for a in answers] == 20 * [picture.tobytes()], [a.detail for a in answers]
    assert client.stats.proofs >= 2, client.stats
    print("answered", flush=True)
