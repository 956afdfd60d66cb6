"""Prints the answers about pictures of cameras, one JSON line each: python3 answers.py [ADDRESS:]PORT

The function's `answers_to` names this address. docs/wire.md is the format of the datagrams.
"""

import json, socket, struct, sys

STATUS = ["ok", "late", "incomplete", "busy", "refused", "failed"]
STAGES = ["aggregate", "queue", "gather", "infer", "reply"]

host, _, port = sys.argv[1].rpartition(":")
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((host, int(port)))
pictures = {}                                     # parts of answers that are not complete
while True:
    answer = sock.recv(65535)
    if len(answer) < 86 or answer[:2] != b"PS" or answer[2] not in (0x12, 0x14):
        continue
    picture, _, _, index, count, _ = struct.unpack_from("<IIIHHH", answer, 4)
    parts = pictures.setdefault(picture, {})
    parts[index] = answer[86:]
    if len(parts) < count:
        while len(pictures) > 64:                 # the rest of the oldest one is lost
            del pictures[next(iter(pictures))]
        continue
    payload = b"".join(parts[i] for i in range(count))
    del pictures[picture]

    status, kind, batch, _, missing, version, *times, sent = struct.unpack_from("<BBHHHIIIIIIQ", answer, 22)
    line = {"picture": picture, "camera_time": sent, "status": STATUS[status], "missing": missing, "model_version": version,
            "stages_ms": {name: us / 1000 for name, us in zip(STAGES, times)}}
    if kind == 1:
        line["classes"] = [{"class": c, "p": p} for c, p in struct.iter_unpack("<Hf", payload)]
    elif kind == 2:
        line["boxes"] = [{"class": c, "score": s, "box": box} for c, s, *box in struct.iter_unpack("<Hfffff", payload)]
    elif kind == 3:
        line["values"] = [v for v, in struct.iter_unpack("<f", payload)]
    print(json.dumps(line), flush=True)
