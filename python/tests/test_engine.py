"""The protocol without a socket, in simulated time."""

import dataclasses
import struct
import unittest

import numpy as np

from penstock import _wire
from penstock._engine import NEVER, Engine, Options
from penstock._limits import Credit, Pace
from penstock._recovery import Recovery
from penstock._wire import Picture
from penstock.answer import Status

US, MS = 1000, 1_000_000
RESEND_AFTER = 100 * MS
COUNT = 48
RECEIVE_BYTES = 416 << 10


def begun(sent_at, round_trip=0):
    r = Recovery(COUNT, RESEND_AFTER)
    r.sent(sent_at, round_trip)
    return r


class Questions(unittest.TestCase):
    def test_double_while_nothing_comes(self):
        r, at = begun(5 * MS), 5 * MS
        for silence in (100, 200, 400, 800):
            at += silence * MS
            self.assertEqual(r.ask_at, at)
            self.assertFalse(r.ask(at - 1))
            self.assertTrue(r.ask(at))
            self.assertEqual((r.ask_at, r.ask(at)), (0, False))
            r.sent(at, 0)

    def test_follow_the_longest_nack(self):
        r = begun(0)
        self.assertTrue(r.follow(4 * MS, 10))
        r.sent(5 * MS, 0)
        self.assertEqual(r.ask_at, 11 * MS)
        self.assertTrue(r.ask(11 * MS))
        r.sent(11 * MS, 0)
        self.assertEqual(r.ask_at, 23 * MS)
        r.follow(12 * MS, 10)
        r.sent(13 * MS, 0)
        self.assertEqual(r.ask_at, 19 * MS)

    def test_bounds(self):
        r = begun(0)
        r.follow(10 * US, 10)
        r.sent(20 * US, 0)
        self.assertEqual(r.ask_at, 20 * US + MS)
        r.follow(20 * US + 90 * MS, 10)
        r.sent(200 * MS, 0)
        self.assertEqual(r.ask_at, 300 * MS)

    def test_wait_while_an_answer_arrives(self):
        r = begun(0)
        r.follow(MS, 10)
        r.sent(2 * MS, 0)
        for now, round_trip, last, ask_at in (
            (3, 0, False, 9.25), (4, 10, False, 24), (5, 80, False, 105), (6, 80, True, 6),
        ):  # fmt: skip
            r.answered_in_part(now * MS, round_trip * MS, last)
            self.assertEqual(r.ask_at, ask_at * MS)


class Nacks(unittest.TestCase):
    def test_ignored_while_fragments_are_sent(self):
        self.assertFalse(Recovery(COUNT, RESEND_AFTER).follow(MS, 3))

    def test_ignored_for_a_round_trip(self):
        r = begun(0, 2 * MS)
        self.assertFalse(r.follow(2 * MS - 1, 3))
        self.assertTrue(r.follow(2 * MS, 3))

    def test_ignored_for_longer_if_nothing_arrives(self):
        r, now = begun(0), MS
        r.follow(now, 8)
        for missing, ignored in (8, 500), (8, 1000), (8, 2000), (7, 4000), (3, 4000):
            r.sent(now, 0)
            self.assertFalse(r.follow(now + ignored * US - 1, missing))
            now += ignored * US
            self.assertTrue(r.follow(now, missing))

    def test_answer_to_a_question_is_followed_at_once(self):
        r = begun(0)
        r.follow(MS, 8)
        r.sent(MS, 0)
        self.assertTrue(r.ask(r.ask_at))
        r.sent(20 * MS, 5 * MS)
        self.assertTrue(r.follow(20 * MS + 10 * US, 8))


