"""The kind of a file's content. Its first and last bytes are a tensor of int32."""

import gzip
import io
import json
import tarfile
import wave
import zipfile

import numpy as np
from magika import Magika
from PIL import Image

from suite import ask, equal, near, taken


def written(kind, write):
    file = io.BytesIO()
    write(kind, file)
    return file.getvalue()


def image(kind, file):
    Image.effect_noise((64, 48), 40).convert("RGB").save(file, kind)


def archive(kind, file):
    content = b"name,value\n" * 50
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as z:
            z.writestr("a.csv", content)
    else:
        with tarfile.open(fileobj=file, mode="w") as t:
            entry = tarfile.TarInfo("a.csv")
            entry.size = len(content)
            t.addfile(entry, io.BytesIO(content))


def sound(kind, file):
    with wave.open(file, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(16000)
        w.writeframes(np.arange(4000, dtype=np.int16).tobytes())


CONTENTS = {
    "Python": open(__file__, "rb").read(),
    "JSON": json.dumps({"names": ["a", "b"], "values": [{"x": i, "y": [i, None, True]} for i in range(40)]}, indent=2).encode(),
    "CSV": b"day,place,value\n" + b"".join(b"2026-11-%02d,hall %d,%d.5\n" % (i % 28 + 1, i % 3, i) for i in range(90)),
    "HTML": b"<!DOCTYPE html>\n<html><head><title>Hall</title></head><body>" + b"<p class='a'>Some <b>text</b>.</p>\n" * 30 + b"</body></html>",
    "C": b"#include <stdio.h>\n\nint main(int argc, char **argv) {\n\tfor (int i = 0; i < argc; i++)\n\t\tprintf(\"%s\\n\", argv[i]);\n\treturn 0;\n}\n" * 4,
    "shell": b"#!/bin/sh\nset -e\nfor f in *.c; do\n  cc -c \"$f\" || exit 1\ndone\nif [ -n \"$1\" ]; then\n  echo \"$1\"\nfi\n" * 4,
    "YAML": b"functions:\n" + b"".join(b"  - name: f%d\n    port: %d\n    slo: 25ms\n" % (i, 5000 + i) for i in range(30)),
    "PNG": written("PNG", image),
    "JPEG": written("JPEG", image),
    "gzip": gzip.compress(b"some text that repeats " * 90, mtime=0),
    "zip": written("zip", archive),
    "tar": written("tar", archive),
    "WAV": written("wav", sound),
    "noise": np.random.default_rng(1).integers(0, 256, 3000, np.uint8).tobytes(),
}

magika = Magika()
labels = [str(label) for label in magika._target_labels_space]
for name, content in CONTENTS.items():
    want = magika.identify_bytes(content).prediction
    got = ask("files", taken().astype(np.int32)).classes
    equal(f"kind of {name}", labels[got.classes[0]], str(want.dl.label))
    near(f"score of {name}", float(got.probabilities[0]), want.score, 0.01)
print(f"{len(CONTENTS)} contents have equal kinds")
