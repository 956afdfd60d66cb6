"""Several nodes, in simulated time."""

import ipaddress
import struct
import unittest

import numpy as np

from penstock import _wire
from penstock._engine import NEVER
from penstock.answer import Status
from test_engine import MS, Peer

HOME, OTHER, THIRD, STRANGER = (("192.0.2.%d" % i, 5001) for i in (1, 2, 3, 9))
SECOND = 1000 * MS


class Nodes(Peer):
    """An engine with several addresses."""

    def __init__(self, given=(HOME, OTHER), **changes):
        super().__init__(given=given, **changes)

    def sends(self):
        """The fragments 0 that are sent now: address, request, and whether the client follows."""
        self.engine.expire(self.now)
        out = []
        while messages := self.engine.fill(self.now):
            for m in messages:
                for d in m.split() if m.segment else [m]:
                    b = b"".join(bytes(x) for x in d.buffers)
                    flags, request, index = b[3], *struct.unpack_from("<I8xH", b, 4)
                    if index == 0:
                        follows = bool(flags & 8) and b[22 + 6] == 1
                        out.append((m.path.address, request, follows))
        return out

    def at(self, address):
        return next(p for p in self.engine.paths if p.address == address)

    def answers_from(self, address, request, **answer):
        self.path = self.at(address)
        self.answer(request, **answer)

    def moves(self, address, request, to, lifetime=30, cookie=0):
        ip = ipaddress.ip_address(to[0])
        packed = ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed
        b = struct.pack("<2sBBIIIHHH", b"PS", 1 << 4 | 2, 1, request, 0, 0, 0, 1, 0)
        b += struct.pack("<BBHHHI16sHHQQIIIB3x", 6, 0, 0, 0, 0, 1, packed, to[1], lifetime, 0, cookie, 0, 0, 0, 0)
        self.engine.receive(self.at(address), memoryview(b), self.now)

    def ended(self):
        return [a.status for a in self.answers]


