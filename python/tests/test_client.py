"""Clients of the managers and networks that client_test.go starts."""

import asyncio
import errno
import json
import os
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import numpy as np

import penstock

PEERS = json.loads(os.environ.get("PENSTOCK_TEST_PEERS", "{}"))
# Bounds the wait of a test; only a hang reaches it.
PATIENCE = 60.0
LARGEST = 65535 * 1024  # the most bytes of an answer


def picture(n, seed=0):
    return np.random.default_rng([seed, n]).integers(0, 256, n, dtype=np.uint8)


def addresses(names):
    """The addresses of peers, with commas between them."""
    names = names.replace(", ", "; ").split(",")
    return ",".join(PEERS[name.replace("; ", ", ")] for name in names)


@unittest.skipUnless(PEERS, "go test ./python starts the managers of these tests")
class Case(unittest.TestCase):
    def assert_echoed(self, answers, pictures):
        self.assertEqual([a.detail for a in answers if not a.ok], [])
        self.assertEqual(len(answers), len(pictures))
        wrong = [i for i, (a, p) in enumerate(zip(answers, pictures)) if a.payload != p.tobytes()]
        self.assertEqual(wrong, [])


class Async(Case):
    def run_with(self, peer, test, **options):
        async def run():
            async with penstock.Client(addresses(peer), **{"timeout": PATIENCE, **options}) as c:
                try:
                    return await test(c)
                except penstock.Unanswered:
                    print(f"{peer}: {c.stats}", file=sys.stderr)  # which datagrams came shows what got stuck
                    raise

        return asyncio.run(run())

    def test_pictures_of_all_sizes(self):
        async def test(c):
            for n in 1, 4, 1023, 1024, 1025, 49_152, 65_537, 3_000_000:
                p = picture(n)
                self.assert_echoed([await c.infer(p)], [p])

        for peer in "echo", "lossy", "cookie":
            with self.subTest(peer):
                self.run_with(peer, test)

    def test_key(self):
        async def test(c):
            pictures = [picture(n) for n in (1, 3000, 49_152)]
            for p in pictures:
                self.assert_echoed([await c.infer(p)], [p])
            self.assert_echoed([a async for a in c.stream(pictures * 20)], pictures * 20)

        async def refused(c):
            for _ in range(2):
                with self.assertRaisesRegex(penstock.Refused, "key"):
                    await c.infer(picture(3000))
            return c.stats

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "key")

            def write(text):
                with open(path, "w") as f:
                    f.write(text)

            write("# of the line\n\nthe key of the function\n")
            self.run_with("key", test, key_file=path)
            self.run_with("echo", test, key_file=path)  # a function without keys
            write("the key of another function\nthe key of the function\n")
            self.run_with("key", refused, key_file=path)
            write("# none\n")
            with self.assertRaisesRegex(ValueError, "has no key"):
                self.run_with("key", refused, key_file=path)
        self.run_with("key", refused)

    def test_moved(self):
        async def test(c):
            pictures = [picture(2000 + i, i) for i in range(100)]
            self.assert_echoed(await asyncio.gather(*(c.infer(p) for p in pictures)), pictures)
            self.assert_echoed([a async for a in c.stream(pictures)], pictures)
            self.assertEqual((c.stats.malformed, len(c._sockets)), ({}, 2))

        async def stays(c):
            for _ in range(3):
                self.assertEqual((await c.infer(picture(2000))).payload, b"stayed")
            self.assertEqual(len(c._sockets), 1)

        with tempfile.NamedTemporaryFile("w") as f:
            f.write("the key of the function")
            f.flush()
            for peer, test_it, options in (
                ("moves,echo", test, {}),
                ("moves elsewhere", test, {"trusted": ["::/0", "127.0.0.2"]}),
                ("moves, with a key,keyed", test, {"key_file": f.name}),
                ("moves elsewhere,echo", stays, {}),
                ("moves elsewhere", stays, {"trusted": ["127.0.0.3/32"]}),
                ("moves", stays, {}),
            ):
                with self.subTest(peer, **options):
                    self.run_with(peer, test_it, **options)

    def test_next_address(self):
        async def test(c):
            pictures = [picture(2000 + i, i) for i in range(100)]
            self.assert_echoed(await asyncio.gather(*(c.infer(p) for p in pictures)), pictures)

        async def unreachable(c):
            with self.assertRaisesRegex(penstock.Unanswered, "no process listens there"):
                await c.infer(picture(3000))

        for peer in "silent,echo", "unreachable,echo", "echo,silent", "silent,unreachable,silent,echo":
            with self.subTest(peer):
                self.run_with(peer, test)
        self.run_with("unreachable,closed", unreachable)
        with penstock.SyncClient(addresses("unreachable,echo"), timeout=PATIENCE) as c:
            p = picture(3000)
            self.assert_echoed([c.infer(p)], [p])

    def test_largest_answers(self):
        async def test(c):
            answer = await c.infer(picture(4))
            self.assertEqual(len(answer.payload), LARGEST)
            # Fragment i has the 32-bit number i + j at 4 j.
            want = np.add.outer(np.arange(LARGEST // 1024, dtype=np.uint32), np.arange(256, dtype=np.uint32))
            self.assertEqual(answer.payload, want.tobytes())

        for peer, socket_bytes in ("largest, 1 % lost", 4 << 20), ("largest, 5 % lost", 4 << 20), ("largest, 1 % lost", 96 << 10):
            with self.subTest(peer, socket_bytes=socket_bytes):
                with unittest.mock.patch("penstock.client._SOCKET_BYTES", socket_bytes):
                    self.run_with(peer, test, timeout=2.0)  # each fragment begins it again

    def test_many_at_once(self):
        async def test(c):
            pictures = [picture(2000 + i, i) for i in range(200)]
            answers = await asyncio.gather(*(c.infer(p) for p in pictures))
            self.assert_echoed(answers, pictures)
            return c.stats

        self.run_with("echo", test)
        stats = self.run_with("lossy", test)
        self.assertGreater(stats.resends, 0)
        self.assertGreater(stats.duplicates, 0)

    def test_stream(self):
        pictures = [picture(3000 + i, i) for i in range(300)]

        async def generate():
            for p in pictures:
                yield p
                await asyncio.sleep(0)

        async def test(c):
            for frames in pictures, iter(pictures), generate():
                self.assert_echoed([a async for a in c.stream(frames)], pictures)

        for peer in "echo", "lossy", "cookie":
            with self.subTest(peer):
                self.run_with(peer, test)

    def test_stream_copies_frames(self):
        async def test(c):
            frame = np.zeros(3000, np.uint8)

            def frames():
                for i in range(100):
                    frame[:] = i
                    yield frame

            answers = [a async for a in c.stream(frames())]
            self.assertEqual([set(a.payload) for a in answers], [{i} for i in range(100)])

        self.run_with("lossy", test)

    def test_stream_that_fails(self):
        async def broken():
            yield picture(10)
            raise LookupError("camera is away")

        async def test(c):
            with self.assertRaisesRegex(LookupError, "camera is away"):
                async for _ in c.stream(broken()):
                    pass
            with self.assertRaisesRegex(TypeError, "dtype float64"):
                async for _ in c.stream([np.zeros(3)]):
                    pass
            self.assertTrue((await c.infer(picture(10))).ok)

        self.run_with("echo", test)

    def test_stream_that_is_left(self):
        async def test(c):
            stream = c.stream(picture(2000, i) for i in range(100_000))
            async for _ in stream:
                break
            await stream.aclose()
            self.assertTrue((await c.infer(picture(10))).ok)

        self.run_with("echo", test)

    def test_stream_follows_credit(self):
        async def test(c):
            answers = [a async for a in c.stream(picture(2000, i) for i in range(200))]
            self.assertEqual([a.status for a in answers], 200 * [penstock.Status.OK])

        # client_test.go checks that the manager never held more than it had room for.
        self.run_with("room for four", test, in_flight=4)

    def test_pace(self):
        async def test(c):
            p = picture(300_000)
            a = await c.infer(p)
            self.assert_echoed([a], [p])
            self.assertGreater(a.latency, 0.5 * 300_000 / 2e6)

        self.run_with("echo", test, pace=2e6)

    def test_kinds(self):
        async def test(c):
            a = await c.infer(np.full(600, ord("t"), np.uint8))
            self.assertEqual((a.kind, a.batch, a.model_version), (penstock.Kind.CLASSES, 4, 2))
            self.assertEqual((a.classes.classes.tolist(), a.classes.probabilities.tolist()), ([9, 300], [0.75, 0.125]))
            want = penstock.Stages(0.0003, 0.0015, 0.00004, 0.002, 0.000015)
            self.assertEqual((a.stages, a.objective), (want, 5.0))
            boxes = (await c.infer(np.full(600, ord("b"), np.uint8))).boxes
            self.assertEqual((boxes.classes.tolist(), boxes.scores.tolist()), ([3], [0.5]))
            self.assertEqual(boxes.corners.tolist(), [[0.0, 0.25, 0.5, 1.0]])
            a = await c.infer(np.array([ord("v"), 1, 2, 3], np.uint8))
            self.assertEqual(a.values.tolist(), [1.0, -2.0])

        self.run_with("kinds", test)

    def test_errors(self):
        async def test(c):
            for letter, error, text in (
                ("L", penstock.Late, "late: the manager could not answer in time; the request spent 18.0 ms in the queue"),
                ("I", penstock.Incomplete, "incomplete: 2 of 1 fragments did not arrive; send it again at a lower pace"),
                ("B", penstock.Busy, "busy: the manager has no room; send it again later"),
                ("R", penstock.Refused, "refused: the model does not take a picture of 600 bytes in fragments of 1024; its card says which (input.wire)"),
                ("S", penstock.Refused, "refused: the picture has 600 bytes, and the model takes 784"),
                ("F", penstock.Failed, "failed: the model failed on this picture; the node's log says why"),
            ):  # fmt: skip
                p = np.full(600, ord(letter), np.uint8)
                with self.assertRaises(error) as caught:
                    await c.infer(p)
                self.assertEqual(str(caught.exception), text)
                answers = [a async for a in c.stream([p, np.full(600, ord("t"), np.uint8)])]
                self.assertEqual([a.ok for a in answers], [False, True])
                self.assertEqual(answers[0].status, caught.exception.answer.status)
                with self.assertRaises(error):
                    answers[0].raise_for_status()

        self.run_with("kinds", test)

    def test_dtypes(self):
        async def test(c):
            for dtype in "u1", "<f2", "<f4":
                p = np.arange(24).astype(dtype).reshape(2, 3, 4)
                self.assertEqual((await c.infer(p)).payload, p.tobytes())
            p.flags.writeable = False
            self.assertEqual((await c.infer(p)).values.tolist(), list(range(24)))

        self.run_with("echo", test)

    def test_bad_pictures(self):
        async def test(c):
            for p, error, text in (
                (np.zeros(3), TypeError, "picture has dtype float64: want uint8, float16 or float32"),
                (np.zeros(3, np.int8), TypeError, "dtype int8"),
                (np.zeros(3, bool), TypeError, "dtype bool"),
                (np.zeros(3, ">f4"), TypeError, "dtype >f4"),
                ([1, 2], TypeError, "picture is a list: want a numpy array"),
                (b"12", TypeError, "picture is a bytes"),
                (np.zeros((4, 4), np.uint8).T[1:], ValueError, "not contiguous: send numpy.ascontiguousarray"),
                (np.zeros((0, 3), np.uint8), ValueError, r"picture is empty: it has shape \(0, 3\)"),
                (np.zeros(65535 * 1024 + 1, np.uint8), ValueError, "picture has 67107841 bytes: at most 67107840 fit"),
            ):
                with self.assertRaisesRegex(error, text):
                    await c.infer(p)
            for options in (
                {"deadline": 0.0}, {"deadline": -1.0}, {"priority": 256}, {"priority": -1},
                {"stream_id": -1}, {"stream_id": 1 << 32}, {"lowest_score": -0.1}, {"lowest_score": 1.1},
            ):  # fmt: skip
                with self.assertRaisesRegex(ValueError, "want"):
                    await c.infer(picture(3), **options)
            self.assertEqual(c.stats.datagrams, 0)

        self.run_with("echo", test)

    def test_formats(self):
        async def test(c):
            for shape, dtype, format, want in (
                ((30, 40, 3), "u1", "rgb8", "rgb8 40 30 0"),
                ((30, 40, 4), "u1", "rgba8", "rgba8 40 30 0"),
                ((45, 40), "u1", "nv12", "nv12 40 30 0"),
                ((30, 40, 2), "u1", "yuyv", "yuyv 40 30 0"),
                ((30, 100), "u1", "uyvy10", "uyvy10 40 30 0"),
                ((15, 40, 3), "u1", "yyyyuv", "yyyyuv 40 30 0"),
                ((30, 150), "u1", "rgb10", "rgb10 40 30 0"),
                ((30, 40), "u1", "grey8", "grey8 40 30 0"),
                ((30, 40, 1), "u1", "bayer_gb8", "bayer_gb8 40 30 0"),
                ((30, 40), "<u2", "grey16", "grey16 40 30 0"),
                ((30, 40), "<u2", "bayer_bg12", "bayer_bg12 40 30 0"),
                ((30, 50), "u1", "grey10p", "grey10p 40 30 0"),
                ((30, 60), "u1", "bayer_rg12packed", "bayer_rg12packed 40 30 0"),
                ((30, 128), "u1", penstock.Picture("bgr8", 42, 30, 128), "bgr8 42 30 128"),
                ((1800,), "u1", penstock.Picture("i420", 40, 30), "i420 40 30 0"),
            ):
                p = np.zeros(shape, dtype)
                a = await c.infer(p, format=format)
                self.assertEqual((a.text.text, a.largest_picture), (want, 1 << 20))
                self.assertEqual([a.text.text async for a in c.stream([p, p], format=format)], [want, want])
            sent = c.stats.datagrams
            for shape, dtype, format, text in (
                ((30, 40, 3), "u1", "rgb", r'format of the picture is "rgb": want one of rgb8, bgr8, '),
                ((30, 40), "u1", "rgb8", r"picture of rgb8 has an array of uint8 and shape \[30, 40\]: want uint8 of shape \[height, width, 3\]"),
                ((30, 40, 3), "f4", "rgb8", "array of float32"),
                ((30, 40), "u1", "grey12", r"want uint16 of shape \[height, width\]"),
                ((30, 40), "<u2", "grey8", r"want uint8 of shape \[height, width\]"),
                ((30, 40, 3), "u1", "nv12", r"want uint8 of shape \[height \* 3 / 2, width\]"),
                ((30, 40, 3), "u1", "grey10p", r"want uint8 of shape \[height, bytes of a row\]"),
                ((1200,), "u1", "grey8", r"shape \[1200\]: want"),
                ((45, 41), "u1", "nv12", "picture of 41 x 30 of nv12: want an even width and height"),
                ((30, 41, 2), "u1", "uyvy", "picture of 41 x 30 of uyvy: want an even width"),
                ((2, 2), "u1", "bayer_rg8", "want at least 4 x 4 pixels"),
                ((44, 40), "u1", "nv12", "picture of 40 x 29 of nv12: want an even"),
                ((1, 65536), "u1", "grey8", "want 1 to 65535 pixels"),
                ((30, 40, 3), "u1", penstock.Picture("rgb8", 40, 31), "picture of 40 x 31 of rgb8 has 3720 bytes; the array has 3600"),
                ((30, 40, 3), "u1", penstock.Picture("rgb8", 40, 30, 119), "stride is 119 bytes; want the 120 of a row"),
                ((30, 40, 2), "u1", penstock.Picture("uyvy", 40, 30, 0, "bt470"), 'colours of the picture are "bt470": want one of bt601, '),
            ):
                with self.assertRaisesRegex(ValueError, text):
                    await c.infer(np.zeros(shape, dtype), format=format)
            self.assertEqual(c.stats.datagrams, sent)

        self.run_with("pictures", test)

    def test_closed(self):
        async def test():
            c = penstock.Client(PEERS["silent"])
            with self.assertRaises(penstock.Closed):
                await c.infer(picture(3))
            with self.assertRaises(penstock.Closed):
                c.stats
            await c.open()
            with self.assertRaisesRegex(penstock.ClientError, "already open"):
                await c.open()
            waiting = asyncio.ensure_future(c.infer(picture(3)))
            stream = asyncio.ensure_future(c.stream([picture(3)]).__anext__())
            while c.stats.datagrams < 2:
                await asyncio.sleep(0)
            c.close()
            c.close()
            for task in waiting, stream:
                with self.assertRaisesRegex(penstock.Closed, "client was closed"):
                    await task

        asyncio.run(test())

    def test_cancelled(self):
        async def test(c):
            tasks = [asyncio.ensure_future(c.infer(picture(3))) for _ in range(9)]
            while c.stats.datagrams < 8:
                await asyncio.sleep(0)
            tasks[0].cancel()
            while c.stats.datagrams < 9:  # the credit came back
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            self.assertEqual({type(e) for e in ends}, {asyncio.CancelledError})

        self.run_with("silent", test)

    def test_no_answer(self):
        async def test(peer, timeout, text):
            async with penstock.Client(PEERS[peer], timeout=timeout) as c:
                with self.assertRaisesRegex(penstock.Unanswered, text):
                    await c.infer(picture(3000))

        asyncio.run(test("silent", 0.3, "no answer from .* within 0.3 s$"))
        asyncio.run(test("unreachable", 1e6, r"no answer from [\d.:]+: no process listens there$"))  # at once

    def test_deadline_while_waiting_for_credit(self):
        async def test(c):
            tasks = [asyncio.ensure_future(c.infer(picture(3))) for _ in range(8)]
            while c.stats.datagrams < 8:
                await asyncio.sleep(0)
            with self.assertRaisesRegex(penstock.Late, "picture was not sent"):
                await c.infer(picture(3), deadline=0.001)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run_with("silent", test)


class Sync(Case):
    def test_format(self):
        with penstock.SyncClient(PEERS["pictures"]) as c:
            p = np.zeros((30, 40, 3), np.uint8)
            answers = [c.infer(p, format="bgr8"), *c.stream([p], format="bgr8")]
            self.assertEqual([a.text.text for a in answers], ["bgr8 40 30 0"] * 2)

    def test_infer(self):
        for peer in "echo", "lossy", "cookie":
            with penstock.SyncClient(PEERS[peer], timeout=PATIENCE) as c:
                for n in 1, 49_152, 1_000_000:
                    p = picture(n)
                    self.assert_echoed([c.infer(p)], [p])

    def test_threads(self):
        errors = []
        with penstock.SyncClient(PEERS["lossy"], timeout=PATIENCE) as c:

            def work(seed):
                for i in range(20):
                    p = picture(3000 + i, seed)
                    if c.infer(p).payload != p.tobytes():
                        errors.append((seed, i))

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual(errors, [])

    def test_stream(self):
        pictures = [picture(3000 + i, i) for i in range(300)]
        for peer in "echo", "lossy":
            with penstock.SyncClient(PEERS[peer], timeout=PATIENCE) as c:
                for frames in pictures, iter(pictures):
                    self.assert_echoed(list(c.stream(frames)), pictures)

    def test_two_streams(self):
        with penstock.SyncClient(PEERS["echo"], timeout=PATIENCE) as c:
            one, two = ([picture(2000, seed + i) for i in range(50)] for seed in (0, 50))
            for p, q, a, b in zip(one, two, c.stream(one), c.stream(two)):
                self.assert_echoed([a, b], [p, q])

    def test_stream_that_fails_or_is_left(self):
        with penstock.SyncClient(PEERS["echo"], timeout=PATIENCE) as c:
            with self.assertRaisesRegex(TypeError, "dtype float64"):
                list(c.stream([np.zeros(3)]))
            for _ in c.stream(picture(2000, i) for i in range(100_000)):
                break
            self.assertTrue(c.infer(picture(10)).ok)
            left = c.stream(picture(2000, i) for i in range(100_000))
            next(left)
        with self.assertRaises(penstock.Closed):
            list(left)

    def test_closed(self):
        c = penstock.SyncClient(PEERS["silent"])
        with self.assertRaises(penstock.Closed):
            c.infer(picture(3))
        with self.assertRaises(penstock.Closed):
            list(c.stream([]))
        c.open()
        ends = []

        def wait():
            try:
                c.infer(picture(3))
            except penstock.Closed as e:
                ends.append(str(e))

        t = threading.Thread(target=wait)
        t.start()
        while c.stats.datagrams == 0:
            time.sleep(0.001)
        c.close()
        t.join()
        self.assertEqual(ends, ["client was closed before the answer"])

    def test_closed_while_threads_infer(self):
        ends = []
        for _ in range(20):
            c = penstock.SyncClient(PEERS["echo"], timeout=PATIENCE)
            c.open()

            def work():
                try:
                    while True:
                        c.infer(picture(3))
                except penstock.Closed:
                    ends.append(1)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for t in threads:
                t.start()
            c.close()
            for t in threads:
                t.join()
        self.assertEqual(len(ends), 60)

    def test_reopened(self):
        c = penstock.SyncClient(PEERS["echo"], timeout=PATIENCE)
        for _ in range(2):
            with c:
                self.assertTrue(c.infer(picture(3)).ok)

    def test_unresolved(self):
        with self.assertRaisesRegex(penstock.ClientError, "resolve no-such-host.invalid: "):
            penstock.SyncClient("no-such-host.invalid:5001").open()


class Socket:
    """A socket that refuses some messages with an error: those in which refuses(number, control) is true."""

    def __init__(self, socket, error, refuses):
        self._socket, self._error, self._refuses = socket, error, refuses
        self.refused = self._sent = 0

    def __getattr__(self, name):
        return getattr(self._socket, name)

    def sendmsg(self, buffers, control):
        self._sent += 1
        if self._refuses(self._sent, control):
            self.refused += 1
            raise self._error
        return self._socket.sendmsg(buffers, control)


class Refusals(Case):
    def infer_with(self, error, refuses):
        async def run():
            async with penstock.Client(PEERS["echo"], timeout=PATIENCE) as c:
                await c.infer(picture(1))  # an address that never answered ends requests at once
                ((path, opened),) = c._sockets.items()
                c._sockets[path] = s = Socket(opened, error, refuses)
                pictures = [picture(100_000, i) for i in range(5)]
                self.assert_echoed([await c.infer(p) for p in pictures], pictures)
                self.assertGreater(s.refused, 0)
                return s.refused, c.stats

        return asyncio.run(run())

    def test_full_buffer(self):
        self.infer_with(BlockingIOError(), lambda n, control: n % 2 == 0)

    def test_unreachable_once(self):
        refused, stats = self.infer_with(ConnectionRefusedError(), lambda n, control: n % 3 == 0)
        self.assertEqual((stats.unreachable, stats.send_errors), (refused, 0))

    def test_device_without_segmentation(self):
        for number in errno.EMSGSIZE, errno.EINVAL, errno.EIO, errno.EOPNOTSUPP:
            refused, stats = self.infer_with(OSError(number, ""), lambda n, control: bool(control))
            self.assertLessEqual(refused, 2)  # both trains of the picture were ready
            self.assertEqual(stats.send_errors, 0)

    def test_other_errors_are_losses(self):
        refused, stats = self.infer_with(OSError(errno.ENOBUFS, ""), lambda n, control: n % 4 == 0)
        self.assertEqual(stats.send_errors, refused)


class Addresses(unittest.TestCase):
    def test_bad(self):
        for address in "", "host", "host:", "host:1,", "host:1,host", ":5001", "host:0", "host:65536", "host:http", "host:-1", "host:5 ":
            with self.assertRaisesRegex(ValueError, "want HOST:PORT"):
                penstock.Client(address)
        with self.assertRaisesRegex(ValueError, "brackets"):
            penstock.Client("::1:5001")

    def test_good(self):
        for address in "host:1", "127.0.0.1:65535", "[::1]:5001", "host:1,[::1]:5001":
            penstock.Client(address)
            penstock.Client(address, trusted=["10.0.0.0/8", "2001:db8::/32"])
        with self.assertRaises(ValueError):
            penstock.Client("host:1", trusted=["10.0.0.1/8"])

    def test_options(self):
        for options in {"timeout": 0}, {"fragment_bytes": 0}, {"fragment_bytes": 1 << 16}, {"pace": 0}, {"in_flight": 0}:
            with self.assertRaisesRegex(ValueError, "want"):
                penstock.SyncClient("host:1", **options)
