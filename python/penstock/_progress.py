"""A line on the terminal that shows how a stream goes."""

from __future__ import annotations

import sys
import time
from typing import Optional, TextIO

from .answer import Answer


class Progress:
    """Shows counts, rate and latency, four times per second. show None means: if the output is a terminal."""

    _INTERVAL = 0.25

    def __init__(self, show: Optional[bool], total: Optional[int], out: Optional[TextIO] = None) -> None:
        self._out = sys.stderr if out is None else out
        self._show = self._out.isatty() if show is None else show
        self._total = total
        self._began = self._shown_at = time.monotonic()
        self._answers = self._bad = 0
        self._latency = 0.0
        self._width = 0

    def update(self, answer: Answer) -> None:
        if not self._show:
            return
        self._answers += 1
        self._bad += not answer.ok
        self._latency = answer.latency
        now = time.monotonic()
        if now - self._shown_at >= self._INTERVAL:
            self._shown_at = now
            self._write(now)

    def close(self) -> None:
        if self._show:
            self._write(time.monotonic())
            self._out.write("\n")
            self._out.flush()

    def _write(self, now: float) -> None:
        of = f"/{self._total:,}" if self._total is not None else ""
        rate = self._answers / max(now - self._began, 1e-9)
        text = f"{self._answers:,}{of} pictures, {rate:,.0f}/s, {self._bad:,} not ok, last {self._latency * 1e3:.1f} ms"
        self._out.write("\r" + text.ljust(self._width))
        self._out.flush()
        self._width = len(text)
