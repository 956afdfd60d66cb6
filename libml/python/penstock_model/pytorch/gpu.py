"""PyTorch on a GPU.

    load        loads the model into host memory and compares it with its card; the CPU
                answers a picture of noise
    link        copies the weights to the device, or attaches those that the node keeps; runs
                and checks the smallest size
    configure   runs and checks the size, the first time in private memory; captures it over
                libml's buffers, and hands the graph over (Environment.graph)
    a batch     libml launches the graph: no Python runs

libml moves a graph's kernels to other multiprocessors. So a slot that replaces another, over
the same buffers, gets the other's graph.

PyTorch runs on one thread, because each thread has handles of cuBLAS and cuDNN, and each
handle has memory. A lane (slots 0 and 2, or 1 and 3) has a stream to capture on: cuBLAS has a
workspace per stream, and graphs of two lanes run at the same time. A lane also has a pool,
from which its graphs take temporary memory. Graphs of one lane never run together, and none
reads another's memory, so they share it. If a graph of the lane may be in flight, a new size
is tried on another stream, without a lane's pool.

cuDNN's heuristics choose the kernels (torch.backends.cudnn.benchmark stays off). So active
and shadow choose the same kernels and return the same answers. f32 is not rounded to TF32.
"""

import concurrent.futures
import contextlib
import copy
import ctypes
import os

import torch

from .. import WrongAnswers, failure
from . import card

LANES = 2

# cuBLAS's default on GPUs before Hopper. On Hopper a handle takes 32 MiB, but in measurements
# with the framework "onnx" no model was slower with less.
CUBLAS_VARIABLE, CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8"


class Lane:
    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.MemPool()
        self.bytes = 0  # of device memory in the pool
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
            self.samples = card.samples(env)
            self.reference = self.answer()
        finally:
            torch.set_num_threads(threads)

    def answer(self):
        """The CPU's answers. They are in f32 if the CPU cannot run the model in f16, and None if
        it cannot run it at all."""
        env, module = self.env, self.model.module
        try:
            return card.try_on(env, module, self.samples)
        except ValueError as e:
            if all(i.type != "f16" for i in env.inputs):
                raise
            why = e
        try:
            wide = copy.deepcopy(module).float()
            return card.try_on(env, wide, [x.float() if x.is_floating_point() else x for x in self.samples])
        except Exception:  # the copy is optional
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
        # The difference contains handles and code, but also memory of other processes. 400 MiB
        # is the largest measured size of the former.
        most = 400 << 20
        return max(took, min(free - left - self.lanes[0].bytes, took + most))

    def lend(self, file):
        """The flat file's bytes if the node keeps them, or None."""
        shared = self.env.weights(file)
        if shared is None:
            return None
        self.env.info("weights are shared: %d bytes of %s" % (shared.bytes, os.path.basename(file)))
        return torch.as_tensor(shared, device="cuda:0")

    def configure(self, slot, n, inputs, outputs):
        graph, took = self.worker.submit(self.configure_there, slot, n, inputs, outputs).result()
        self.env.graph(slot, n, graph.raw_cuda_graph())
        return took

    def configure_there(self, slot, n, inputs, outputs):
        lane = self.lanes[slot % LANES]
        buffers = (n,) + tuple(t.address for t in inputs + outputs)
        if buffers not in lane.graphs:
            self.try_size(lane, n)
            lane.graphs[buffers] = self.capture(lane, n, inputs, outputs)
        return lane.graphs[buffers], lane.bytes

    def try_size(self, lane, n):
        """Run a size in private memory, so that PyTorch makes everything that it makes on
        demand, and compare the answers with the CPU's."""
        if n in lane.ran:
            return
        # If the lane has no graph, the trial's memory stays in the pool for the capture.
        stream, pool = lane.stream, torch.cuda.use_mem_pool(lane.pool)
        if lane.graphs:
            stream, pool = self.aside, contextlib.nullcontext()
        with _Counted(lane), pool, torch.cuda.stream(stream):
            xs = [x.to("cuda:0").expand((n,) + x.shape[1:]).contiguous() for x in self.samples]
            for _ in range(2):
                y = card.try_on(self.env, self.module, xs)
                # The graph copies, too, so that no kernel is new in the capture.
                y = [torch.empty(t.shape, dtype=card.TYPES[o.type], device="cuda:0").copy_(t) for t, o in zip(y, self.env.outputs)]
            got = [t.cpu() for t in y]
            del xs, y
        if self.reference is not None:
            try:
                card.compare(self.env, self.reference, got)
            except WrongAnswers as e:
                raise WrongAnswers(self.explain(e)) from None
        lane.ran.add(n)

    def explain(self, e):
        """The error with the known cause of wrong answers, if this process has it."""
        percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or environment("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if percent in ("", "100"):
            return str(e)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        return ("%s; MPS shows it %d multiprocessors (%s %%), and cuBLAS has wrong kernels for some numbers of them: "
                "use partitions, or another percentage" % (e, sms, percent))

    def capture(self, lane, n, inputs, outputs):
        with _Counted(lane), torch.cuda.stream(lane.stream):
            xs, into = ([torch.as_tensor(t, device="cuda:0").view(card.TYPES[t.type]) for t in tensors] for tensors in (inputs, outputs))
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            # Other threads call CUDA at the same time.
            graph.capture_begin(pool=lane.pool.id, capture_error_mode="thread_local")
            try:
                for to, y in zip(into, card.outputs(self.env.outputs, card.run(self.module, xs), n)):
                    to.copy_(y)
            except BaseException as e:
                try:
                    graph.capture_end()
                except RuntimeError:
                    pass  # it only reports the failure above again
                if failure(e):
                    raise
                raise ValueError("batch of %d cannot be captured as a CUDA graph: %s" % (n, card.last_line(e))) from e
            graph.capture_end()
        return graph

    def infer(self, slot, n):
        raise RuntimeError("batch of %d in slot %d was not handed over as a graph" % (n, slot))

    def close(self):
        # The end of the process frees graphs and memory.
        self.worker.shutdown(wait=False)


class _Counted:
    """Adds the growth of a lane's pool to lane.bytes."""

    def __init__(self, lane):
        self.lane = lane

    def __enter__(self):
        self.before = torch.cuda.memory_reserved()

    def __exit__(self, *_):
        self.lane.bytes += max(0, torch.cuda.memory_reserved() - self.before)


def environment(name):
    """A variable's value in C: libml sets some after Python has read its environment."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    return (getenv(name.encode()) or b"").decode()
