"""MLPerf's LoadGen asks Penstock through the Python client, and ONNX Runtime in this process. The scenarios and the
sampling are MLPerf's; models and pictures are not, so the figures are unofficial.

    loadgen.py SECONDS DETECT FASHION

SECONDS is the min duration of a scenario (MLPerf's is 600); the others are the addresses of the functions. Each answer is
compared: the objects of photos by Penstock alone, and the classes of 1,000 pictures of clothes by both systems. A
run of MLPerf's duration must be valid too, except for the server's limit of 100 ms: that is a fact of the machine.
"""

import asyncio
import glob
import gzip
import queue
import re
import sys
import tempfile
import threading

import mlperf_loadgen as lg
import numpy as np
import onnxruntime
import penstock
from PIL import Image, ImageOps

ZOO = "../../models/zoo/"
PATIENCE = 60  # seconds
SERVER_LIMIT_MS = 100

seconds, detect, fashion = int(sys.argv[1]), *sys.argv[2:]


class Penstock:
    """Requests start in the event loop's thread, so that the server scenario may have any number in flight."""

    def __init__(self, address, pictures, value):
        self.samples, self.value = pictures, value
        self.client = penstock.Client(address, timeout=PATIENCE)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.start(self.client.open()).result()

    def start(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def ask(self, index):
        return self.value(await self.client.infer(self.samples[index], deadline=PATIENCE))

    async def answer(self, sample, index):
        complete(sample, index, await self.ask(index))

    def issue(self, samples):
        for s in samples:
            self.start(self.answer(s.id, s.index))


class Runtime:
    """All samples of a query are one batch. One thread runs the session, which uses all CPUs."""

    def __init__(self, model, tensors, value):
        self.samples, self.value = tensors, value
        self.session = onnxruntime.InferenceSession(ZOO + model + "/model.onnx")
        self.queries = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def issue(self, samples):
        self.queries.put([(s.id, s.index) for s in samples])

    def run(self):
        name = self.session.get_inputs()[0].name
        while True:
            query = self.queries.get()
            outputs = self.session.run(None, {name: np.stack([self.samples[index] for _, index in query])})
            for i, (sample, index) in enumerate(query):
                complete(sample, index, self.value([o[i] for o in outputs]))


answers = {}  # of the test that runs: all values that a sample had


def complete(sample, index, value):
    answers.setdefault(index, set()).add(value)
    result = np.array([0], np.int64)
    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample, result.ctypes.data, result.nbytes)])


def test(system, scenario, mode="PerformanceOnly", duration=seconds, qps=1.0):
    """Runs LoadGen, and returns the figures of its summary."""
    answers.clear()
    settings = lg.TestSettings()
    settings.scenario, settings.mode = getattr(lg.TestScenario, scenario), getattr(lg.TestMode, mode)
    settings.min_duration_ms, settings.min_query_count = duration * 1000, 1
    settings.single_stream_expected_latency_ns = settings.multi_stream_expected_latency_ns = 10**6  # shorter than any answer
    settings.server_target_qps, settings.server_target_latency_ns = qps, SERVER_LIMIT_MS * 10**6
    logs = lg.LogSettings()
    with tempfile.TemporaryDirectory() as logs.log_output.outdir:
        sut, library = lg.ConstructSUT(system.issue, lambda: None), lg.ConstructQSL(*[len(system.samples)] * 2, *[lambda _: None] * 2)
        lg.StartTestWithLogSettings(sut, library, settings, logs, "")
        lg.DestroyQSL(library), lg.DestroySUT(sut)
        summary = open(logs.log_output.outdir + "/mlperf_log_summary.txt").read()

    if "No errors encountered during test" not in summary:
        sys.exit(f"LoadGen found errors in {scenario}:\n{summary}")
    return dict(re.findall(r"^ *(\S.*?) *: (.*)$", summary, re.MULTILINE))


def milliseconds(figures, percentile):
    return int(figures[f"{percentile}.00 percentile latency (ns)"]) / 1e6


# The same photos for both: bytes for Penstock, and the card's tensors for the runtime.
photos = [np.asarray(ImageOps.pad(Image.open(f).convert("RGB"), (416, 416))) for f in sorted(glob.glob(ZOO + "pictures/*.jpg"))]
mean, deviation = np.float32([103.53, 116.28, 123.675]), np.float32([57.375, 57.12, 58.395])
tensors = [np.ascontiguousarray(((p[:, :, ::-1] - mean) / deviation).transpose(2, 0, 1)) for p in photos]
systems = {
    "Penstock": Penstock(detect, photos, lambda answer: tuple(sorted(answer.boxes.classes.tolist()))),
    "in process": Runtime("detect", tensors, lambda _: None),
}
found = {i: {systems["Penstock"].start(systems["Penstock"].ask(i)).result()} for i in range(len(photos))}

print(f"{'':14}{'':12}{'p90 ms':>8}{'p99 ms':>8}  MLPerf's verdict, unofficial", flush=True)
rate = 1.0
for scenario in ("SingleStream", "MultiStream", "Server"):
    for name, system in systems.items():
        ours = name == "Penstock"
        figures = test(system, scenario, duration=seconds if ours else min(seconds, 10), qps=rate)
        verdict = figures["Result is"]
        print(f"{scenario:14}{name:12}{milliseconds(figures, 90):8.2f}{milliseconds(figures, 99):8.2f}  {verdict}", flush=True)
        if ours and any(values != found[i] for i, values in answers.items()):
            sys.exit(f"{scenario}: the photos show {found}, Penstock answers {answers}")
        if ours and seconds >= 600 and scenario != "Server" and verdict != "VALID":
            sys.exit(f"{scenario}: {figures}")
        if scenario == "SingleStream":
            rate = 500 / milliseconds(figures, 90)  # half of what one request after the other takes

clothes = np.frombuffer(gzip.open(ZOO + "fashion-mnist/images.idx3.gz").read()[16:], np.uint8).reshape(-1, 28, 28)
labels = gzip.open(ZOO + "fashion-mnist/labels.idx1.gz").read()[8:]
classes = []
for system in (
    Penstock(fashion, clothes, lambda answer: int(answer.classes.classes[0])),
    Runtime("fashion", clothes[:, None].astype(np.float32), lambda outputs: int(outputs[0].argmax())),
):
    test(system, "SingleStream", "AccuracyOnly")
    classes.append([answers[i] for i in range(len(clothes))])
if classes[0] != classes[1]:
    sys.exit(f"{sum(a != b for a, b in zip(*classes))} of {len(clothes)} pictures have another class than by ONNX Runtime")
print(f"accuracy of both: {sum(c == {label} for c, label in zip(classes[0], labels)) / len(labels):.3f}")
