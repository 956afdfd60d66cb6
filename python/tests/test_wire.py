"""The datagrams of examples/client/datagrams.md, byte for byte."""

import os
import re
import struct
import unittest

import numpy as np

from penstock import _wire
from penstock._wire import Picture
from penstock.answer import Answer, Kind, Stages, Status

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "client", "datagrams.md")
REQUEST = 0x01020304
SIZE = 16
PICTURE = np.arange(0x80, 0x80 + 40, dtype=np.uint8)
COOKIE = 0xA7A6A5A4A3A2A1A0


def golden(name):
    with open(PAGE, encoding="utf-8") as f:
        text = re.search(r"^```hexdump %s\n(.*?)^```" % name, f.read(), re.M | re.S).group(1)
    return bytes.fromhex(" ".join(line[4:] for line in text.splitlines()))


def joined(buffers):
    return b"".join(bytes(b) for b in buffers)


class Encode(unittest.TestCase):
    def test_first_fragment(self):
        extension = _wire.encode_extension(_wire.Wanted(25_000_000, 3), 0x1122334455667788, 0)
        self.assertEqual(joined(_wire.encode_first(REQUEST, PICTURE, SIZE, False, extension)), golden("data-first"))

    def test_first_fragment_with_cookie(self):
        extension = _wire.encode_extension(_wire.Wanted(), 0, COOKIE)
        self.assertEqual(joined(_wire.encode_first(REQUEST, PICTURE, SIZE, True, extension)), golden("data-cookie"))

    def test_first_fragment_of_a_client_that_follows(self):
        extension = _wire.encode_extension(_wire.Wanted(), 0, COOKIE, follows=True)
        self.assertEqual(joined(_wire.encode_first(REQUEST, PICTURE, SIZE, False, extension)), golden("data-follows"))

    def test_question(self):
        extension = _wire.encode_extension(_wire.Wanted(), 0, COOKIE, [3, 5, 258])
        self.assertEqual(joined(_wire.encode_first(REQUEST, PICTURE, SIZE, True, extension)), golden("data-question"))

    def test_wanted(self):
        extension = _wire.encode_extension(_wire.Wanted(0, 0, 0x01020304, 0x4000, Picture("uyvy", 4, 4, 10, "bt709-full")), 0, COOKIE)
        self.assertEqual(joined(_wire.encode_first(REQUEST, PICTURE, SIZE, False, extension)), golden("data-request"))

    def test_train(self):
        want = golden("data-middle") + golden("data-last")
        self.assertEqual(bytes(_wire.encode_train(REQUEST, PICTURE, SIZE, np.array([1, 2]), False)), want)

    def test_train_with_gaps(self):
        for total in 5 * SIZE, 5 * SIZE - 3:
            picture = np.arange(total, dtype=np.uint8)
            for index in [1, 3], [1, 4], [4], [2, 3, 4]:
                train = bytes(_wire.encode_train(REQUEST, picture, SIZE, np.array(index), True))
                want = b""
                for i in index:
                    payload = bytes(picture[i * SIZE : (i + 1) * SIZE])
                    flags = 2 | (1 if i == 4 else 0)
                    want += b"PS\x11" + bytes([flags]) + REQUEST.to_bytes(4, "little")
                    want += (i * SIZE).to_bytes(4, "little") + total.to_bytes(4, "little")
                    want += i.to_bytes(2, "little") + b"\x05\x00" + len(payload).to_bytes(2, "little") + payload
                self.assertEqual(train, want, (total, index))

    def test_deadline_is_rounded_up(self):
        for nanoseconds, microseconds in (1, 1), (1000, 1), (1001, 2), (1 << 62, (1 << 32) - 1):
            extension = _wire.encode_extension(_wire.Wanted(nanoseconds), 0, 0)
            self.assertEqual(int.from_bytes(extension[:4], "little"), microseconds)


    def test_hello(self):
        hello = _wire.Hello(_wire.HELLO, bytes(range(16)), COOKIE)
        proof = hello._replace(kind=_wire.PROOF)
        self.assertEqual(_wire.encode_hello(hello), golden("hello"))
        self.assertEqual(_wire.encode_hello(proof, b"an example of a key"), golden("proof"))
        for want in hello, proof:
            self.assertEqual(_wire.decode(memoryview(_wire.encode_hello(want))), want)


