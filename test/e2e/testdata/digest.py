"""digest.py is a model that answers as the framework "null" does, with a digest of the
picture, and goes wrong as its argument says:

    init                init raises, with two lines of reason
    stage               load_model has no host stage; all is well
    memory              configure_batch has no memory
    every=N             every Nth batch raises, but for those of the warm-up
    exit=N              every Nth batch leaves with SystemExit, likewise
    crash=FILE          a batch reads address 0 where FILE is there, which is removed
"""

import ctypes
import os
import sys

import penstock_model

ROLE, _, VALUE = (sys.argv[1] if len(sys.argv) > 1 else "").partition("=")


def taken(file):
    try:
        os.remove(file)
        return True
    except FileNotFoundError:
        return False


class Digest(penstock_model.Framework):
    def init(self, env):
        if ROLE == "init":
            raise ValueError("the first line\nand the second")
        env.info("card " + env.card["name"] + " of " + repr(env.input))
        self.size, self.batches = env.input.bytes, {}
        self.count = -6 * len(env.batches)  # the warm-up runs each size at most six times

    def load_model(self):
        if ROLE == "stage":
            raise penstock_model.NoHostStage()

    def link_model(self):
        return 4096

    def configure_batch(self, slot, n, input, outputs):
        if ROLE == "memory":
            raise MemoryError("no room for %d" % n)
        if input.bytes != n * self.size or input.shape[0] != n or input.address % 8:
            raise AssertionError("%r" % input)
        self.batches[slot, n] = input.memory().cast("Q"), outputs[0].elements()

    def infer_batch(self, slot, n):
        self.count += 1
        due = ROLE in ("every", "exit") and self.count > 0 and self.count % int(VALUE) == 0
        if due and ROLE == "every":
            raise LookupError("one of every %s" % VALUE)
        if due:
            sys.exit("one of every %s" % VALUE)
        if ROLE == "crash" and taken(VALUE):
            ctypes.string_at(0)
        words, answers = self.batches[slot, n]
        each = self.size // 8
        for i in range(n):
            total = sum(w * (2 * k + 1) for k, w in enumerate(words[i * each:(i + 1) * each]))
            answers[i, 0] = (total * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 40


penstock_model.main(Digest())
