"""Measures what a call of infer_batch costs in Python, compared with a C function.

A C loop makes the call that libpenstock.so makes per batch: 100,000 times in a row, then
every 2 ms. "busy" is with another thread that computes in Python all the time.

    PYTHONPATH=libml/python python3 research/bench/pythoncalls.py       # needs gcc
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading

import penstock_model

LOOP = r"""
#include <stdint.h>
#include <time.h>
typedef int (*infer)(void *, int32_t, int32_t);
int nothing(void *self, int32_t slot, int32_t n) { (void)self, (void)slot; return n < 0; }
double loop(infer f, long times, long pause, double *worst) {
	struct timespec a, b, gap = {0, pause};
	double sum = 0;
	*worst = 0;
	for (long i = 0; i < times; i++) {
		if (pause > 0)
			nanosleep(&gap, 0);
		clock_gettime(CLOCK_MONOTONIC, &a);
		if (f(0, 0, 1))
			return -1;
		clock_gettime(CLOCK_MONOTONIC, &b);
		double took = (b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec;
		sum += took;
		if (took > *worst)
			*worst = took;
	}
	return sum / times;
}
"""


class Nothing(penstock_model.Framework):
    def infer_batch(self, slot, n):
        pass


def compute():
    while True:
        sum(range(100))


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "loop.c"), "w") as f:
            f.write(LOOP)
        library = os.path.join(folder, "loop.so")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, f.name], check=True)
        c = ctypes.CDLL(library)
    c.loop.restype = ctypes.c_double
    c.loop.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.POINTER(ctypes.c_double)]
    process = penstock_model._Process(None, Nothing())
    python = ctypes.cast(process.table.infer_batch, ctypes.c_void_p)
    worst = ctypes.c_double()

    def price(name, what, times, pause=0):
        each = c.loop(what, times, pause, worst)
        print("%-28s %9.0f ns a call, the worst %10.0f ns" % (name, each, worst.value))

    price("C", ctypes.cast(c.nothing, ctypes.c_void_p), 100000)
    price("Python", python, 100000)
    price("Python, every 2 ms", python, 500, 2000000)
    threading.Thread(target=compute, daemon=True).start()
    for interval in (sys.getswitchinterval(), penstock_model.SWITCH_SECONDS):
        sys.setswitchinterval(interval)
        price("Python, busy, %.1f ms" % (interval * 1e3), python, 500, 2000000)


if __name__ == "__main__":
    main()
