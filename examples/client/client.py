"""Sends a picture to a Penstock function and prints the answer: python3 client.py HOST PORT FILE [SECONDS]

It sends one picture at a time, so it needs no credit but the first. docs/wire.md is the protocol.
"""

import random, socket, struct, sys, time

HEADER = struct.Struct("<2sBBIIIHHH")       # 22 bytes
BLOCK = struct.Struct("<BBHHHIIIIIIQ8s16x") # 64 bytes
EXTENSION = struct.Struct("<IB3xQ8s40x")    # 64 bytes
DATA, RESULT, NACK, BUSY = 1, 2, 3, 4
LAST, RETRANSMITTED, EXTENDED = 1, 2, 8
STATUS = ["ok", "late", "incomplete", "busy", "refused", "failed"]


def infer(sock, request, picture, size=1024, timeout=2.0, cookie=bytes(8)):
    count = (len(picture) + size - 1) // size
    questions = unproved = busy = 0

    def send(index, flags=0):
        nonlocal questions
        fragment, proof = picture[index * size:(index + 1) * size], b""
        questions += index == 0
        flags |= LAST if index == count - 1 else 0
        if index == 0 and any(cookie):
            flags, proof = flags | EXTENDED, EXTENSION.pack(0, 0, 0, cookie)
        sock.send(HEADER.pack(b"PS", 1 << 4 | DATA, flags, request, index * size,
                              len(picture), index, count, len(fragment)) + proof + fragment)

    for index in range(count):
        send(index)
        if index % 64 == 63:
            time.sleep(0.001)               # the pace
    sent, delay, silence, fragments = time.monotonic(), 0, 0.1, {}
    end = sent + timeout
    while (now := time.monotonic()) < end:
        if now >= sent + silence:           # silence: ask
            silence *= 2
            send(0, RETRANSMITTED)
            sent = now
        sock.settimeout(min(sent + silence, end) - now)
        try:
            got = sock.recv(65535)
        except socket.timeout:
            continue
        if len(got) < HEADER.size:
            continue
        magic, kind, _, id, _, _, index, n, length = HEADER.unpack_from(got)
        if magic != b"PS" or id != request:
            continue
        if kind == 1 << 4 | NACK and len(got) == 22 + length:
            base, bits = struct.unpack_from("<HH", got, 22)
            delay = max(delay, time.monotonic() - sent)
            silence = min(max(1.5 * delay, 0.001), 0.1)
            for i in range(bits):
                if got[26 + i // 8] >> i % 8 & 1:
                    send(base + i, RETRANSMITTED)
            sent = time.monotonic()
        elif kind in (1 << 4 | RESULT, 1 << 4 | BUSY) and len(got) == 86 + length:
            credit, asked = BLOCK.unpack_from(got, 22)[3], BLOCK.unpack_from(got, 22)[12]
            if kind == 1 << 4 | BUSY and credit == 0 and any(asked):
                busy += 1
                if asked != cookie:         # prove the address
                    cookie, unproved = asked, questions
                    send(0, RETRANSMITTED)
                    sent = time.monotonic()
                if busy <= unproved:        # it answers a question before the proof
                    continue
            fragments[index] = got[86:]
            if len(fragments) == n:
                return BLOCK.unpack_from(got, 22), b"".join(fragments[i] for i in range(n))
    raise TimeoutError("no answer")


if __name__ == "__main__":
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((sys.argv[1], int(sys.argv[2])))
    with open(sys.argv[3], "rb") as f:
        picture = f.read()
    timeout = float(sys.argv[4]) if len(sys.argv) > 4 else 2.0
    block, payload = infer(sock, random.getrandbits(32), picture, timeout=timeout)
    status, kind, batch, credit, missing, version, *stages, sent, cookie = block
    print(f"status {STATUS[status]}, batch {batch}, model version {version}, infer {stages[3]} us")
    if kind == 1:
        for number, p in struct.iter_unpack("<Hf", payload):
            print(f"class {number}: {p:.4f}")
