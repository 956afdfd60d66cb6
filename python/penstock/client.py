"""Clients of a function of a Penstock node: Client for asyncio, SyncClient without it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import ipaddress
import math
import queue
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _wire
from ._engine import NEVER, Engine, Message, Options, Path, Request, Stats
from .answer import Answer, ClientError, Closed

Array = npt.NDArray[Any]
Format = Union[None, str, _wire.Picture]

# The kernel limits the buffers to net.core.rmem_max and wmem_max.
_SOCKET_BYTES = 4 << 20
# Linux's numbers of udp(7), which Python does not name.
_SOL_UDP, _UDP_SEGMENT = 17, 103
# Datagrams that are read before the event loop runs other callbacks.
_READS = 256
# Answers and frames that a stream holds, at most.
_WINDOW = 1024
_CLOSED = "client was closed before the answer"
_DTYPES = [np.dtype(name) for name in ("u1", "<f2", "<f4")]


class Client:
    """A client of a function, for one asyncio event loop.

        async with penstock.Client("host:5001") as client:
            answer = await client.infer(picture)

    address: HOST:PORT, or several with commas between them. The client sends to one node, and goes on to the next address
        if that one is silent or sends the client there.
    timeout: seconds after which a request ends unanswered. Each new fragment of an answer begins it again.
    fragment_bytes: size of a picture's fragments.
    pace: max bytes sent per second. None is no limit but the manager's credit.
    in_flight: requests in flight before the first answer sets the credit.
    max_result_bytes: size of the largest result.
    key_file: a file with a key of the function, if it has any. Its first line is read again for each token.
    trusted: networks, as in "10.1.0.0/16", to whose nodes the client may be moved, in addition to its addresses.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 2.0,
        fragment_bytes: int = 1024,
        pace: Optional[float] = None,
        in_flight: int = 8,
        max_result_bytes: int = 64 << 20,
        key_file: Optional[str] = None,
        trusted: Sequence[str] = (),
    ) -> None:
        self._addresses = [_parse_address(a) for a in address.split(",")]
        if not 1 <= fragment_bytes <= _wire.MAX_FRAGMENT_BYTES:
            raise ValueError(f"fragment_bytes is {fragment_bytes}: want 1 to {_wire.MAX_FRAGMENT_BYTES}")
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout} s: want more than 0")
        if pace is not None and not pace > 0:
            raise ValueError(f"pace is {pace} bytes per second: want more than 0, or None for no limit")
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}: want at least 1")
        self._options = Options(
            peer=address,
            fragment_bytes=fragment_bytes,
            timeout=_nanoseconds(timeout),
            in_flight=in_flight,
            pace=pace or 0.0,
            burst_bytes=64 << 10,
            max_result_bytes=max_result_bytes,
            key=functools.partial(_read_key, key_file) if key_file else None,
            trusted=[ipaddress.ip_network(n) for n in trusted],
        )
        if self._options.key:
            self._options.key()
        self._open = False
        self._sockets: dict[Path, socket.socket] = {}
        self._loop: asyncio.AbstractEventLoop
        self._engine: Engine
        self._unsent: deque[Message] = deque()  # that the socket did not take yet
        self._timer: Optional[asyncio.TimerHandle] = None
        self._timer_at = NEVER
        self._pump_scheduled = False
        self._room_waiters: deque[_RoomWaiter] = deque()
        self._closers: dict[Request, Callable[[], None]] = {}
        self._buffer = memoryview(bytearray(1 << 16))

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    async def open(self) -> None:
        """Open a socket. It sends no datagram: only the first answer shows whether a manager listens."""
        if self._open:
            raise ClientError(f"open client: it is already open to {self._options.peer}")
        self._loop = asyncio.get_running_loop()
        given: list[_wire.Address] = []
        for host, port in self._addresses:
            try:
                found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            except socket.gaierror as e:
                raise ClientError(f"resolve {host}: {e.strerror}") from e
            given += [_wire.address(a[0], *a[1:2], *a[3:]) for *_, a in found]
        given = list(dict.fromkeys(given))
        for tries in range(len(given)):
            try:
                s = _connect(given[0])
                break
            except OSError as e:
                if tries == len(given) - 1:
                    raise ClientError(f"open socket to {self._options.peer}: {e.strerror}") from e
                given.append(given.pop(0))
        receive_bytes = s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self._engine = Engine(self._options, given, time.monotonic_ns(), _can_segment(s), receive_bytes)
        self._open = True
        self._sockets[self._engine.paths[0]] = s
        self._loop.add_reader(s.fileno(), self._read)

    def close(self) -> None:
        """Close the sockets. Requests in flight end with Closed."""
        if not self._open:
            return
        self._open = False
        for p in list(self._sockets):
            self._close_socket(p)
        if self._timer is not None:
            self._timer.cancel()
        waiters = [w.closed for w in self._room_waiters]
        for r in self._closers:
            self._engine.withdraw(r)
        waiters += self._closers.values()
        self._room_waiters.clear()
        self._closers.clear()
        for closed in waiters:
            closed()

    @property
    def stats(self) -> Stats:
        """Live counters."""
        if not hasattr(self, "_engine"):
            raise _not_open()
        return self._engine.stats

    async def infer(
        self,
        picture: Array,
        *,
        deadline: Optional[float] = None,
        priority: int = 0,
        stream_id: int = 0,
        lowest_score: float = 0.0,
        format: Format = None,
    ) -> Answer:
        """Send a picture and return its answer, which is ok; a RequestError is raised otherwise.

        The array's bytes are sent as they are: the type and order must be those of format. The array must not change
        before the answer.

        deadline: seconds for which an answer is useful; the function's objective by default.
        priority: 0 to 255. Of requests that wait together, the higher goes first.
        stream_id: one of this client's streams, for functions that keep a state per stream.
        lowest_score: up to 1. The answer has nothing below it; 0 is the card's.
        format: of a picture of any size, for functions with max_picture, as in "rgb8" for an array [height, width, 3].
            A Picture also says the size, if it is not the array's shape. None is what the model's card says.
        """
        wanted = _checked_wanted(deadline, priority, stream_id, lowest_score)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def end(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        def closed() -> None:
            if not future.done():
                future.set_exception(Closed(_CLOSED))

        data, shape = _read(picture, format, self._options)
        r = self._start(data, wanted._replace(picture=shape), end, closed)
        try:
            answer = await future
        except asyncio.CancelledError:
            self._withdraw(r)
            raise
        answer.raise_for_status()
        return answer

    async def stream(
        self,
        frames: Union[Iterable[Array], AsyncIterable[Array]],
        *,
        deadline: Optional[float] = None,
        priority: int = 0,
        stream_id: int = 0,
        lowest_score: float = 0.0,
        format: Format = None,
    ) -> AsyncIterator[Answer]:
        """Send frames as fast as the manager takes them, and yield an answer for each, in their order.

        An answer that is not ok is yielded like others: see Answer.status. A frame is taken from frames when there is
        credit for it, and copied.
        """
        events: asyncio.Queue[_Event] = asyncio.Queue()
        wanted = _checked_wanted(deadline, priority, stream_id, lowest_score)
        s = _Stream(self, lambda f, *arguments: f(*arguments), events.put_nowait, wanted, format)
        source = frames.__aiter__() if isinstance(frames, AsyncIterable) else None
        iterator = None if isinstance(frames, AsyncIterable) else iter(frames)
        pull: Optional[asyncio.Task[None]] = None
        try:
            while True:
                for answer in s.ready(events):
                    yield answer
                if s.finished:
                    return
                if s.wants_frame and iterator is not None:
                    s.send(next(iterator, None))
                    continue
                if s.wants_frame and source is not None and (pull is None or pull.done()):
                    pull = asyncio.ensure_future(_pull(source, s, events))
                (await events.get())()
        finally:
            if pull is not None:
                pull.cancel()
            s.close()

    def _start(
        self, data: _wire.Bytes, wanted: _wire.Wanted, end: Callable[[Answer], None], closed: Callable[[], None]
    ) -> Optional[Request]:
        """Submit a picture. Either end or closed is called once, unless the request is withdrawn."""
        if not self._open:
            closed()
            return None

        def ended(answer: Answer) -> None:
            del self._closers[r]
            end(answer)

        r = self._engine.submit(data, wanted, time.monotonic_ns(), ended)
        self._closers[r] = closed
        self._pump()
        return r

    def _withdraw(self, r: Optional[Request]) -> None:
        if r is not None and self._closers.pop(r, None) is not None:
            self._engine.withdraw(r)
            self._pump()

    def _when_room(self, granted: Callable[[int], None], closed: Callable[[], None]) -> None:
        """Call granted with the number of pictures that there is credit for, when there is any."""
        if not self._open:
            closed()
            return
        self._room_waiters.append(_RoomWaiter(granted, closed))
        self._schedule_pump()  # after the answers that have arrived: a stream would use up all credit first

    def _pump(self) -> None:
        """Send what may be sent now, and plan the next time."""
        self._pump_scheduled = False
        if not self._open:
            return
        now = time.monotonic_ns()
        if not self._unsent:
            self._unsent.extend(self._engine.fill(now))
            if self._unsent:
                self._flush()
                if not self._unsent and self._engine.pending:
                    self._schedule_pump()
        if self._room_waiters and not self._unsent:
            room = self._engine.room(now)
            if room > 0:
                self._room_waiters.popleft().granted(room)
        self._plan(now)

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _plan(self, now: int) -> None:
        at = self._engine.wake_at(now)
        if at >= self._timer_at:
            return  # the timer fires early, which does no harm
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(at - now, 0) / 1e9, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, NEVER
        if self._open:
            self._read()

    def _socket_to(self, p: Path) -> Optional[socket.socket]:
        """The socket of a path; None if there is none."""
        if p not in self._sockets:
            for old in [old for old in self._sockets if old not in self._engine.paths]:
                self._close_socket(old)
            if p not in self._engine.paths:
                return None
            try:
                self._sockets[p] = s = _connect(p.address)
            except OSError:
                self._engine.refused(p)
                return None
            self._loop.add_reader(s.fileno(), self._read)
        return self._sockets[p]

    def _close_socket(self, p: Path) -> None:
        s = self._sockets.pop(p)
        self._loop.remove_reader(s.fileno())
        self._loop.remove_writer(s.fileno())
        s.close()

    def _flush(self) -> None:
        """Send the messages. The protocol recovers those that the kernel refuses, as it does lost ones."""
        refused = False
        while self._unsent:
            m = self._unsent[0]
            s = self._socket_to(m.path)
            if s is None:
                self._unsent.popleft()
                continue
            control = [(_SOL_UDP, _UDP_SEGMENT, m.segment.to_bytes(2, sys.byteorder))] if m.segment else ()
            try:
                s.sendmsg(m.buffers, control)
            except BlockingIOError:
                self._loop.add_writer(s.fileno(), self._write, s)
                return
            except ConnectionRefusedError:
                # The ICMP response to an earlier datagram: the kernel did not try this one.
                self._engine.refused(m.path)
                if not refused:
                    refused = True
                    continue
            except OSError as e:
                if m.segment and e.errno in (errno.EINVAL, errno.EMSGSIZE, errno.EIO, errno.EOPNOTSUPP):
                    # The fragments are larger than the path's frames, or the device cannot compute checksums.
                    self._engine.segments = False
                    self._unsent.popleft()
                    self._unsent.extendleft(reversed(m.split()))
                    continue
                self._engine.stats.send_errors += 1
            self._unsent.popleft()

    def _write(self, s: socket.socket) -> None:
        self._loop.remove_writer(s.fileno())
        self._flush()
        self._pump()

    def _read(self) -> None:
        now = time.monotonic_ns()
        if all([self._read_socket(p, s, now) for p, s in list(self._sockets.items())]):
            self._engine.expire(now)
        self._pump()

    def _read_socket(self, p: Path, s: socket.socket, now: int) -> bool:
        """Read datagrams. Returns whether none is left."""
        for _ in range(_READS):
            try:
                n = s.recv_into(self._buffer)
            except BlockingIOError:
                return True
            except ConnectionRefusedError:
                self._engine.refused(p)
                continue
            except OSError:
                return False
            self._engine.receive(p, self._buffer[:n], now)
        return False


class SyncClient:
    """Client without asyncio. Any thread may call its methods.

        with penstock.SyncClient("host:5001") as client:
            answer = client.infer(picture)

    It takes the options of Client. A thread of its own sends again what was lost, while the caller does other work.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 2.0,
        fragment_bytes: int = 1024,
        pace: Optional[float] = None,
        in_flight: int = 8,
        max_result_bytes: int = 64 << 20,
        key_file: Optional[str] = None,
        trusted: Sequence[str] = (),
    ) -> None:
        self._client = Client(
            address,
            timeout=timeout,
            fragment_bytes=fragment_bytes,
            pace=pace,
            in_flight=in_flight,
            max_result_bytes=max_result_bytes,
            key_file=key_file,
            trusted=trusted,
        )
        self._thread: threading.Thread
        self._mu = threading.Lock()  # guards below: nothing enters a loop that close is about to end
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def __enter__(self) -> SyncClient:
        self.open()
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the socket, as Client.open does."""
        if self._loop is not None:
            raise ClientError("open client: it is already open")
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="penstock client", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
        try:
            asyncio.run_coroutine_threadsafe(self._client.open(), loop).result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket. Requests in flight end with Closed."""
        with self._mu:
            loop, self._loop = self._loop, None
        if loop is None:
            return

        loop.call_soon_threadsafe(self._client.close)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    @property
    def stats(self) -> Stats:
        """Live counters."""
        return self._client.stats

    def infer(
        self,
        picture: Array,
        *,
        deadline: Optional[float] = None,
        priority: int = 0,
        stream_id: int = 0,
        lowest_score: float = 0.0,
        format: Format = None,
    ) -> Answer:
        """Send a picture and return its answer, as Client.infer does."""
        data, shape = _read(picture, format, self._client._options)
        wanted = _checked_wanted(deadline, priority, stream_id, lowest_score)._replace(picture=shape)
        future: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        requests: list[Optional[Request]] = []

        def start() -> None:
            closed = functools.partial(future.set_exception, Closed(_CLOSED))
            requests.append(self._client._start(data, wanted, future.set_result, closed))

        self._call(start)
        try:
            answer = future.result()
        except KeyboardInterrupt:
            self._call(lambda: self._client._withdraw(requests[0]))
            raise
        answer.raise_for_status()
        return answer

    def stream(
        self,
        frames: Iterable[Array],
        *,
        deadline: Optional[float] = None,
        priority: int = 0,
        stream_id: int = 0,
        lowest_score: float = 0.0,
        format: Format = None,
    ) -> Iterator[Answer]:
        """Send frames as fast as the manager takes them, and yield an answer for each, as Client.stream does. Frames
        are taken in the caller's thread."""
        events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        wanted = _checked_wanted(deadline, priority, stream_id, lowest_score)
        s = _Stream(self._client, self._call, events.put, wanted, format)
        source = iter(frames)
        try:
            while True:
                yield from s.ready(events)
                if s.finished:
                    return
                if s.wants_frame:
                    s.send(next(source, None))
                else:
                    events.get()()
        finally:
            with contextlib.suppress(Closed):
                s.close()

    def _call(self, f: Callable[..., None], *arguments: Any) -> None:
        """Call f in the event loop's thread."""
        with self._mu:
            if self._loop is None:
                raise _not_open()
            self._loop.call_soon_threadsafe(f, *arguments)


# An event changes a stream, in the thread that reads the stream.
_Event = Callable[[], None]


@dataclass(frozen=True)
class _RoomWaiter:
    granted: Callable[[int], None]
    closed: Callable[[], None]


class _Stream:
    """The order and the credit of a stream. One thread reads it. call runs a function in the client's event loop, and
    post passes an event from there to the reader."""

    # A grant of credit is for as many bytes, at most: frames that wait for others to be sent grow old.
    _GRANT_BYTES = 1 << 20

    def __init__(
        self,
        client: Client,
        call: Callable[..., None],
        post: Callable[[_Event], None],
        wanted: _wire.Wanted,
        format: Format,
    ) -> None:
        self._client, self._call, self._post, self._wanted, self._format = client, call, post, wanted, format
        self._sent = self._read = 0
        self._ended = False  # no frame is left
        self._room = 0
        self._asked = False
        self._frame_bytes = 1
        self._answers: dict[int, Answer] = {}
        self._unstarted: deque[tuple[int, _wire.Bytes, Optional[_wire.Picture]]] = deque()
        self._starting = False
        self._requests: dict[int, Request] = {}  # the event loop's

    @property
    def finished(self) -> bool:
        return self._ended and self._read == self._sent

    @property
    def wants_frame(self) -> bool:
        return not self._ended and self._room > 0 and self._sent - self._read < _WINDOW

    def ready(self, events: Union[asyncio.Queue[_Event], queue.SimpleQueue[_Event]]) -> Iterator[Answer]:
        """The next frames' answers that have come; then ask for credit, if it is used up."""
        while not events.empty():
            events.get_nowait()()
        while self._read in self._answers:
            self._read += 1
            yield self._answers.pop(self._read - 1)
        self._ask_room()

    def _ask_room(self) -> None:
        if self._room > 0 or self._asked or self._ended:
            return
        self._asked = True

        def grant(room: int) -> None:
            self._asked = False
            self._room = min(room, max(1, self._GRANT_BYTES // self._frame_bytes))

        self._call(self._client._when_room, lambda room: self._post(lambda: grant(room)), self._post_closed)

    def send(self, frame: Optional[Array]) -> None:
        """Send a frame; None is the end of the stream."""
        if frame is None:
            self._ended = True
            return
        data, shape = _read(frame, self._format, self._client._options)
        self._frame_bytes = len(data)
        index = self._sent
        self._sent += 1
        self._room -= 1
        self._unstarted.append((index, data.copy(), shape))
        if not self._starting:
            self._starting = True
            self._call(self._start_all)

    def _start_all(self) -> None:
        """Start the frames that were sent since the last call: one passage to the event loop's thread for all."""
        self._starting = False
        while self._unstarted:
            self._start(*self._unstarted.popleft())

    def _start(self, index: int, data: _wire.Bytes, shape: Optional[_wire.Picture]) -> None:
        def end(answer: Answer) -> None:
            self._requests.pop(index, None)
            self._post(lambda: self._answers.__setitem__(index, answer))

        r = self._client._start(data, self._wanted._replace(picture=shape), end, self._post_closed)
        if r is not None:
            self._requests[index] = r

    def _post_closed(self) -> None:
        def closed() -> None:
            raise Closed(_CLOSED)

        self._post(closed)

    def close(self) -> None:
        """Withdraw what is in flight."""
        self._call(self._withdraw)

    def _withdraw(self) -> None:
        for r in list(self._requests.values()):
            self._client._withdraw(r)
        self._requests.clear()


async def _pull(source: AsyncIterator[Array], s: _Stream, events: asyncio.Queue[_Event]) -> None:
    """Post the next frame of source, or how it ended."""
    frame: Optional[Array] = None
    try:
        frame = await source.__anext__()
    except StopAsyncIteration:
        pass
    except Exception as e:
        error = e

        def fail() -> None:
            raise error

        events.put_nowait(fail)
        return
    events.put_nowait(lambda: s.send(frame))


def _not_open() -> Closed:
    return Closed("client is not open: use `with` or `async with`, or call open")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _connect(address: _wire.Address) -> socket.socket:
    s = socket.socket(socket.AF_INET if len(address) == 2 else socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        s.setblocking(False)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        s.connect(address)
    except OSError:
        s.close()
        raise
    return s


def _can_segment(s: socket.socket) -> bool:
    """Whether the kernel splits trains of datagrams."""
    if sys.platform != "linux":
        return False
    try:
        s.getsockopt(_SOL_UDP, _UDP_SEGMENT)
    except OSError:
        return False
    return True


def _read_key(path: str) -> bytes:
    with open(path, "rb") as f:
        for line in f:
            key = line.strip()
            if key and not key.startswith(b"#"):
                return key
    raise ValueError(f"key_file {path} has no key: want one in a line, as from `openssl rand -hex 32`")


def _parse_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'address "{address}": put an IPv6 address in brackets, as in "[::1]:5001"')
    if not colon or not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f'address "{address}": want HOST:PORT, as in "127.0.0.1:5001"')
    return host, int(port)


def _checked_wanted(deadline: Optional[float], priority: int, stream_id: int, lowest_score: float) -> _wire.Wanted:
    if deadline is not None and not deadline > 0:
        raise ValueError(f"deadline is {deadline} s: want more than 0")
    if not 0 <= priority <= 255:
        raise ValueError(f"priority is {priority}: want 0 to 255")
    if not 0 <= stream_id < 1 << 32:
        raise ValueError(f"stream_id is {stream_id}: want 0 to {(1 << 32) - 1}")
    if not 0 <= lowest_score <= 1:
        raise ValueError(f"lowest_score is {lowest_score}: want 0 to 1")
    score = max(int(lowest_score * 0xFFFF), 1) if lowest_score else 0
    return _wire.Wanted(_nanoseconds(deadline) if deadline else 0, priority, stream_id, score)


def _read(picture: Array, format: Format, options: Options) -> tuple[_wire.Bytes, Optional[_wire.Picture]]:
    """The bytes of an array, without a copy, and the shape of its picture; None: the card's."""
    if not isinstance(picture, np.ndarray):
        raise TypeError(f"picture is a {type(picture).__name__}: want a numpy array, as of numpy.asarray(picture)")
    if format is None and picture.dtype not in _DTYPES:
        raise TypeError(
            f"picture has dtype {picture.dtype}: want uint8, float16 or float32 (little-endian), as in the model's card; "
            f"picture.astype(numpy.float32) converts it"
        )
    if not picture.flags.c_contiguous:
        raise ValueError("picture is not contiguous: send numpy.ascontiguousarray(picture)")
    if picture.nbytes == 0:
        raise ValueError(f"picture is empty: it has shape {picture.shape}")
    most = min(_wire.MAX_FRAGMENTS * options.fragment_bytes, _wire.MAX_TOTAL)
    if picture.nbytes > most:
        raise ValueError(
            f"picture has {picture.nbytes} bytes: at most {most} fit fragments of {options.fragment_bytes} bytes; "
            f"a larger fragment_bytes allows more"
        )
    shape = _shape_of(picture, format) if isinstance(format, str) else format
    if shape is not None:
        shape.check(picture.nbytes)
    data: _wire.Bytes = picture.reshape(-1).view(np.uint8)
    return data, shape


def _shape_of(picture: Array, name: str) -> _wire.Picture:
    """The shape of a picture of that format whose rows have no gap, from its array."""
    if name not in _wire.FORMATS:
        return _wire.Picture(name, 0, 0)
    bits = _wire.FORMATS[name][1]
    channels = max(bits // (8 * picture.dtype.itemsize), 1) if bits % 8 == 0 else 1
    typed = picture.dtype == np.uint8 or (picture.dtype == np.dtype("<u2") and bits == 16)
    if not typed or picture.ndim < 2 or math.prod(picture.shape[2:]) != channels:
        lines = f"height * {_wire.HALVES[name]} / 2" if name in _wire.HALVES else "height"
        columns = "width" if bits % 8 == 0 else "bytes of a row"
        each = f", {bits // 8}" if bits in (24, 32) or name in ("uyvy", "yuyv") else ""
        want = f"{'uint16' if bits == 16 and not each else 'uint8'} of shape [{lines}, {columns}{each}]"
        raise ValueError(f"picture of {name} has an array of {picture.dtype} and shape {list(picture.shape)}: want {want}")
    rows = len(picture) * 2 // _wire.HALVES.get(name, 2)
    return _wire.Picture(name, picture.nbytes // len(picture) * 8 // bits, rows)