class Moved(unittest.TestCase):
    def test_request_and_those_after_it(self):
        p = Nodes()
        r = p.submit()
        self.assertEqual(p.sends(), [(HOME, r.id, True)])
        p.moves(HOME, r.id, OTHER, 30)
        p.engine.expire(0)
        (m, *more) = p.engine.fill(0)
        self.assertEqual((m.path.address, [b.buffers[0][3] & 2 for b in (m, *more)]), (OTHER, [2, 2]))
        self.assertEqual(sum(m.datagrams for m in (m, *more)), 3)
        p.answers_from(OTHER, r.id)
        later = p.submit()
        self.assertEqual(p.sends(), [(OTHER, later.id, True)])
        p.answers_from(OTHER, later.id)
        p.now = 30 * SECOND
        back = p.submit()
        self.assertEqual(p.sends(), [(HOME, back.id, True)])
        self.assertEqual(p.ended(), [Status.OK] * 2)

    def test_lifetimes(self):
        for lifetime, seconds in (0, 1), (1, 1), (60, 60), (61, 60), (65535, 60):
            p = Nodes()
            r = p.submit(100)
            p.sends()
            p.moves(HOME, r.id, OTHER, lifetime)
            p.sends()
            p.answers_from(OTHER, r.id)
            for p.now, address in (seconds * SECOND - 1, OTHER), (seconds * SECOND, HOME):
                r = p.submit(100)
                self.assertEqual(p.sends(), [(address, r.id, True)], lifetime)
                p.answers_from(address, r.id)

    def test_trust(self):
        for given, trusted, follows in (
            ([HOME], ["192.0.2.8/31"], True),
            ([HOME], ["192.0.2.4/30", "::/0"], False),
            ([HOME, OTHER], [], False),
            ([HOME, OTHER], ["192.0.2.9"], True),
        ):
            p = Nodes(given, trusted=[ipaddress.ip_network(n) for n in trusted])
            r = p.submit(100)
            self.assertEqual(p.sends(), [(HOME, r.id, True)])
            p.moves(HOME, r.id, STRANGER, 30)
            self.assertEqual(p.sends(), [(STRANGER, r.id, True) if follows else (HOME, r.id, False)])
            self.assertEqual(len(p.engine.paths), 2 if follows else 1)

    def test_another_port_is_another_address(self):
        p = Nodes()
        r = p.submit(100)
        p.sends()
        p.moves(HOME, r.id, (OTHER[0], 5002))
        self.assertEqual(p.sends(), [(HOME, r.id, False)])

    def test_one_address_follows_nobody(self):
        p = Nodes([HOME])
        r = p.submit()
        self.assertEqual(p.sends(), [(HOME, r.id, False)])
        p.moves(HOME, r.id, HOME)
        p.moves(HOME, r.id, OTHER)
        self.assertEqual((p.sends(), p.engine.stats.foreign, len(p.engine.paths)), ([], 2, 1))

    def test_own_address(self):
        p = Nodes()
        r = p.submit(100)
        p.sends()
        p.moves(HOME, r.id, HOME, 5)
        self.assertEqual(p.sends(), [(HOME, r.id, False)])
        p.moves(HOME, r.id, OTHER, 5)  # it did not allow that
        self.assertEqual((p.sends(), p.engine.stats.foreign), ([], 1))
        p.answers_from(HOME, r.id)
        for p.now, follows in (5 * SECOND - 1, False), (5 * SECOND, True):
            r = p.submit(100)
            self.assertEqual(p.sends(), [(HOME, r.id, follows)])
            p.answers_from(HOME, r.id)

    def test_back_and_forth(self):
        p = Nodes()
        r = p.submit(100)
        p.sends()
        p.moves(HOME, r.id, OTHER)
        p.sends()
        p.moves(OTHER, r.id, HOME)
        self.assertEqual(p.sends(), [(HOME, r.id, False)])
        p.answers_from(HOME, r.id)
        self.assertEqual(p.ended(), [Status.OK])

    def test_circle(self):
        given = [("192.0.2.%d" % i, 5001) for i in range(1, 7)]
        p = Nodes(given)
        r = p.submit(100)
        hops = []
        for i in range(5):
            ((address, _, follows),) = p.sends()
            self.assertEqual((address, follows), (given[i], i < 4))
            hops.append(address)
            p.moves(address, r.id, given[(i + 1) % 6])
        self.assertEqual((p.sends(), p.engine.stats.foreign), ([], 1))
        p.answers_from(given[4], r.id)
        self.assertEqual(p.ended(), [Status.OK])

    def test_forged(self):
        p = Nodes()
        r = p.submit(100)
        p.sends()
        p.engine._open(OTHER)
        p.moves(OTHER, r.id, OTHER)
        for i in range(1, 100):
            p.moves(HOME, (r.id + i) & 0xFFFFFFFF, OTHER)
        self.assertEqual((p.sends(), p.engine.stats.foreign, p.engine.stats.duplicates), ([], 99, 1))
        p.moves(HOME, r.id, OTHER)
        p.sends()
        p.moves(HOME, r.id, HOME)  # the node before
        self.assertEqual(p.sends(), [])

    def test_malformed(self):
        p = Nodes()
        r = p.submit(100)
        p.sends()
        for to in (OTHER[0], 0), ("0.0.0.0", 1), ("::", 1), ("ff02::1", 1), ("224.0.0.1", 1), ("::ffff:224.0.0.1", 1):
            p.moves(HOME, r.id, to)
        self.assertEqual((p.sends(), p.engine.stats.malformed), ([], {"status": 6}))

    def test_mapped_address(self):
        p = Nodes([HOME, ("2001:db8::1", 5001, 0, 0)])
        r = p.submit(100)
        p.sends()
        p.moves(HOME, r.id, ("2001:db8::1", 5001))
        self.assertEqual(p.sends(), [(("2001:db8::1", 5001, 0, 0), r.id, True)])

    def test_few_paths(self):
        p = Nodes([HOME], trusted=[ipaddress.ip_network("198.51.100.0/24")])
        at = HOME
        for i in range(30):
            r = p.submit(100)
            to = ("198.51.100.%d" % i, 5001)
            self.assertEqual(p.sends(), [(at, r.id, True)])
            p.moves(at, r.id, to)
            self.assertEqual(p.sends(), [(to, r.id, True)])
            p.answers_from(to, r.id)
            at = to
            self.assertLessEqual(len(p.engine.paths), 9)

    def test_paths_in_use(self):
        p = Nodes([HOME], trusted=[ipaddress.ip_network("198.51.100.0/24")])
        requests = [p.submit(100) for _ in range(8)]
        p.sends()
        for i, r in enumerate(requests):
            p.moves(HOME, r.id, ("198.51.100.%d" % i, 5001))
            self.assertEqual(len(p.sends()), 1)
        r = requests[0]
        p.moves(("198.51.100.0", 5001), r.id, ("198.51.100.99", 5001))
        self.assertEqual((p.sends(), len(p.engine.paths)), ([], 9))
        p.answers_from(("198.51.100.7", 5001), requests[7].id)
        self.assertEqual(p.sends(), [(("198.51.100.7", 5001), r.id, True)])

    def test_each_node_has_its_own_credit_and_cookie(self):
        p = Nodes()
        p.answers_from(HOME, p.submit(100).id)
        requests = [p.submit(100) for _ in range(20)]
        p.sends()
        p.answers_from(HOME, requests[0].id, credit=0, cookie=7)
        self.assertEqual(p.sends(), [])
        p.moves(HOME, requests[1].id, OTHER, cookie=7)
        p.engine.expire(0)
        cookies = [struct.unpack_from("<Q", m.buffers[0], 22 + 16)[0] for m in p.engine.fill(0)]
        self.assertEqual(cookies, [0])
        self.assertEqual((p.at(HOME).cookie, p.at(OTHER).cookie, p.at(OTHER).in_flight), (7, 0, 1))
        p.answers_from(OTHER, requests[1].id, credit=3)
        self.assertEqual(len(p.sends()), 3)


