"""The protocol of a client without a socket.

    submit ──> queued ──credit──> in flight ──answer──────> Request.end
                 │                    │ └─ NACK: the fragments that it names go again
                 │                    │ └─ silence: fragment 0 goes again
                 │                    │ └─ busy, with a new cookie: fragment 0 goes again
                 │                    │ └─ refused, needs a token: all goes again with one
                 │<───────────────────┤ └─ moved, or its node is silent: to another node
                 ├── late             │
                 └── timeout ─────────┴──────────────────> Request.end, unanswered

Pure: the caller passes the time in nanoseconds, passes datagrams in, and sends what fill returns. It calls expire
and fill after each of these, and at wake_at. One thread uses an engine.

Each node has a path. New requests take the path of the present node:

    home ──moved──> away, for a lifetime ──> home
    home ──silent──> the next given address, which is home from now on
"""

from __future__ import annotations

import ipaddress
import os
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _wire
from ._limits import Credit, Pace
from ._recovery import Recovery
from .answer import Answer, Kind, Stages, Status

NEVER = 1 << 62

# One fill returns at most this much, so that the caller reads datagrams between two.
_BURST_BYTES = 256 << 10
# UDP_MAX_SEGMENTS of the first kernels with UDP_SEGMENT, and slightly less than an IPv4 datagram holds.
_TRAIN_DATAGRAMS = 64
_TRAIN_BYTES = 64_000

# The part of the receive buffer that the fragments of one question may fill. The kernel counts 2,304 bytes for 1,024.
_WINDOW_PART = 8

# A token is valid for at least a minute, and is renewed at this age. Between two hellos an answer may come.
_RENEW_AFTER = 30_000_000_000
_HELLO_EVERY = 50_000_000

# How often a request goes to another node, at most. Then it stays.
_MAX_HOPS = 4
# How many times resend_after a silent node gets: the second question is due then.
_SILENCES = 3
# The lifetime of a move.
_MIN_MOVED, _MAX_MOVED = 1_000_000_000, 60_000_000_000
# Nodes to which others may move the client, at most.
_MAX_AWAY = 8

_STATUSES = [Status.OK, Status.LATE, Status.INCOMPLETE, Status.BUSY, Status.REFUSED, Status.FAILED]
_KINDS = [
    Kind.NONE, Kind.CLASSES, Kind.BOXES, Kind.VALUES, Kind.POINTS, Kind.MASKS, Kind.POLYGONS, Kind.EMBEDDING, Kind.MAP, Kind.TEXT, Kind.TENSORS,
]  # fmt: skip
_NO_STAGES = Stages()


@dataclass
class Stats:
    """Counters since the client was opened."""

    datagrams: int = 0  # sent, those sent again included
    resends: int = 0
    answers: int = 0
    nacks: int = 0
    proofs: int = 0  # how often the manager asked for proof of the address
    duplicates: int = 0  # answers and NACKs for requests that had ended
    foreign: int = 0  # those for none of this client's requests
    unreachable: int = 0  # how often the kernel reported that no process listens at the address
    send_errors: int = 0
    malformed: dict[str, int] = field(default_factory=dict)  # by the words of docs/wire.md


@dataclass(frozen=True)
class Options:
    """The options of an engine. Times are in nanoseconds."""

    peer: str
    fragment_bytes: int
    timeout: int
    in_flight: int
    pace: float
    burst_bytes: int
    max_result_bytes: int
    resend_after: int = 100_000_000
    # Networks to whose nodes the client may be moved, in addition to the addresses that it was given.
    trusted: Sequence[Union[ipaddress.IPv4Network, ipaddress.IPv6Network]] = ()
    # The key of the function; None: there is none. It may raise OSError or ValueError.
    key: Optional[Callable[[], bytes]] = None


class Path:
    """The way to one node."""

    __slots__ = ("address", "credit", "in_flight", "cookie", "renew_at", "nonce", "hello_at", "largest", "heard", "unreachable", "stays_until")

    def __init__(self, address: _wire.Address, in_flight: int) -> None:
        self.address = address
        self.credit = Credit(in_flight)
        self.in_flight = 0
        self.cookie = 0
        self.renew_at = 0  # when to ask for another token; 0: the cookie is none
        self.nonce, self.hello_at = b"", 0  # of the last hello; empty: it was answered
        self.largest = NEVER  # largest_picture of the last answer
        self.heard = 0  # when the last datagram came; 0: none
        self.unreachable = 0  # how often the kernel reported that no process listens
        self.stays_until = 0  # until then, no request says that the client follows


