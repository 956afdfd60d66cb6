"""PyTorch on a GPU.

    load        the model in host memory, held against its card; the CPU answers a picture of noise
    link        weights to the device, or where the node keeps them; the smallest size runs, and is checked
    configure   the first of a size: it runs in memory of its own, and is checked
                captures the size over libml's buffers, and hands the graph over (Environment.graph)
    a batch     libml launches the graph: no Python runs

A graph's kernels are moved to other multiprocessors by libml, so a slot that stands by
for another, over the same buffers, gets the graph that was captured for that one.

PyTorch lives on one thread: cuBLAS's and cuDNN's handles are a thread's, and each has
memory of its own. A lane (slots 0 and 2, or 1 and 3) has a stream to capture on, since
cuBLAS's workspace is a stream's and graphs of two lanes run beside each other; and a
pool, from which its graphs take what they need in between. Graphs of one lane never run
together, and none reads what another left, so they share it. A size that is tried while
a graph of the lane may be in flight runs aside, on another stream and from no lane's pool.

The choice of kernels is cuDNN's heuristics' (torch.backends.cudnn.benchmark stays off):
active and shadow choose alike, and answer alike. f32 is not rounded to TF32.
"""

import concurrent.futures
import contextlib
import copy
import ctypes
import os

import torch

from .. import failure
from . import card

LANES = 2

# As much as cuBLAS takes on other GPUs than Hopper, where a handle has 32 MiB: the
# framework "onnx" measured no model that got slower.
CUBLAS_VARIABLE, CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8"


class Lane:
    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.MemPool()
        self.bytes = 0  # of the device, in the pool
        self.ran = set()  # batch sizes that were tried
        self.graphs = {}  # by size and buffers


class GPU:
    def __init__(self, env, model):
        if torch.version.cuda is None:
            raise ValueError("PyTorch %s is built without CUDA, and the node runs on GPU %s" % (torch.__version__, env.device))
        if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph") or not hasattr(torch.cuda, "use_mem_pool"):
            raise ValueError("PyTorch %s gives no CUDA graphs away; want 2.8 or newer on a GPU" % torch.__version__)
        self.env, self.model = env, model
        os.environ.setdefault(CUBLAS_VARIABLE, CUBLAS_WORKSPACE)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        self.worker = concurrent.futures.ThreadPoolExecutor(1, "pytorch")

    def load(self):
        env = self.env
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a shadow loads while others serve
        try:
            self.sample = card.sample(env)
            self.reference = self.answer()
        finally:
            torch.set_num_threads(threads)

    def answer(self):
        """What the CPU answers; in f32 where it does not compute in f16, None where it
        does not at all."""
        env, module = self.env, self.model.module
        try:
            return card.try_on(env, module, self.sample)
        except ValueError as e:
            if env.input.type != "f16":
                raise
            why = e
        try:
            wide = copy.deepcopy(module).float()
            return card.try_on(env, wide, self.sample.float())
        except Exception:  # of the copy, which is a stand-in
            env.info("%s; its answers on the GPU are not checked" % why)
            return None

    def link(self):
        return self.worker.submit(self.link_there).result()

    def link_there(self):
        torch.cuda.set_device(0)
        device = torch.device("cuda:0")
        free, _ = torch.cuda.mem_get_info()
        self.module, took = self.model.put(device, self.lend)
        self.model.module = None  # the host's copy
        self.lanes = [Lane() for _ in range(LANES)]
        self.aside = torch.cuda.Stream()
        self.try_size(self.lanes[0], self.env.batches[0])
        left, _ = torch.cuda.mem_get_info()
        # Handles and code are in the difference, and so are other processes' comings and
        # goings: no more is believed than what was seen of the former.
        most = 400 << 20
        return max(took, min(free - left - self.lanes[0].bytes, took + most))

    def lend(self, file):
        """The flat file's bytes where the node keeps them, or None."""
        shared = self.env.weights(file)
        if shared is None:
            return None
        self.env.info("weights are shared: %d bytes of %s" % (shared.bytes, os.path.basename(file)))
        return torch.as_tensor(shared, device="cuda:0")

    def configure(self, slot, n, input, outputs):
        graph, took = self.worker.submit(self.configure_there, slot, n, input, outputs).result()
        self.env.graph(slot, n, graph.raw_cuda_graph())
        return took

    def configure_there(self, slot, n, input, outputs):
        lane = self.lanes[slot % LANES]
        buffers = (n, input.address) + tuple(o.address for o in outputs)
        if buffers not in lane.graphs:
            self.try_size(lane, n)
            lane.graphs[buffers] = self.capture(lane, n, input, outputs)
        return lane.graphs[buffers], lane.bytes

    def try_size(self, lane, n):
        """Run a size once, in memory of its own: what is made on demand is made, and its
        answers are held against the CPU's."""
        if n in lane.ran:
            return
        # Where the lane has no graph, what the trial took is there for the capture.
        stream, pool = lane.stream, torch.cuda.use_mem_pool(lane.pool)
        if lane.graphs:
            stream, pool = self.aside, contextlib.nullcontext()
        with _Counted(lane), pool, torch.cuda.stream(stream):
            x = self.sample.to("cuda:0").expand((n,) + self.env.input.shape).contiguous()
            for _ in range(2):
                y = card.try_on(self.env, self.module, x)
                # As the graph does it, so that no kernel is new to the capture.
                y = [torch.empty(t.shape, dtype=torch.float32, device="cuda:0").copy_(t) for t in y]
            got = [t.cpu() for t in y]
            del x, y
        if self.reference is not None:
            try:
                card.compare(self.env, self.reference, got)
            except card.WrongAnswers as e:
                raise card.WrongAnswers(self.explain(e)) from None
        lane.ran.add(n)

    def explain(self, e):
        """What is known to make answers wrong, where that is so here."""
        percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or environment("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if percent in ("", "100"):
            return str(e)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        return ("%s; MPS shows it %d multiprocessors (%s %%), and cuBLAS has wrong kernels for some numbers of them: "
                "use partitions, or another percentage" % (e, sms, percent))

    def capture(self, lane, n, input, outputs):
        with _Counted(lane), torch.cuda.stream(lane.stream):
            x = torch.as_tensor(input, device="cuda:0")
            into = [torch.as_tensor(o, device="cuda:0") for o in outputs]
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            # Other threads go on calling CUDA.
            graph.capture_begin(pool=lane.pool.id, capture_error_mode="thread_local")
            try:
                for to, y in zip(into, card.outputs(self.env.outputs, card.run(self.module, x), n)):
                    to.copy_(y)
            except BaseException as e:
                try:
                    graph.capture_end()
                except RuntimeError:
                    pass  # it says that the capture is broken, for the reason above
                if failure(e):
                    raise
                raise ValueError("batch of %d cannot be captured as a CUDA graph: %s" % (n, card.last_line(e))) from e
            graph.capture_end()
        return graph

    def infer(self, slot, n):
        raise RuntimeError("batch of %d in slot %d was not handed over as a graph" % (n, slot))

    def close(self):
        # Graphs and memory are the process's, which ends.
        self.worker.shutdown(wait=False)


class _Counted:
    """Adds to a lane what its pool grows by."""

    def __init__(self, lane):
        self.lane = lane

    def __enter__(self):
        self.before = torch.cuda.memory_reserved()

    def __exit__(self, *_):
        self.lane.bytes += max(0, torch.cuda.memory_reserved() - self.before)


def environment(name):
    """A variable as C has it now: libml sets the share's after Python has read them."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    return (getenv(name.encode()) or b"").decode()