class Silent(unittest.TestCase):
    def begun(self, deadline=0, **changes):
        p = Nodes(**changes)
        requests = [p.submit(100, deadline) for _ in range(3)]
        p.sends()
        return p, [r.id for r in requests]

    def test_next_address(self):
        p, requests = self.begun()
        for p.now in 100 * MS, 300 * MS - 1:
            self.assertTrue(all(address == HOME for address, *_ in p.sends()))
        p.now = 300 * MS
        self.assertEqual(p.engine.wake_at(p.now - 1), p.now)
        self.assertEqual(p.sends(), [(OTHER, requests[0], True)])
        p.answers_from(OTHER, requests[0])
        self.assertEqual(p.sends(), [(OTHER, r, True) for r in requests[1:]])
        for r in requests[1:]:
            p.answers_from(OTHER, r)
        later = p.submit(100)
        self.assertEqual(p.sends(), [(OTHER, later.id, True)])
        self.assertEqual(p.ended(), [Status.OK] * 3)

    def test_slow_is_not_silent(self):
        p, requests = self.begun(deadline=1900 * MS)
        p.answers_from(HOME, requests[0], objective=400_000)
        p.now = 399 * MS
        self.assertTrue(all(address == HOME for address, *_ in p.sends()))
        p.answers_from(HOME, requests[1])
        p.now = 798 * MS
        self.assertTrue(all(address == HOME for address, *_ in p.sends()))
        p.now = 799 * MS
        self.assertEqual([address for address, *_ in p.sends()], [OTHER])

    def test_silent_for_the_objective(self):
        """Another node could not answer in time. Later requests go there."""
        p, requests = self.begun()
        p.answers_from(HOME, requests[0], objective=25_000)
        p.now = 290 * MS
        later = p.submit(100)
        self.assertIn((HOME, later.id, True), p.sends())
        p.now = 301 * MS
        self.assertEqual(p.sends(), [(OTHER, later.id, True)])
        self.assertEqual(p.ended(), [Status.OK, Status.LATE, Status.LATE])

    def test_one_address_stays(self):
        p, requests = self.begun(given=[HOME])
        for p.now in 100 * MS, 300 * MS, 1999 * MS:
            self.assertTrue(all(address == HOME for address, *_ in p.sends()))
        p.now = 2000 * MS
        p.sends()
        self.assertEqual(p.ended(), [Status.UNANSWERED] * 3)

    def test_all_are_silent(self):
        p, requests = self.begun()
        for hop in range(1, 5):
            p.now = 300 * MS * hop
            self.assertEqual({address for address, *_ in p.sends()}, {(HOME, OTHER)[hop % 2]})
        p.now = 2000 * MS
        p.sends()
        self.assertEqual((p.ended(), p.engine.wake_at(p.now)), ([Status.UNANSWERED] * 3, NEVER))

    def test_unreachable(self):
        p, requests = self.begun()
        p.engine.refused(p.at(HOME))
        self.assertEqual(p.engine.wake_at(0), 0)
        self.assertEqual(p.sends(), [(OTHER, requests[0], True)])
        p.engine.refused(p.at(HOME))  # of a datagram before
        self.assertEqual(p.sends(), [])

    def test_all_are_unreachable(self):
        p = Nodes([HOME, OTHER, THIRD])
        p.submit(100)
        p.sends()
        for hop in range(5):
            self.assertEqual(p.ended(), [])
            p.engine.refused(p.at((HOME, OTHER, THIRD)[hop % 3]))
            p.sends()
        self.assertEqual(p.ended(), [Status.UNANSWERED])
        self.assertIn("no process listens there", p.answers[0].detail)

    def test_answer_of_the_node_before(self):
        p, requests = self.begun()
        p.now = 300 * MS
        p.sends()
        other = p.at(OTHER)
        self.assertEqual((other.in_flight, other.credit.more), (1, 0))
        p.answers_from(HOME, requests[0], status=3)  # this is no end
        p.answers_from(HOME, requests[1], kind=3, payload=b"12345678", size=4)
        self.assertEqual(p.ended(), [])
        p.answers_from(HOME, requests[2], kind=3, payload=b"12345678")  # it waits for credit
        p.answers_from(HOME, requests[0], kind=3, payload=b"12345678")
        self.assertEqual(([a.payload for a in p.answers], other.in_flight, other.credit.more), ([b"12345678"] * 2, 0, 1))
        p.answers_from(OTHER, requests[0])
        self.assertEqual(p.engine.stats.duplicates, 3)

    def test_withdrawn(self):
        p, requests = self.begun()
        for r in p.engine.requests():
            p.engine.withdraw(r)
        self.assertEqual((p.at(HOME).in_flight, p.at(HOME).credit.more, p.engine.wake_at(0)), (0, 8, NEVER))