class Credits(unittest.TestCase):
    def test_probes(self):
        c, now, pause = Credit(1), 0, MS
        c.sent(False)
        for _ in range(12):
            c.answered(0, 0)
            self.assertEqual(c.allow(now, 1), (False, False))
            self.assertEqual(c.allow(now, 0), (False, False))
            now += pause
            self.assertEqual(c.allow(now - 1, 0), (False, False))
            self.assertEqual(c.allow(now, 0), (True, True))
            c.sent(True)
            pause = min(2 * pause, 128 * MS)
        c.answered(1, 0)
        c.sent(False)
        c.answered(0, 0)
        c.allow(now, 0)
        self.assertEqual(c.probe_at, now + MS)

    def test_requests_that_the_manager_has_not_seen(self):
        c = Credit(8)
        c.answered(5, 3)
        self.assertEqual(c.more, 2)
        c.answered(2, 3)
        self.assertEqual(c.more, 0)

    def test_pace(self):
        p = Pace(1e6, 1000, 0)
        self.assertEqual(p.budget(0), 1000)
        p.spend(1500)
        self.assertEqual(p.budget(0), -500)
        self.assertEqual(p.wait(0), 1_500_000 + 1)
        self.assertAlmostEqual(p.budget(MS), 500)
        self.assertEqual(p.budget(10 * MS), 1000)
        self.assertEqual(Pace(0, 1, 0).wait(0), 0)


OPTIONS = Options(
    peer="test:1", fragment_bytes=1024, timeout=2000 * MS, in_flight=8, pace=0.0, burst_bytes=1 << 16, max_result_bytes=9999
)


