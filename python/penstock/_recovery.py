"""When a client sends fragments of a request again (docs/wire.md, *When something got lost*).

Pure: the caller passes the time in nanoseconds, and sends.

                            sent                   NACK followed
    fragments are sent ───────────> silence ────────────────────> the named fragments
                                       │
                                       └─ ask_at passes: ask ───> fragment 0
"""

from __future__ import annotations

from typing import Optional

# The manager ignores a question that follows its NACK or its answer more closely.
_MIN_SILENCE = 1_000_000
# The part of resend_after that an answer may pause before a question: a busy manager pauses.
_GAP_PART = 16
# More than a round trip in a machine room.
_MIN_IGNORE = 500_000


class Recovery:
    """The recovery of one request of count fragments. A first question follows a silence of resend_after."""

    __slots__ = (
        "_resend_after", "_sending", "_asked", "_answering", "_sent_at", "_left_at", "_ask_at", "_ignore_until",
        "_ask_delay", "_ignore_delay", "_nack_delay", "_missing",
    )  # fmt: skip

    def __init__(self, count: int, resend_after: int) -> None:
        self._resend_after = resend_after
        self._sending = True
        self._asked = False  # the fragments that are being sent are a question
        self._answering = False  # a fragment of the answer has arrived
        self._sent_at = 0
        self._left_at = 0  # when fragments were sent last, questions excluded
        self._ask_at = 0
        self._ignore_until = 0
        self._ask_delay = resend_after
        self._ignore_delay = 0
        self._nack_delay = 0
        self._missing = count

    def sent(self, now: int, round_trip: int) -> None:
        """Record that no fragment is left to send."""
        self._sending, self._sent_at = False, now
        self._ask_at = now + self._ask_delay
        if self._asked:
            # The NACK that answers a question names nothing that is on its way.
            self._asked = False
            return
        self._left_at = now
        self._ignore_until = now + max(self._ignore_delay, round_trip)

    @property
    def ask_at(self) -> int:
        """When to call ask; 0 while fragments are being sent."""
        return 0 if self._sending else self._ask_at

    @property
    def left_at(self) -> Optional[int]:
        """When the last fragment was sent that was no question; None while fragments are being sent."""
        return None if self._sending else self._left_at

    def ask(self, now: int) -> bool:
        """Whether the silence has lasted long enough. If so, the caller sends fragment 0 again."""
        if self._sending or now < self._ask_at:
            return False
        self._sending = self._asked = True
        self._ask_delay *= 2
        if self._answering:
            self._ask_delay = min(self._ask_delay, self._resend_after)
        return True

    def prove(self) -> None:
        """The manager wants proof of the address. The caller sends fragment 0, as after ask."""
        self._asked = self._asked or not self._sending
        self._sending = True

    def answered_in_part(self, now: int, round_trip: int, last: bool) -> None:
        """A fragment of the answer arrived. The next question is due when the answer pauses for longer than a round
        trip; at once if the fragment is the highest that the latest question named. A fragment that the client has
        already counts too."""
        self._answering = True
        self._ask_delay = min(max(self._resend_after // _GAP_PART, 2 * round_trip), self._resend_after)
        self._ask_at = now if last else now + self._ask_delay

    def follow(self, now: int, missing: int) -> bool:
        """Whether the caller sends the fragments that a NACK names."""
        if self._sending:
            return False
        self._nack_delay = max(self._nack_delay, now - self._sent_at)
        self._ask_delay = min(max(3 * self._nack_delay // 2, _MIN_SILENCE), self._resend_after)
        if now < self._ignore_until:
            self._ask_at = now + self._ask_delay
            return False
        if self._ignore_delay == 0:
            self._ignore_delay = _MIN_IGNORE
        elif missing >= self._missing:
            self._ignore_delay = min(2 * self._ignore_delay, self._resend_after)
        self._missing = missing
        self._sending = True
        return True