class Random(unittest.TestCase):
    def test_nodes_that_do_anything(self):
        """Each request ends once, credit returns, and few paths are open."""
        random = np.random.default_rng(1)
        given = [HOME, OTHER, THIRD]
        p = Nodes(given, trusted=[ipaddress.ip_network("192.0.2.0/28")])
        submitted = 0
        for _ in range(3000):
            p.now += int(random.integers(20 * MS))
            if random.integers(2):
                p.submit(int(random.integers(1, 4000)))
                submitted += 1
            p.sends()
            flying = list(p.engine._flying.values())
            if flying:
                r = flying[random.integers(len(flying))]
                address = r.path.address if random.integers(8) else p.engine.paths[random.integers(len(p.engine.paths))].address
                what = random.integers(8)
                if what < 3:
                    p.answers_from(address, r.id, credit=int(random.integers(9)), status=int(random.choice([0, 0, 0, 1, 2, 3])))
                elif what < 6:
                    p.moves(address, r.id, ("192.0.2.%d" % random.integers(1, 18), 5001), int(random.integers(4)))
                elif what == 6:
                    p.engine.refused(p.at(address))
            self.assertLessEqual(len(p.engine.paths), 11)
            for path in p.engine.paths:
                self.assertEqual(path.in_flight, sum(r.path is path for r in p.engine._flying.values()))
        for _ in range(20):
            p.now += SECOND
            p.sends()
        self.assertEqual((len(p.answers), len(p.engine.requests()), p.engine._assembling), (submitted, 0, 0))
