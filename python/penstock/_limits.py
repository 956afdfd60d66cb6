"""How many requests and bytes a client may send (docs/wire.md, *Credit* and *Pace*).

Pure: the caller passes the time in nanoseconds.
"""

from __future__ import annotations

_MIN_PAUSE = 1_000_000
_MAX_PAUSE = 128_000_000


class Credit:
    """How many more requests may be sent. After an answer without credit, and with nothing in flight, one request is
    sent as a probe after each pause."""

    def __init__(self, first: int) -> None:
        self.more = first
        self.probe_at = 0  # 0 if there is no pause
        self.round_trip = 0  # estimate, in nanoseconds
        self._pause = 0

    def allow(self, now: int, in_flight: int) -> tuple[bool, bool]:
        """Whether a request may be sent, and whether it is a probe."""
        if self.more > 0:
            return True, False
        if in_flight > 0:
            return False, False
        if self.probe_at == 0:
            self._pause = min(max(2 * self._pause, _MIN_PAUSE), _MAX_PAUSE)
            self.probe_at = now + self._pause
        return now >= self.probe_at, now >= self.probe_at

    def sent(self, probe: bool) -> None:
        self.probe_at = 0
        if not probe:
            self.more -= 1

    def answered(self, granted: int, unseen: int) -> None:
        """Take an answer's credit. The manager had not seen that many requests in flight."""
        self.more = max(granted - unseen, 0)
        self.probe_at = 0
        if granted > 0:
            self._pause = 0

    def given_up(self) -> None:
        self.more += 1

    def measure(self, nanoseconds: int) -> None:
        """Record how long a request and its answer were outside the manager."""
        nanoseconds = max(nanoseconds, 0)
        if self.round_trip == 0:
            self.round_trip = nanoseconds
        else:
            self.round_trip += (nanoseconds - self.round_trip) // 8  # the gain of RFC 6298


class Pace:
    """A token bucket: rate bytes per second, depth bytes at once. Rate 0 is no limit."""

    # Smaller steps would send datagrams one by one.
    _MIN_WAKE_BYTES = 32 << 10

    def __init__(self, rate: float, depth: int, now: int) -> None:
        self._rate, self._depth = rate, depth
        self._tokens, self._at = float(depth), now

    def budget(self, now: int) -> float:
        """How many bytes may be sent. The last datagram may exceed them."""
        if self._rate == 0:
            return float("inf")
        if now > self._at:
            self._tokens = min(self._tokens + self._rate * (now - self._at) / 1e9, self._depth)
            self._at = now
        return self._tokens

    def spend(self, size: int) -> None:
        self._tokens -= size

    def wait(self, now: int) -> int:
        """How long until the budget is worth a wake-up, in nanoseconds."""
        if self._rate == 0:
            return 0
        short = min(self._depth, self._MIN_WAKE_BYTES) - self.budget(now)
        return int(short / self._rate * 1e9) + 1 if short > 0 else 0