@dataclass
class Message:
    """One or more datagrams for a single system call. If segment is not 0, the buffer is a train: datagrams of that
    size, the last of which may be shorter."""

    path: Path
    buffers: list[Any]
    segment: int = 0
    datagrams: int = 1

    def split(self) -> list[Message]:
        """The datagrams of a train, one per message."""
        train = memoryview(self.buffers[0])
        return [Message(self.path, [train[at : at + self.segment]]) for at in range(0, len(train), self.segment)]


class Request:
    """A picture in progress."""

    __slots__ = (
        "id", "picture", "count", "wanted", "end", "queued_at", "timeout_at", "flying", "probe",
        "sent_at", "next", "resend", "resends_left", "resends", "recovery", "echoed", "questions", "unproved",
        "busy", "answer", "present", "size", "round_trip", "first_missing", "asked", "unreachable", "needs_token",
        "path", "hops", "follows",
    )  # fmt: skip

    def __init__(self, id: int, picture: _wire.Bytes, count: int, wanted: _wire.Wanted, now: int) -> None:
        self.id, self.picture, self.count = id, picture, count
        self.wanted = wanted
        self.end: Callable[[Answer], None]
        self.queued_at, self.timeout_at = now, 0
        self.path: Path  # the latest
        self.hops = 0  # how often it went to another node
        self.resends = 0
        self.restart()

    def restart(self) -> None:
        """Forget what was sent, and what came."""
        self.flying = self.probe = False  # a probe is sent without credit
        self.sent_at = 0
        self.next = 0  # fragments below this one were sent
        self.resend: Optional[npt.NDArray[np.bool_]] = None  # fragments to send again
        self.resends_left = 0
        self.recovery: Recovery
        self.echoed = 0  # the cookie in the last fragment 0 that was sent
        self.questions = 0  # how often fragment 0 was sent
        self.unproved = 0  # questions before the first with this cookie
        self.busy = 0  # answers that asked for proof
        self.answer: Optional[bytearray] = None
        self.present: set[int] = set()
        self.size = 0  # of the answer's fragments
        self.round_trip = 0  # of the request and the first fragment of the answer: an upper bound
        self.first_missing = 0  # fragments of the answer below this one have arrived
        self.asked = -1  # the highest fragment of the answer that the latest question named
        self.needs_token = False  # it was refused, and waits for a token
        self.unreachable = 0  # of the path, when the request was sent
        self.follows = False  # the last fragment 0 that was sent said that the client follows

    @property
    def unsent(self) -> bool:
        return self.resends_left > 0 or self.next < self.count

    def mark_resend(self, index: Any) -> None:
        if self.resend is None:
            self.resend = np.zeros(self.count, np.bool_)
        self.resend[index] = True
        self.resends_left = int(np.count_nonzero(self.resend))