class Decode(unittest.TestCase):
    def test_nack(self):
        d = _wire.decode(memoryview(golden("nack")))
        self.assertEqual((d.request, d.total, d.fragments, list(d.missing)), (REQUEST, 40, 3, [1]))

    def test_result(self):
        d = _wire.decode(memoryview(golden("result")))
        self.assertEqual((d.request, d.total, d.fragment, d.fragments, d.size), (REQUEST, 12, 0, 1, 12))
        want = _wire.Block(0, 1, 4, 7, 0, 2, 300, 1500, 40, 2000, 15, 0x1122334455667788, 0, 0, 0, 0, 0)
        self.assertEqual(d.block, want)
        a = answer(Kind.CLASSES, bytes(d.payload))
        self.assertEqual((list(a.classes.classes), list(a.classes.probabilities)), ([9, 258], [0.75, 0.125]))

    def test_result_in_fragments(self):
        d = _wire.decode(memoryview(golden("result-fragments")))
        self.assertEqual((d.total, d.fragment, d.fragments, d.size, d.offset, len(d.payload)), (22, 1, 2, 16, 16, 6))

    def test_answers_without_payload(self):
        for name, status, credit in ("incomplete", 2, 8), ("late", 1, 5), ("busy", 3, 0), ("busy-cookie", 3, 0):
            d = _wire.decode(memoryview(golden(name)))
            self.assertEqual((d.block.status, d.block.credit, d.total), (status, credit, 0), name)
            self.assertEqual(d.block.cookie, COOKIE if name == "busy-cookie" else 0)
        self.assertEqual(_wire.decode(memoryview(golden("late"))).block.objective, 25_000)

    def test_moved(self):
        block = _wire.decode(memoryview(golden("moved"))).block
        self.assertEqual(block, _wire.Block(6, 0, 0, 0, 0, 2, *[0] * 11, ("192.0.2.2", 5001), 30))

    def test_every_rule(self):
        result, fragment, nack, busy = golden("result"), golden("result-fragments"), golden("nack"), golden("busy")
        moved = golden("moved")

        def changed(b, at, *values):
            return b[:at] + bytes(values) + b[at + len(values) :]

        for word, b in (
            ("short", result[:21]),
            ("magic", changed(result, 0, 0)),
            ("version", changed(result, 2, 0x22)),
            ("type", golden("data-middle")),
            ("type", changed(result, 2, 0x17)),
            ("flags", changed(golden("hello"), 3, 3)),
            ("length", golden("hello")[:-1]),
            ("length", changed(golden("hello") + b"\0", 12, 57)[:20] + b"\x39" + golden("hello")[21:] + b"\0"),
            ("flags", changed(result, 3, 9)),
            ("flags", changed(nack, 3, 1)),
            ("count", changed(result, 18, 0)),
            ("index", changed(result, 16, 1)),
            ("index", changed(nack, 16, 1)),
            ("length", result[:-1]),
            ("length", changed(nack, 20, 0)[:22]),
            ("trailing", result + b"\0"),
            ("total", changed(result, 12, 11)),
            ("total", changed(nack, 12, 0)),
            ("total", changed(busy, 12, 1)),
            ("last", changed(result, 3, 0)),
            ("offset", changed(fragment, 8, 0, 0)[:16] + b"\2\0\3\0" + fragment[20:]),
            ("offset", changed(nack, 8, 1)),
            ("fragments", changed(result, 12, 13)),
            ("status", changed(result, 22, 6)),
            ("status", changed(result, 22, 7)),
            ("status", changed(moved, 50, 0, 0)),
            ("status", changed(moved, 34, 0xFF)),
            ("status", changed(busy, 22, 0)),
            ("status", changed(result, 22, 1)),
            ("kind", changed(result, 23, 11)),
            ("kind", changed(result, 23, 0)),
            ("nack", changed(nack, 26, 0)),
            ("nack", changed(nack, 26, 6)),
            ("nack", changed(nack, 24, 4)),
            ("nack", changed(nack, 24, 9)),
        ):
            with self.assertRaises(_wire.Malformed, msg=word) as caught:
                _wire.decode(memoryview(b))
            self.assertEqual(str(caught.exception), word, b.hex(" "))

    def test_any_bytes(self):
        random = np.random.default_rng(1)
        names = list(golden_bytes)
        for _ in range(3000):
            b = bytearray(golden_bytes[names[random.integers(len(names))]])
            for _ in range(random.integers(1, 4)):
                b[random.integers(len(b))] = random.integers(256)
            try:
                _wire.decode(memoryview(b)[: random.integers(len(b) + 1)])
            except _wire.Malformed:
                pass