class Peer:
    """An engine and the datagrams that it sent."""

    def __init__(self, options=OPTIONS, segments=True, given=(("192.0.2.1", 5001),), **changes):
        options = dataclasses.replace(options, **changes)
        self.engine = Engine(options, given, 0, segments, RECEIVE_BYTES)
        self.path = self.engine.paths[0]
        self.answers = []
        self.asked = []  # fragments of the answer that the latest datagram with an extension names
        self.now = 0

    def submit(self, size=3000, deadline=0, priority=0, picture=None):
        wanted = _wire.Wanted(deadline, priority, picture=picture)
        return self.engine.submit(np.zeros(size, np.uint8), wanted, self.now, self.answers.append)

    def sent(self):
        """The headers of what is sent now: request, index, flags, cookie."""
        self.engine.expire(self.now)
        out = []
        while True:
            messages = self.engine.fill(self.now)
            if not messages:
                return out
            for m in messages:
                for d in m.split() if m.segment else [m]:
                    b = b"".join(bytes(x) for x in d.buffers)
                    flags, request, index = b[3], *struct.unpack_from("<I8xH", b, 4)
                    cookie = struct.unpack_from("<Q", b, 22 + 16)[0] if flags & 8 else 0
                    if flags & 8:
                        base, span = struct.unpack_from("<HH", b, 22 + 24)
                        bits = int.from_bytes(b[22 + 28 : 22 + 60], "little")
                        self.asked = [base + i for i in range(span) if bits >> i & 1]
                    out.append((request, index, flags, cookie))

    def answer(self, request, status=0, credit=8, cookie=0, objective=0, kind=0, payload=b"", index=0, size=1024, largest=0):
        count = max(1, -(-len(payload) // size))
        part = payload[index * size : (index + 1) * size]
        kind_of = 4 if status == 3 else 2
        b = struct.pack(
            "<2sBBIIIHHH", b"PS", 1 << 4 | kind_of, index == count - 1, request, index * size, len(payload), index, count, len(part)
        )
        b += struct.pack("<BBHHHIIIIIIQQI4xI4x", status, kind, 1, credit, 0, 1, 0, 0, 0, 0, 0, 0, cookie, objective, largest)
        self.engine.receive(self.path, memoryview(b + part), self.now)

    def nack(self, r, *missing):
        bits = sum(1 << i for i in missing)
        n = max(missing) + 1
        body = struct.pack("<HH", 0, n) + bits.to_bytes((n + 7) // 8, "little")
        b = struct.pack("<2sBBIIIHHH", b"PS", 1 << 4 | 3, 0, r.id, 0, len(r.picture), 0, r.count, len(body)) + body
        self.engine.receive(self.path, memoryview(b), self.now)


class Engines(unittest.TestCase):
    def test_fragments_then_answer(self):
        p = Peer()
        r = p.submit()
        self.assertEqual([(i, f) for _, i, f, _ in p.sent()], [(0, 0), (1, 0), (2, 1)])
        p.now = 5 * MS
        p.answer(r.id, kind=3, payload=b"12345678")
        self.assertEqual([(a.status, a.payload, a.latency) for a in p.answers], [(Status.OK, b"12345678", 0.005)])
        self.assertEqual(p.engine.wake_at(p.now), NEVER)

    def test_credit_bounds_what_is_in_flight(self):
        p = Peer()
        requests = [p.submit(100) for _ in range(20)]
        self.assertEqual(len(p.sent()), 8)
        self.assertEqual(p.engine.room(p.now), 0)
        p.now = 10 * MS
        p.answer(requests[0].id, credit=3)
        self.assertEqual(len(p.sent()), 3)

    def test_nack(self):
        p = Peer()
        r = p.submit(5000)
        p.sent()
        p.now = MS
        p.nack(r, 0, 2, 4)
        self.assertEqual([(i, f) for _, i, f, _ in p.sent()], [(0, 2), (2, 2), (4, 3)])
        self.assertEqual((r.resends, p.engine.stats.nacks), (3, 1))

    def test_nack_of_another_picture(self):
        p = Peer()
        r = p.submit(5000)
        p.sent()
        p.now = MS
        other = p.engine.submit(np.zeros(4000, np.uint8), _wire.Wanted(), 0, p.answers.append)
        other.id = r.id
        p.nack(other, 1)
        self.assertEqual(p.engine.stats.foreign, 1)

    def test_silence(self):
        p = Peer()
        r = p.submit()
        p.sent()
        for at in 100, 300, 700, 1500:
            p.now = at * MS
            self.assertEqual(p.sent(), [(r.id, 0, 2, 0)])
            self.assertEqual(p.sent(), [])
        p.now = 2000 * MS
        p.sent()
        self.assertEqual([a.status for a in p.answers], [Status.UNANSWERED])
        self.assertEqual(p.answers[0].detail, "no answer from test:1 within 2 s")

    def test_timeout_begins_again_with_each_fragment(self):
        p = Peer()
        r = p.submit()
        p.sent()
        for index in 0, 1, 1:  # the second time it is not new
            p.now += 1500 * MS
            p.sent()
            p.answer(r.id, kind=3, payload=bytes(5000), index=index)
        p.now += 499 * MS
        p.sent()
        self.assertEqual(p.answers, [])
        p.now += 1 * MS
        p.sent()
        self.assertEqual([a.status for a in p.answers], [Status.UNANSWERED])

    def test_proof_of_address(self):
        p = Peer()
        r = p.submit()
        p.sent()
        p.answer(r.id, status=3, credit=0, cookie=77)
        self.assertEqual(p.sent(), [(r.id, 0, 2 | 8, 77)])
        p.answer(r.id, status=0, cookie=77)
        self.assertEqual((p.answers[0].status, p.engine.stats.proofs), (Status.OK, 1))
        # The manager restarts: its cookie is another.
        r = p.submit()
        self.assertEqual(p.sent()[0], (r.id, 0, 8, 77))
        p.answer(r.id, status=3, credit=0, cookie=78)
        self.assertEqual(p.sent(), [(r.id, 0, 2 | 8, 78)])
        p.answer(r.id, status=0, cookie=78)
        self.assertEqual([a.status for a in p.answers], [Status.OK, Status.OK])

    def test_busy_with_the_cookie_is_final(self):
        p = Peer()
        r = p.submit()
        p.sent()
        p.now = 100 * MS
        p.sent()  # a question: it draws one more busy answer
        p.answer(r.id, status=3, credit=0, cookie=77)
        p.answer(r.id, status=3, credit=0, cookie=77)
        self.assertEqual(p.answers, [])
        p.answer(r.id, status=3, credit=0, cookie=77)
        self.assertEqual([a.status for a in p.answers], [Status.BUSY])

    def test_busy_for_a_question_before_the_cookie(self):
        p = Peer()
        r, other = p.submit(), p.submit()
        p.sent()
        p.answer(other.id, status=0, cookie=77)
        p.now = 100 * MS
        self.assertEqual(p.sent(), [(r.id, 0, 2 | 8, 77)])
        p.answer(r.id, status=3, credit=0, cookie=77)  # for the first fragment 0, which had no cookie
        self.assertEqual([a.status for a in p.answers], [Status.OK])
        p.answer(r.id, status=3, credit=0, cookie=77)
        self.assertEqual([a.status for a in p.answers], [Status.OK, Status.BUSY])

    def test_queued_request_is_late(self):
        p = Peer()
        first = [p.submit(100) for _ in range(8)]
        p.sent()
        waiting = p.submit(100, deadline=30 * MS)
        p.submit(100)
        p.now = 10 * MS
        p.answer(first[0].id, credit=0, objective=25_000)
        p.sent()
        p.now = 26 * MS
        p.sent()
        late = [a for a in p.answers if a.status is Status.LATE]
        self.assertEqual(len(late), 2)
        self.assertIn("cannot meet the deadline", late[0].detail)
        self.assertIn("function's objective of 25 ms", late[1].detail)
        self.assertFalse(waiting.flying)

    def test_newest_first_in_an_overload(self):
        p = Peer()
        first = [p.submit(100) for _ in range(8)]
        p.sent()
        old = p.submit(100, deadline=100 * MS)
        p.now = 40 * MS
        new = p.submit(100, deadline=100 * MS)
        p.answer(first[0].id, credit=1)
        self.assertEqual([r for r, *_ in p.sent()], [old.id])
        old = p.submit(100, deadline=100 * MS)
        p.now = 95 * MS
        new = p.submit(100, deadline=100 * MS)
        p.answer(first[1].id, credit=1)
        self.assertEqual([r for r, *_ in p.sent()], [new.id])

    def test_answer_in_fragments(self):
        p = Peer()
        r = p.submit()
        p.sent()
        payload = bytes(range(200)) * 20
        for index in 3, 0, 0, 2:
            p.answer(r.id, kind=3, payload=payload, index=index)
        p.answer(r.id, kind=3, payload=payload + b"x", index=1)
        self.assertEqual((p.answers, p.engine.stats.duplicates, p.engine.stats.foreign), ([], 1, 1))
        p.answer(r.id, kind=3, payload=payload, index=1)
        self.assertEqual(p.answers[0].payload, payload)

    def test_questions_while_the_same_fragment_is_lost(self):
        p = Peer()
        r = p.submit()
        p.sent()
        for _ in range(10):
            p.answer(r.id, kind=3, payload=bytes(2000), index=0)
            p.now += 100 * MS
            self.assertEqual(p.sent(), [(r.id, 0, 10, 0)])
        p.answer(r.id, kind=3, payload=bytes(2000), index=1)
        self.assertEqual(p.answers[0].payload, bytes(2000))

    def test_windows_of_an_answer(self):
        p = Peer(max_result_bytes=1 << 30)
        r = p.submit()
        p.sent()
        payload = bytes(1000 * 1024)
        for index in 0, 1, 3, 999:
            p.answer(r.id, kind=3, payload=payload, index=index)
        self.assertEqual(p.sent(), [])
        p.now += 7 * MS  # the rest of the burst did not fit the buffer
        missing = [2, *range(4, 999)]
        while missing:
            p.sent()
            window = missing[: RECEIVE_BYTES // 8 // 1024]
            self.assertEqual(p.asked, window)
            for index in window:
                p.answer(r.id, kind=3, payload=payload, index=index)
            del missing[: len(window)]
        self.assertEqual(p.answers[0].payload, payload)

    def test_loss_in_a_window(self):
        p = Peer(max_result_bytes=1 << 30)
        r = p.submit()
        p.sent()
        payload = bytes(1000 * 1024)
        p.answer(r.id, kind=3, payload=payload, index=0)
        p.now += 7 * MS
        p.sent()
        window = RECEIVE_BYTES // 8 // 1024
        self.assertEqual(p.asked, list(range(1, 1 + window)))
        for index in range(2, 1 + window):
            p.answer(r.id, kind=3, payload=payload, index=index)
        p.sent()  # without a pause: the highest one has come
        self.assertEqual(p.asked, [1, *range(1 + window, 2 * window)])

    def test_answers_share_the_buffer(self):
        p = Peer(max_result_bytes=1 << 30)
        requests = [p.submit() for _ in range(5)]
        p.sent()
        for r in requests:
            p.answer(r.id, kind=3, payload=bytes(1000 * 1024))
        p.now += 7 * MS
        p.sent()
        self.assertEqual(p.asked, list(range(1, 1 + RECEIVE_BYTES // 8 // 1024 // 5)))

    def test_result_too_large(self):
        p = Peer()
        r = p.submit()
        p.sent()
        p.answer(r.id, kind=3, payload=bytes(10_000), index=1)
        self.assertEqual(p.answers[0].detail, "result has 10000 bytes, max_result_bytes is 9999")

    def test_pictures_of_other_formats(self):
        nv12 = Picture("nv12", 40, 30)
        for status, largest, text in (
            (0, 1800, ""),
            (4, 1799, "refused: picture of 40 x 30 of nv12 has 1800 bytes, and the function takes at most 1799"),
            (4, 0, "and the function takes only its card's pictures; set its max_picture"),
            (0, 0, "and the function takes only its card's pictures; set its max_picture"),  # an older node
        ):
            with self.subTest(status=status, largest=largest):
                p = Peer()
                r = p.submit(1800, picture=nv12)
                self.assertEqual(len(p.sent()), 2)
                p.answer(r.id, status=status, largest=largest)
                second = p.submit(1800, picture=nv12)
                self.assertEqual(len(p.sent()), 0 if text else 2)
                p.answer(second.id, status=status, largest=largest)
                for a in p.answers:
                    self.assertEqual(a.status, Status.REFUSED if text else Status.OK)
                    self.assertIn(text, a.detail)
                self.assertEqual((len(p.answers), p.answers[0].largest_picture), (2, largest))

    def test_strays(self):
        p = Peer()
        r = p.submit()
        p.sent()
        p.answer(r.id)
        p.answer(r.id)
        p.answer((r.id + 1) & 0xFFFFFFFF)
        p.engine.receive(p.path, memoryview(b"nonsense"), 0)
        s = p.engine.stats
        self.assertEqual((s.answers, s.duplicates, s.foreign, s.malformed), (1, 1, 1, {"short": 1}))

    def test_withdrawn_request_returns_its_credit(self):
        p = Peer()
        requests = [p.submit(100) for _ in range(9)]
        self.assertEqual(len(p.sent()), 8)
        p.engine.withdraw(requests[0])
        self.assertEqual([r for r, *_ in p.sent()], [requests[8].id])
        self.assertEqual(p.answers, [])

    def test_pace(self):
        p = Peer(Options(**{**OPTIONS.__dict__, "pace": 1e6, "burst_bytes": 10_000}))
        p.submit(100_000)
        n = len(p.sent())
        self.assertLessEqual(n, 11)
        while n < 98:
            p.now = p.engine.wake_at(p.now)
            more = len(p.sent())
            self.assertLessEqual(more, 12)
            n += more
        self.assertGreaterEqual(p.now, 85 * MS)

    def test_without_segmentation(self):
        p = Peer(segments=False)
        p.submit(5000)
        for m in p.engine.fill(0):
            self.assertEqual((m.segment, m.datagrams), (0, 1))

    def test_largest_picture(self):
        p = Peer()
        r = p.submit(_wire.MAX_FRAGMENTS * 1024)
        self.assertEqual(r.count, _wire.MAX_FRAGMENTS)
        self.assertEqual([i for _, i, *_ in p.sent()], list(range(_wire.MAX_FRAGMENTS)))


class TestRenewal(unittest.TestCase):
    def test_refused(self):
        """Each renewal is refused at once, while a request begins each millisecond."""
        p = Peer(key=lambda: b"a key that was taken away", in_flight=100)
        p.path.renew_at = 1
        nonces = set()
        for _ in range(100):
            p.now += MS
            p.submit(10)
            p.sent()
            if p.path.nonce:
                nonces.add(p.path.nonce)
                refusal = _wire.Hello(_wire.PROOF, p.path.nonce, 0)
                p.engine.receive(p.path, memoryview(_wire.encode_hello(refusal)), p.now)
        self.assertEqual(len(nonces), 2)

