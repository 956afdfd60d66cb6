"""A guest of `penstock-lab turns`: bursts of GPU work on memory that it fills, and CPU time between them.

Commands on standard input: "steps SECONDS" answers how many steps of GPU work take that long; "run BURSTS
STEPS CPU_SECONDS" does the work and answers how long that took. "check" compares the memory.
"""

import sys
import time

import torch


def main():
    device, total = torch.device("cuda:0"), int(sys.argv[1])
    side = 8192
    a = torch.randn(side, side, device=device, dtype=torch.float16)
    product = torch.empty_like(a)
    torch.mm(a, a, out=product)

    # The rest of the memory, in blocks of 512 MiB. Each step adds 1 to one of them.
    block = 512 << 20
    count = max(1, (total - (1 << 30)) // block)
    blocks = [torch.zeros(block // 4, device=device, dtype=torch.int32) for _ in range(count)]
    added = [0] * count
    torch.cuda.synchronize()
    done = 0

    def work(steps):
        nonlocal done
        for _ in range(steps):
            i = done % count
            torch.mm(a, a, out=product)
            blocks[i].add_(1)
            added[i] += 1
            done += 1
            if done % 64 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()

    print("ready", torch.__version__, torch.cuda.get_device_name(device).replace(" ", "_"), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "steps":
            work(200)
            began = time.monotonic()
            work(1000)
            print("steps", max(1, int(1000 * float(words[1]) / (time.monotonic() - began))), flush=True)
            continue
        if words[0] == "check":
            right = all(int(b.min()) == n and int(b.max()) == n for b, n in zip(blocks, added))
            print("right" if right else "wrong", flush=True)
            continue
        bursts, steps, cpu = int(words[1]), int(words[2]), float(words[3])
        began = time.monotonic()
        for _ in range(bursts):
            work(steps)
            end = time.thread_time() + cpu
            while time.thread_time() < end:
                pass
        print("done", time.monotonic() - began, flush=True)


main()