class Engine:
    def __init__(self, options: Options, given: Sequence[_wire.Address], now: int, segments: bool, receive_bytes: int) -> None:
        self.options = options
        self._receive_bytes = receive_bytes  # the size of the socket's buffer
        self._assembling = 0  # requests of which some fragments of the answer have arrived
        self.stats = Stats()
        self.segments = segments  # the kernel can split trains
        self._given = given
        self.paths = [Path(given[0], options.in_flight)]  # the client closes sockets of others
        self._home, self._away, self._away_until = self.paths[0], self.paths[0], 0
        self._pace = Pace(options.pace, options.burst_bytes, now)
        self._queued: OrderedDict[int, Request] = OrderedDict()
        self._flying: OrderedDict[int, Request] = OrderedDict()  # in the order of sending
        self._sending: OrderedDict[int, Request] = OrderedDict()  # in flight, with fragments to send
        self._queued_check_at = self._flying_check_at = NEVER
        self._objective = 0
        self._greetings: list[Message] = []  # to send
        # A client that returns on the same port must not take the answers to its predecessor's requests.
        self._next_id = random.getrandbits(32)

    # 1. The caller submits a picture.

    def submit(self, picture: _wire.Bytes, wanted: _wire.Wanted, now: int, end: Callable[[Answer], None]) -> Request:
        """Queue a picture. Its bytes must not change until the engine calls end, once."""
        request_id = self._next_id
        self._next_id = (request_id + 1) & 0xFFFFFFFF
        r = Request(request_id, picture, _wire.fragments(len(picture), self.options.fragment_bytes), wanted, now)
        r.end, r.timeout_at = end, now + self.options.timeout
        self._queued[r.id] = r
        self._queued_check_at = min(self._queued_check_at, self._drop_at(r, self._path(now)), r.timeout_at)
        return r

    def room(self, now: int) -> int:
        """How many pictures would be sent at once, if they were submitted."""
        if self._queued or self._sending or self._pace.budget(now) <= 0:
            return 0
        p = self._path(now)
        allowed, _ = p.credit.allow(now, p.in_flight)
        return max(p.credit.more, 1) if allowed else 0

    def withdraw(self, r: Request) -> None:
        """End a request without an answer. The engine does not call its end."""
        self._remove(r, True)

    def requests(self) -> list[Request]:
        return [*self._queued.values(), *self._flying.values()]

    # 2. Time passes.

    def refused(self, p: Path) -> None:
        """The kernel reports that no process listens at an address. The requests that were sent go to the next one. They
        end if there is none, unless a manager has answered before: it may be restarting."""
        self.stats.unreachable += 1
        p.unreachable += 1
        self._flying_check_at = 0

    def expire(self, now: int) -> None:
        """End requests in flight that took too long, and ask about those that are silent. The caller has passed in
        all datagrams that arrived: an answer may be among them."""
        if now < self._flying_check_at:
            return
        self._flying_check_at = NEVER
        for r in list(self._flying.values()):
            if not r.flying:
                continue  # another one made it leave
            reached, refused, may_leave = r.path.heard > 0, r.path.unreachable > r.unreachable, self._may_leave(r)
            if r.timeout_at <= now or (refused and not may_leave and not reached):
                detail = f"no answer from {self.options.peer}"
                if reached or not refused:
                    detail += f" within {self.options.timeout / 1e9:g} s"
                if refused:
                    detail += ": no process listens there"
                self._give_up(r, Status.UNANSWERED, detail, now)
                continue
            if refused and may_leave or self._silent_at(r) <= now:
                self._leave(r.path)
                continue
            if r.recovery.ask(now):
                r.mark_resend(0)
                self._sending[r.id] = r
            self._check(r)

    def _expire_queued(self, now: int) -> None:
        """End requests that waited for credit for too long."""
        if now < self._queued_check_at:
            return
        self._queued_check_at = NEVER
        for r in list(self._queued.values()):
            drop_at = self._drop_at(r, self._path(now))
            waited = f"{(now - r.queued_at) / 1e6:.1f} ms"
            if drop_at <= now:
                limit = "deadline" if r.wanted.deadline else f"function's objective of {self._objective / 1e6:g} ms"
                detail = f"picture was not sent: after {waited} without credit, it cannot meet the {limit}"
                self._give_up(r, Status.LATE, detail, now)
            elif r.timeout_at <= now:
                detail = f"picture was not sent: {self.options.peer} gave no credit for {waited}"
                self._give_up(r, Status.UNANSWERED, detail, now)
            else:
                self._queued_check_at = min(self._queued_check_at, drop_at, r.timeout_at)

    def _check(self, r: Request) -> None:
        self._flying_check_at = min(self._flying_check_at, r.timeout_at, r.recovery.ask_at or NEVER, self._silent_at(r))

    def _drop_at(self, r: Request, p: Path) -> int:
        """When a waiting request becomes late: the time left is then the round trip. Only requests that are sent
        correct a wrong estimate, so the estimate counts for at most half of the time."""
        lifetime = r.wanted.deadline or self._objective
        if lifetime == 0:
            return NEVER
        return r.queued_at + lifetime - min(p.credit.round_trip, lifetime // 2)

    # 3. Fragments are sent, as credit and pace allow.

    def fill(self, now: int) -> list[Message]:
        """What to send now, at most a burst."""
        self._expire_queued(now)
        messages: list[Message] = []
        budget = min(self._pace.budget(now), _BURST_BYTES)
        while budget > 0:
            if self._sending:
                r = next(iter(self._sending.values()))
            else:
                waiting = self._next_queued(now)
                if waiting is None:
                    break
                p = self._path(now)
                allowed, probe = p.credit.allow(now, p.in_flight)
                if not allowed:
                    break
                r = waiting
                if r.wanted.picture and p.largest < len(r.picture):
                    self._give_up(r, Status.REFUSED, self._refusal(r, p), now)
                    continue
                self._begin(r, p, probe, now)
            size = self._send(r, budget, now, messages)
            budget -= size
            self._pace.spend(size)
            if not r.unsent:
                del self._sending[r.id]
                r.recovery.sent(now, r.path.credit.round_trip)
                self._check(r)
        messages += self._greetings
        self._greetings.clear()
        return messages

    def _next_queued(self, now: int) -> Optional[Request]:
        """The oldest request while it has half of its time left. In a lasting overload the oldest would always be
        late, so then the newest."""
        if not self._queued:
            return None
        oldest = next(iter(self._queued.values()))
        lifetime = oldest.wanted.deadline or self._objective
        if lifetime > 0 and now - oldest.queued_at > lifetime // 2:
            return next(reversed(self._queued.values()))
        return oldest

    def _begin(self, r: Request, p: Path, probe: bool, now: int) -> None:
        p.credit.sent(probe)
        p.in_flight += 1
        del self._queued[r.id]
        self._flying[r.id] = self._sending[r.id] = r
        r.path, r.flying, r.probe, r.sent_at, r.unreachable = p, True, probe, now, p.unreachable
        r.recovery = Recovery(r.count, self.options.resend_after)
        self._check(r)

    def _send(self, r: Request, budget: float, now: int, messages: list[Message]) -> int:
        """Append one message with the next fragments of r. Returns its bytes."""
        again = r.resends_left > 0
        repeated = again or r.hops > 0  # the node may have answered already
        size = self.options.fragment_bytes
        datagram = _wire.HEADER_BYTES + size
        most = min(_TRAIN_DATAGRAMS, _TRAIN_BYTES // datagram, int(min(budget, _BURST_BYTES)) // datagram + 1)
        most = max(most, 1) if self.segments else 1
        if again:
            assert r.resend is not None
            index = np.flatnonzero(r.resend)[:most]
        else:
            index = np.arange(r.next, min(r.next + most, r.count))
        if index[0] == 0:
            index = index[:1]  # a datagram with an extension is longer than others
        n = len(index)
        if again:
            assert r.resend is not None
            r.resend[index] = False
            r.resends_left -= n
            r.resends += n
            self.stats.resends += n
        else:
            r.next += n
        self.stats.datagrams += n

        if index[0] == 0:
            buffers = _wire.encode_first(r.id, r.picture, size, repeated, self._extension(r, now))
            messages.append(Message(r.path, buffers))
            return len(buffers[0]) + len(buffers[1])
        train = _wire.encode_train(r.id, r.picture, size, index, repeated)
        messages.append(Message(r.path, [train], datagram if n > 1 else 0, n))
        return len(train)

    def _extension(self, r: Request, now: int) -> bytes:
        p = r.path
        if p.renew_at and now > p.renew_at:
            self._greet(p, now)
        self._echo(r)
        r.questions += 1
        r.follows = self._follows(r, now)
        drop_at = self._drop_at(r, p)
        missing = self._missing(r)
        # If the deadline has passed, the manager must report that. 0 would mean no deadline.
        wanted = r.wanted._replace(deadline=0 if drop_at == NEVER else max(drop_at - now, 1))
        if wanted == _wire.Wanted() and p.cookie == 0 and not missing and not r.follows:
            return b""
        return _wire.encode_extension(wanted, now, p.cookie, missing, r.follows)

    def _missing(self, r: Request) -> list[int]:
        """The fragments of the answer that a question names: as many as fit the receive buffer, together with those
        of other answers. None before the first fragment: the question is for the whole answer."""
        if r.answer is None:
            return []
        count = _wire.fragments(len(r.answer), r.size)
        while r.first_missing in r.present:
            r.first_missing += 1
        end = min(r.first_missing + _wire.MAX_MISSING, count)
        most = max(1, self._receive_bytes // _WINDOW_PART // max(1, self._assembling) // r.size)
        missing = [i for i in range(r.first_missing, end) if i not in r.present][:most]
        r.asked = missing[-1]
        return missing

    def wake_at(self, now: int) -> int:
        """When the engine has work to do, unless a picture or a datagram comes first."""
        at = self._flying_check_at if self._flying else NEVER
        if self._queued:
            at = min(at, self._queued_check_at)
        probe_at = self._path(now).credit.probe_at
        if probe_at != 0:
            at = min(at, probe_at)
        wait = self._pace.wait(now)
        if wait > 0:
            at = min(at, now + wait)
        return at

    @property
    def pending(self) -> bool:
        """Whether fill may have more to send."""
        return bool(self._sending or self._queued or self._greetings)

    # 4. Datagrams arrive.

    def receive(self, p: Path, datagram: memoryview, now: int) -> None:
        """Take a datagram of a path. The engine does not keep it."""
        try:
            d = _wire.decode(datagram)
        except _wire.Malformed as e:
            word = str(e)
            self.stats.malformed[word] = self.stats.malformed.get(word, 0) + 1
            return
        p.heard = max(now, 1)
        if isinstance(d, _wire.Hello):
            self._handle_hello(p, d, now)
            return
        r = self._flying.get(d.request) or self._queued.get(d.request)
        if r is not None and r.flying and r.path is p:
            if isinstance(d, _wire.Nack):
                self._handle_nack(r, d, now)
            else:
                self._handle_answer(r, p, d, now)
        elif r is not None and r.hops and isinstance(d, _wire.Fragment) and (d.block.status, d.fragments) == (_wire.STATUS_OK, 1):
            self._handle_answer(r, p, d, now)  # of the node before
        else:
            self._count_stray(d.request)

    def _handle_answer(self, r: Request, p: Path, d: _wire.Fragment, now: int) -> None:
        block = d.block
        if block.cookie != 0:
            p.cookie = block.cookie
        self._set_objective(block.objective * 1000)
        p.largest = block.largest_picture
        if block.status == _wire.STATUS_MOVED:
            self._move(r, block, now)
            return
        if block.status == _wire.STATUS_BUSY and block.credit == 0 and block.cookie != 0:
            r.busy += 1
            prove = block.cookie != r.echoed
            if prove:
                self._prove(r, 1)
            if prove or r.busy <= r.unproved:  # it answers a question before the proof
                return
        if block.status == _wire.STATUS_REFUSED and block.needs_token and self.options.key:
            if r.echoed != p.cookie:  # another request has got a token meanwhile
                self._prove(r, r.next)
            else:
                r.needs_token = True
                self._greet(p, now)
            return
        if d.total > self.options.max_result_bytes:
            most = self.options.max_result_bytes
            self._give_up(r, Status.UNANSWERED, f"result has {d.total} bytes, max_result_bytes is {most}", now)
            return
        if r.wanted.picture and block.status == _wire.STATUS_OK and p.largest == 0:
            # The model ran on what the node took for a picture of the card.
            self._give_up(r, Status.REFUSED, self._refusal(r, p), now)
            return
        stages = block.aggregate + block.queue + block.gather + block.infer + block.reply
        payload = self._assemble(r, d, now, now - r.sent_at - stages * 1000)
        if payload is None:
            return
        before = not r.flying or r.path is not p
        if r.resends == 0 and block.status == _wire.STATUS_OK and not before:
            p.credit.measure(now - r.sent_at - stages * 1000)
        self._remove(r, before)
        p.credit.answered(block.credit, self._sent_since(p, now - p.credit.round_trip))
        self.stats.answers += 1
        r.end(self._answer(r, block, payload, now))

    def _assemble(self, r: Request, d: _wire.Fragment, now: int, round_trip: int) -> Optional[bytes]:
        """The answer's payload, None while fragments are missing."""
        if d.fragments == 1:
            return bytes(d.payload)
        if r.answer is None:
            r.answer, r.size, r.round_trip = bytearray(d.total), d.size, round_trip
            self._assembling += 1
        if d.total != len(r.answer) or d.size != r.size:
            self.stats.foreign += 1
            return None
        last = False
        if d.fragment in r.present:
            self.stats.duplicates += 1
        else:
            last = d.fragment == r.asked
            r.present.add(d.fragment)
            r.timeout_at = now + self.options.timeout
            r.answer[d.offset : d.offset + len(d.payload)] = d.payload
            if len(r.present) == d.fragments:
                return bytes(r.answer)
        r.recovery.answered_in_part(now, r.round_trip, last)
        self._check(r)
        return None

    def _answer(self, r: Request, block: _wire.Block, payload: bytes, now: int) -> Answer:
        stages = Stages(
            block.aggregate / 1e6, block.queue / 1e6, block.gather / 1e6, block.infer / 1e6, block.reply / 1e6
        )
        detail = ""
        status = _STATUSES[block.status]
        if status is Status.LATE:
            detail = f"late: the manager could not answer in time; the request spent {stages.queue * 1e3:.1f} ms in the queue"
        elif status is Status.INCOMPLETE:
            detail = f"incomplete: {block.missing} of {r.count} fragments did not arrive; send it again at a lower pace"
        elif status is Status.BUSY:
            detail = "busy: the manager has no room; send it again later"
        elif status is Status.REFUSED and block.needs_token:
            detail = "refused: the function needs a key; set key_file"
        elif status is Status.REFUSED:
            detail = self._refusal(r, r.path, block.picture_bytes)
        elif status is Status.FAILED:
            detail = "failed: the model failed on this picture; the node's log says why"
        return Answer(
            status, _KINDS[block.kind], payload, block.batch, block.model_version, block.missing, stages,
            block.objective / 1e6, (now - r.queued_at) / 1e9, r.resends, detail, block.largest_picture,
        )  # fmt: skip

    def _refusal(self, r: Request, path: Path, wanted: int = 0) -> str:
        """Why the function does not take a picture. Its card's pictures have that many bytes, if it is not 0."""
        size, p = len(r.picture), r.wanted.picture
        if p and path.largest < size:
            text = f"refused: picture of {p.width} x {p.height} of {p.format} has {size} bytes, and the function takes "
            return text + (f"at most {path.largest}" if path.largest else "only its card's pictures; set its max_picture")
        if not p and wanted not in (0, size):
            return f"refused: the picture has {size} bytes, and the model takes {wanted}"
        return (
            f"refused: the model does not take a picture of {size} bytes in fragments of {self.options.fragment_bytes}; "
            "its card says which (input.wire)"
        )

    def _prove(self, r: Request, fragments: int) -> None:
        """Send the first fragments again, with the cookie. One is enough for a cookie: the manager keeps an answer for
        an address with proof. It keeps nothing of a request without a token."""
        self.stats.proofs += 1
        r.needs_token = False
        r.recovery.prove()
        self._echo(r)
        r.mark_resend(slice(fragments))
        self._send_first(r)

    def _greet(self, p: Path, now: int) -> None:
        """Send a hello, unless the answer to one may be on its way. If it gets lost, a question about the request is
        refused, too, and the next hello goes."""
        if not p.nonce or now - p.hello_at >= _HELLO_EVERY:
            p.nonce, p.hello_at = os.urandom(16), now
            self._greetings.append(Message(p, [_wire.encode_hello(_wire.Hello(_wire.HELLO, p.nonce, 0))]))

    def _handle_hello(self, p: Path, d: _wire.Hello, now: int) -> None:
        if d.nonce != p.nonce or self.options.key is None:
            self.stats.foreign += 1
            return
        if d.kind == _wire.HELLO:
            try:
                key = self.options.key()
            except (OSError, ValueError):
                return  # it was right when the client was made: the requests end unanswered
            self._greetings.append(Message(p, [_wire.encode_hello(d._replace(kind=_wire.PROOF), key)]))
            return
        p.nonce = b""
        if d.value:
            p.cookie, p.renew_at = d.value, now + _RENEW_AFTER
        elif p.renew_at:
            p.renew_at = now + _HELLO_EVERY  # a wrong key may be corrected
        for r in [r for r in self._flying.values() if r.needs_token and r.path is p]:
            if d.value:
                self._prove(r, r.next)
            else:
                self._give_up(r, Status.REFUSED, "refused: the function does not have the first key of key_file", now)
                p.credit.answered(0, 0)

    def _echo(self, r: Request) -> None:
        """Note that fragment 0 is sent with the cookie. Each question before it may draw a busy answer with the same
        cookie, so that one more such answer is final."""
        if r.echoed != r.path.cookie:
            r.echoed, r.unproved = r.path.cookie, r.questions

    def _handle_nack(self, r: Request, d: _wire.Nack, now: int) -> None:
        if d.fragments != r.count or d.total != len(r.picture):
            self.stats.foreign += 1
            return
        self.stats.nacks += 1
        if r.recovery.follow(now, len(d.missing)):
            r.mark_resend(d.missing)
            self._send_first(r)
        elif r.recovery.ask_at:
            self._check(r)

    def _send_first(self, r: Request) -> None:
        """Send r before the requests that are being sent: it is older."""
        if r.id not in self._sending:
            self._sending[r.id] = r
            self._sending.move_to_end(r.id, last=False)

    def _set_objective(self, nanoseconds: int) -> None:
        if nanoseconds not in (0, self._objective):
            self._objective = nanoseconds
            self._queued_check_at = 0

    def _sent_since(self, p: Path, at: int) -> int:
        n = 0
        for r in reversed(self._flying.values()):
            if r.sent_at <= at:
                break
            n += r.path is p
        return n

    def _count_stray(self, request: int) -> None:
        # RFC 1982: an id that was given out is before the next one.
        if 0 < (self._next_id - request) & 0xFFFFFFFF < 1 << 31:
            self.stats.duplicates += 1
        else:
            self.stats.foreign += 1

    # 5. Another node takes requests.

    def _path(self, now: int) -> Path:
        """The path of new requests."""
        return self._away if now < self._away_until else self._home

    def _open(self, address: _wire.Address) -> Optional[Path]:
        """The path to an address; None if too many are in use."""
        for p in self.paths:
            if p.address == address:
                return p
        if len(self.paths) >= len(self._given) + _MAX_AWAY:
            idle = next((p for p in self.paths if p.in_flight == 0 and p not in (self._home, self._away)), None)
            if idle is None:
                return None
            self.paths.remove(idle)
        self.paths.append(Path(address, 1))  # other clients may come at the same time, each with all its requests
        return self.paths[-1]

    def _trusts(self, address: _wire.Address) -> bool:
        return address in self._given or any(ipaddress.ip_address(address[0]) in n for n in self.options.trusted)

    def _follows(self, r: Request, now: int) -> bool:
        """Whether r may be moved."""
        return (len(self._given) > 1 or bool(self.options.trusted)) and r.hops < _MAX_HOPS and now >= r.path.stays_until

    def _move(self, r: Request, block: _wire.Block, now: int) -> None:
        """Send a request to the node that the answer names, and new ones for the lifetime. If the client does not trust
        it, they stay."""
        if not r.follows:  # it did not allow the answer
            self.stats.foreign += 1
            return
        until = now + min(max(block.lifetime * 1_000_000_000, _MIN_MOVED), _MAX_MOVED)
        to = self._open(block.moved) if self._trusts(block.moved) else None
        if to is None or to is r.path:
            r.path.stays_until = until
        elif to is self._home:  # which must not move the client again
            self._away_until, to.stays_until = 0, until
        else:
            self._away, self._away_until = to, until
        self._queue_again(r)

    def _may_leave(self, r: Request) -> bool:
        """Whether another node could take a request in flight."""
        return r.hops < _MAX_HOPS and (len(self._given) > 1 or r.path is not self._home)

    def _silent_at(self, r: Request) -> int:
        """When a request in flight shows that its node is silent."""
        left = r.recovery.left_at
        if left is None or not self._may_leave(r):
            return NEVER
        return max(left, r.path.heard) + max(_SILENCES * self.options.resend_after, self._objective)

    def _leave(self, p: Path) -> None:
        """Go on to another node, with all requests that are in flight at this one."""
        if self._away is p:
            self._away_until = 0
        if self._home is p:
            self._home = self._open(self._given[(self._given.index(p.address) + 1) % len(self._given)]) or p
        for r in reversed(list(self._flying.values())):
            if r.path is p and r.hops < _MAX_HOPS:
                self._queue_again(r)

    def _queue_again(self, r: Request) -> None:
        """Make a request in flight wait for credit again, before those that were not sent."""
        self._remove(r, True)
        r.restart()
        r.hops += 1
        self._queued[r.id] = r
        self._queued.move_to_end(r.id, last=False)
        self._queued_check_at = 0

    # 6. A request ends.

    def _give_up(self, r: Request, status: Status, detail: str, now: int) -> None:
        self.withdraw(r)
        r.end(
            Answer(
                status, Kind.NONE, b"", 0, 0, 0, _NO_STAGES,
                self._objective / 1e9, (now - r.queued_at) / 1e9, r.resends, detail,
            )  # fmt: skip
        )

    def _remove(self, r: Request, unanswered: bool) -> None:
        """Remove a request. If its node has not answered it, it returns its credit."""
        if r.flying:
            r.path.in_flight -= 1
            if unanswered and not r.probe:
                r.path.credit.given_up()
        self._queued.pop(r.id, None)
        self._flying.pop(r.id, None)
        self._sending.pop(r.id, None)
        if r.answer is not None:
            self._assembling -= 1