golden_bytes = {name: golden(name) for name in ("result", "result-fragments", "nack", "busy", "late", "hello", "proof", "moved")}


def answer(kind, payload, status=Status.OK):
    return Answer(status, kind, payload, 1, 1, 0, Stages(), 0.0, 0.0, 0, "late: a test" if status is Status.LATE else "")


class Answers(unittest.TestCase):
    def test_boxes(self):
        row = b"\x07\x00" + np.array([0.5, 0, 0.25, 0.75, 1], "<f4").tobytes()
        boxes = answer(Kind.BOXES, 2 * row).boxes
        self.assertEqual((list(boxes.classes), list(boxes.scores)), ([7, 7], [0.5, 0.5]))
        self.assertEqual(boxes.corners.tolist(), 2 * [[0, 0.25, 0.75, 1]])
        self.assertEqual(answer(Kind.BOXES, b"").boxes.corners.shape, (0, 4))

    def test_values(self):
        self.assertEqual(answer(Kind.VALUES, np.array([1.5, 2], "<f4").tobytes()).values.tolist(), [1.5, 2])

    def test_tensors(self):
        head = b"\x01\x00y"
        for element, (name, *values) in enumerate([
            ("bool", False, True), ("int8", -1), ("int16", -2), ("int32", -3), ("int64", -4), ("uint8", 255), ("uint16", 3), ("uint32", 4),
            ("uint64", 5), ("float16", 0.5), ("bf16", -2), ("float32", 1.5), ("float64", 2.5),
        ]):
            data = b"\x00\xc0" if name == "bf16" else np.array(values, name).tobytes()
            payload = bytes([element, 2]) + head + struct.pack("<II", 1, len(values)) + data
            tensor = answer(Kind.TENSORS, payload).tensors["y"]
            self.assertEqual((tensor.tolist(), tensor.dtype), ([values], np.dtype("float32" if name == "bf16" else name)))
        num = b"\x04\x00\x03\x00num" + struct.pack("<q", 7)
        none = b"\x0b\x02\x00\x00" + struct.pack("<II", 0, 2)
        tensors = answer(Kind.TENSORS, num + none).tensors
        self.assertEqual((list(tensors), tensors["num"].shape, int(tensors["num"]), tensors[""].shape), (["num", ""], (), 7, (0, 2)))

    def test_points(self):
        row = b"\x07\x00" + np.array([0.5, 0, 0.25, 0.75, 1, 1, 2, 3, 4, 5, 6], "<f4").tobytes()
        points = answer(Kind.POINTS, b"\x02\x00" + 2 * row).points
        self.assertEqual(points.points.tolist(), 2 * [[[1, 2, 3], [4, 5, 6]]])
        self.assertEqual(points.boxes.corners.tolist(), 2 * [[0, 0.25, 0.75, 1]])
        self.assertEqual(answer(Kind.POINTS, b"\x02\x00").points.points.shape, (0, 2, 3))

    def test_masks(self):
        box = b"\x07\x00" + np.array([0.5, 0, 0.25, 0.75, 1], "<f4").tobytes()
        part = np.array([1, 0, 2, 2], "<u2").tobytes() + b"\x0b"
        masks = answer(Kind.MASKS, b"\x02\x00\x03\x00" + box + part).masks
        self.assertEqual(masks.masks.tolist(), [[[False, True, True], [False, False, True]]])
        self.assertEqual(list(masks.boxes.classes), [7])
        self.assertEqual(answer(Kind.MASKS, b"\x02\x00\x03\x00").masks.masks.shape, (0, 2, 3))

    def test_polygons(self):
        head = b"\x07\x00" + np.array([0.5], "<f4").tobytes()
        corners = np.array([0, 0.25, 0.75, 1], "<f4").tobytes()
        polygons = answer(Kind.POLYGONS, head + b"\x02\x00" + corners + head + b"\x00\x00").polygons
        self.assertEqual((list(polygons.classes), list(polygons.scores)), ([7, 7], [0.5, 0.5]))
        self.assertEqual([c.tolist() for c in polygons.corners], [[[0, 0.25], [0.75, 1]], []])
        self.assertEqual(answer(Kind.POLYGONS, b"").polygons.corners, [])

    def test_embedding(self):
        self.assertEqual(answer(Kind.EMBEDDING, np.array([1, 0], "<f4").tobytes()).embedding.tolist(), [1, 0])

    def test_map(self):
        size = b"\x00\x02\x00\x03\x00"
        runs = b"\x05\x00\x04\x00\x00\x00" + b"\x2c\x01\x02\x00\x00\x00"
        self.assertEqual(answer(Kind.MAP, b"\x00" + size + runs).map.tolist(), [[5, 5, 5], [5, 300, 300]])
        self.assertEqual(answer(Kind.MAP, b"\x01" + size + bytes([0, 255, 0, 0, 0, 0])).map.tolist(), [[0, 1, 0], [0, 0, 0]])
        halves = np.array([0.5, 1, 2, 0, 0, -1], "<f2").tobytes()
        self.assertEqual(answer(Kind.MAP, b"\x02" + size + halves).map.tolist(), [[0.5, 1, 2], [0, 0, -1]])

    def test_text(self):
        text = answer(Kind.TEXT, np.array([0.5], "<f4").tobytes() + "Größe".encode()).text
        self.assertEqual((text.text, text.score), ("Größe", 0.5))

    def test_malformed_payloads_are_errors(self):
        box = b"\x07\x00" + np.array([0.5, 0, 0.25, 0.75, 1], "<f4").tobytes()
        for kind, payload in (
            (Kind.POINTS, b"\x01"),
            (Kind.POINTS, b"\x01\x00" + box),
            (Kind.MASKS, b"\x02"),
            (Kind.MASKS, b"\x02\x00\x02\x00" + box),
            (Kind.MASKS, b"\x02\x00\x02\x00" + box + np.array([1, 0, 2, 2], "<u2").tobytes() + b"\x0b"),
            (Kind.POLYGONS, box[:6] + b"\x03\x00"),
            (Kind.MAP, b"\x00"),
            (Kind.MAP, b"\x00\x00\x02\x00\x03\x00\x05\x00\x07\x00\x00\x00"),
            (Kind.MAP, b"\x01\x00\x02\x00\x03\x00\x05"),
            (Kind.MAP, b"\x03\x00\x02\x00\x03\x00"),
            (Kind.TEXT, b"\x00"),
            (Kind.TENSORS, b"\x00\x00\x00"),
            (Kind.TENSORS, b"\x0d\x00\x00\x00\x01"),
            (Kind.TENSORS, b"\x05\x02\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            (Kind.TENSORS, b"\x05\x00\x01\x00\xff\x01"),
            (Kind.TENSORS, 2 * b"\x05\x00\x01\x00y\x01"),
            (Kind.TEXT, b"\x00\x00\x00\x00\xff"),
        ):
            with self.assertRaisesRegex(ValueError, f"read {kind.value} of an answer"):
                getattr(answer(kind, payload), kind.value)

    def test_another_kind_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "read boxes of an answer: it has values"):
            answer(Kind.VALUES, b"").boxes
        with self.assertRaisesRegex(ValueError, "5 bytes are no multiple of an entry's 4"):
            answer(Kind.VALUES, b"12345").values
        with self.assertRaisesRegex(Exception, "late: a test"):
            answer(Kind.NONE, b"", Status.LATE).values
