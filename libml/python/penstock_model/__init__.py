"""Register a model from Python: the six callbacks of libml over libpenstock.so.

    import penstock_model

    class Mean(penstock_model.Framework):
        def configure_batch(self, slot, n, input, outputs):
            self.batches[slot, n] = input.memory(), outputs[0].memory()
        def infer_batch(self, slot, n):
            ...

    penstock_model.main(Mean())

The node starts the program with the command of its card (`command:`).
docs/libml/python.md is a tutorial. The module is pure Python and imports only the
standard library.

Callbacks run on the thread that called run, and on threads of the library. No two run at
once, except that on a GPU configure_batch may run at the same time as infer_batch. Python
code holds the interpreter's lock, so a configure_batch that computes in Python delays
infer_batch. On a GPU hand over a graph (Environment.graph): batches then run no Python.
"""

import ctypes
import io
import json
import operator
import os
import reprlib
import sys
import traceback

from . import _library

__all__ = [
    "Framework", "Environment", "Spec", "HostTensor", "DeviceTensor", "Weights",
    "Error", "NoHostStage", "OutOfMemory", "DeviceLost", "WrongAnswers", "run", "main",
]


class Error(Exception):
    """run failed; its text is one line."""


class NoHostStage(Exception):
    """Raised by load_model, not a failure: this framework can load a model only on the
    device. link_model then does both."""


class OutOfMemory(Exception):
    """Raised by a callback if the device has no memory left. MemoryError and PyTorch's
    OutOfMemoryError have the same effect."""


class DeviceLost(Exception):
    """Raised by a callback if the device has failed permanently: the process ends at once,
    without deinit."""


class WrongAnswers(Exception):
    """Raised by link_model or configure_batch if the model's answers on this GPU were compared,
    and are wrong. The node tries another share."""


class Framework:
    """The paper's six callbacks (GSLICE section 3.1). Override those that the model
    needs. An exception is a failure, and its first line is the reason that the operator
    sees. penstock.h describes the order of calls, the threads and the device.
    """

    def init(self, env):
        """Start the framework and check the card, env.card. Touch no device."""

    def load_model(self):
        """Load the model into host memory. A shadow does no more before it is woken. Touch
        no device, and use no CPU after the return."""

    def link_model(self):
        """Put the model on the device. Return the bytes that it holds there until deinit,
        or None."""
        return 0

    def configure_batch(self, slot, n, input, outputs):
        """Prepare batches of n images in a slot. input and outputs are HostTensor, or
        DeviceTensor on a GPU, over the library's buffers. input is a list if the card has
        `inputs`. They are valid until the next
        call for the same slot and n. Only infer_batch reads the input and writes the
        outputs. Return the bytes that a batch needs in addition to both, or None."""
        return 0

    def infer_batch(self, slot, n):
        """Run a batch: write to the outputs of configure_batch, and return nothing. On a
        CPU they must be written when it returns; on a GPU it queues the work on
        env.stream(slot). It is not called for a batch that env.graph handed over."""
        raise NotImplementedError("%s has no infer_batch, and its configure_batch gave no graph" % type(self).__name__)

    def deinit(self):
        """Free everything."""


class Spec:
    """One tensor of the card, for one image: name, shape (without the batch axis),
    type ("bool", "i8" to "i64", "u8" to "u64", "f16", "bf16", "f32", "f64"), layout ("hwc", "chw", or "" of outputs), bytes."""

    def __init__(self, name, shape, type, layout, bytes, offset=0):
        self.name, self.shape, self.type, self.layout, self.bytes = name, tuple(shape), type, layout, bytes
        self.offset = offset  # of an input in the memory for all

    def __repr__(self):
        return "%s %s of %s" % (self.name, list(self.shape), self.type)


# The element types in the array interface of numpy, and in struct. Both know no bf16, and show it as u16.
_TYPESTR = {"bool": "|b1", "i8": "|i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "u8": "|u1", "u16": "<u2", "u32": "<u4",
            "u64": "<u8", "f16": "<f2", "bf16": "<u2", "f32": "<f4", "f64": "<f8"}
_FORMAT = {"bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
           "f16": "e", "bf16": "H", "f32": "f", "f64": "d"}


class _Tensor:
    """n images over one of the library's buffers: shape begins with n."""

    def __init__(self, address, n, spec):
        self.address = address
        self.name, self.type = spec.name, spec.type
        self.shape = (n,) + spec.shape
        self.bytes = n * spec.bytes

    def _interface(self):
        return {"version": 3, "shape": self.shape, "typestr": _TYPESTR[self.type], "data": (self.address, False)}

    def __repr__(self):
        return "%s(%s, %s of %s at %#x)" % (type(self).__name__, self.name, list(self.shape), self.type, self.address)


class HostTensor(_Tensor):
    """A tensor in host memory. numpy.asarray uses it without a copy
    (__array_interface__); torch.frombuffer uses its memory()."""

    @property
    def __array_interface__(self):
        return self._interface()

    def memory(self):
        """The bytes, writable and flat."""
        return memoryview((ctypes.c_ubyte * self.bytes).from_address(self.address)).cast("B")

    def elements(self):
        """The elements, t[i, y, x, c], as a memoryview of its type. Python before 3.12
        cannot index f16."""
        return self.memory().cast(_FORMAT[self.type], self.shape)


class DeviceTensor(_Tensor):
    """A tensor in a GPU's memory. cupy.asarray, numba and torch.as_tensor use it without a
    copy (__cuda_array_interface__)."""

    @property
    def __cuda_array_interface__(self):
        # The work that writes it is on the slot's stream, and so is the framework's.
        return dict(self._interface(), strides=None, stream=None)


class Weights:
    """A file's bytes in the GPU's memory. All processes that request the same file share
    them. A write to them faults. numpy-like libraries use them as bytes
    (__cuda_array_interface__)."""

    def __init__(self, address, bytes):
        self.address, self.bytes = address, bytes

    @property
    def __cuda_array_interface__(self):
        # PyTorch refuses read-only memory.
        return {"version": 3, "shape": (self.bytes,), "typestr": "|u1", "data": (self.address, False), "strides": None, "stream": None}


class Environment:
    """A model's surroundings; read-only.

    name, version: the card's. model: the model's file, an absolute path, or "". card:
    the complete card, with the keys of its file and all defaults; "slo" is in seconds.
    device: "cpu", or the UUID of a GPU, which is CUDA's device 0. threads: the max number
    of CPU threads to keep busy. inputs, outputs: Spec; input: the first of inputs. batches:
    the batch sizes, ascending."""

    def __init__(self, library, raw):
        self._library = library
        text = lambda s: (s or b"").decode("utf-8", "replace")
        self.name, self.version, self.model = text(raw.name), raw.version, text(raw.model)
        self.card = json.loads(text(raw.card))
        self.device, self.threads = text(raw.device), raw.threads
        self.inputs = [_spec(raw.input[i]) for i in range(raw.input_count)]
        self.input = self.inputs[0]
        self.outputs = [_spec(raw.outputs[i]) for i in range(raw.output_count)]
        self.batches = [raw.batches[i] for i in range(raw.batch_count)]

    @property
    def on_gpu(self):
        return self.device != "cpu"

    def stream(self, slot):
        """The CUstream of a slot, as a number; 0 on a CPU. Request it in configure_batch:
        it changes when the process moves to other multiprocessors."""
        return self._library.penstock_stream(slot) or 0

    def graph(self, slot, n, graph):
        """Hand over a CUDA graph (its CUgraph, as a number) in configure_batch, on its
        thread. The library launches a copy of it for each batch of n in that slot, on
        the slot's multiprocessors, and no longer calls infer_batch for these batches.
        The caller keeps the graph."""
        code = self._library.penstock_graph(slot, n, graph)
        if code != _library.OK:
            raise _of(self._library, code)

    def weights(self, file):
        """A file of weights that the node holds on the GPU once for all processes. It is
        None if the node holds none: load your own. Call it in link_model."""
        address, size = ctypes.c_void_p(), ctypes.c_uint64()
        code = self._library.penstock_weights(os.fsencode(file), ctypes.byref(address), ctypes.byref(size))
        if code == _library.NOT_SHARED:
            return None
        if code != _library.OK:
            raise _of(self._library, code)
        return Weights(address.value, size.value)

    def debug(self, text):
        self._log(_library.DEBUG, text)

    def info(self, text):
        self._log(_library.INFO, text)

    def warn(self, text):
        self._log(_library.WARN, text)

    def error(self, text):
        self._log(_library.ERROR, text)

    def _log(self, level, text):
        self._library.penstock_log(level, _bytes(text))


def _spec(t):
    shape = [t.shape[i] for i in range(t.rank)]
    return Spec((t.name or b"").decode("utf-8", "replace"), shape, _library.TYPES[t.type], _library.LAYOUTS[t.layout], t.bytes, t.offset)


def _bytes(text):
    return str(text).replace("\0", "?").encode("utf-8", "replace")


def _of(library, code=_library.FAILED):
    """The exception of a call of the library that failed."""
    text = library.penstock_last_error().decode("utf-8", "replace")
    return {_library.OUT_OF_MEMORY: OutOfMemory, _library.DEVICE_LOST: DeviceLost}.get(code, Error)(text)


# Errors of CUDA after which no call of the process succeeds, and their text in PyTorch
# (cudaError_t in driver_types.h; the numbers are those of cuda.h).
_LOST = {
    214: "uncorrectable ECC error", 220: "uncorrectable NVLink error", 700: "illegal memory access",
    702: "launch timed out", 709: "context is destroyed", 710: "device-side assert", 714: "hardware stack error",
    715: "illegal instruction", 716: "misaligned address", 717: "operation not supported on global/shared address space",
    718: "invalid program counter", 719: "unspecified launch failure",
    805: "MPS client failed to connect", 806: "Remote procedural call between the MPS server",
    807: "MPS server is not ready",
}


def code_of(e):
    """The penstock_code of an exception."""
    if isinstance(e, NoHostStage):
        return _library.NO_HOST_STAGE
    if isinstance(e, (OutOfMemory, MemoryError)):
        return _library.OUT_OF_MEMORY
    if isinstance(e, DeviceLost):
        return _library.DEVICE_LOST
    if isinstance(e, WrongAnswers):
        return _library.WRONG_ANSWERS
    # Recognize PyTorch's exceptions without an import of PyTorch.
    names = {c.__name__ for c in type(e).__mro__ if c.__module__.partition(".")[0] in ("torch", "cupy", "cupy_backends")}
    if "OutOfMemoryError" in names:
        return _library.OUT_OF_MEMORY
    if getattr(e, "error_code", None) in _LOST and names:
        return _library.DEVICE_LOST
    text = str(e)
    if isinstance(e, RuntimeError) and "CUDA" in text:
        if any(error in text for error in _LOST.values()):
            return _library.DEVICE_LOST
        if "out of memory" in text:
            return _library.OUT_OF_MEMORY
    return _library.FAILED


def failure(e):
    """Whether an exception means that the device has no memory, or has failed permanently."""
    return code_of(e) in (_library.OUT_OF_MEMORY, _library.DEVICE_LOST)


def reason_of(e):
    """The line that the operator sees of an exception: the first line of its text, with the
    name of its class if that is informative."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    name = type(e).__name__
    if not lines:
        return name
    if type(e) in (Error, RuntimeError, ValueError, OutOfMemory, DeviceLost, WrongAnswers):
        return lines[0]
    return "%s: %s" % (name, lines[0])


def _described(value):
    """A callback's result, in a few words: its value if that is short, else its type."""
    name = type(value).__qualname__
    if isinstance(value, (float, str)) or isinstance(value, int) and value.bit_length() <= 128:
        return "%s (%s)" % (reprlib.repr(value), name)
    if type(value).__module__ != "builtins":
        name = "%s.%s" % (type(value).__module__, name)
    return "%s %s" % ("an" if name[0] in "aeiouAEIOU" else "a", name)


# The max of an int64_t.
_MOST_BYTES = (1 << 63) - 1


def _size(callback, value, of):
    """The bytes that a callback returned; None means 0. of describes them in errors."""
    if value is None:
        return 0
    try:
        if type(value).__name__ in ("bool", "bool_"):  # numpy's, too
            raise TypeError
        whole = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        raise ValueError("%s returned %s, want the bytes that %s, or None" % (callback, _described(value), of)) from None
    if not 0 <= whole <= _MOST_BYTES:
        raise ValueError("%s returned %s, want the bytes that %s, 0 to %d, or None" % (callback, _described(whole), of, _MOST_BYTES))
    return whole


class _Process:
    """The table of callbacks of one framework; it must outlive penstock_run."""

    def __init__(self, library, framework):
        self.library, self.framework, self.on_gpu = library, framework, False
        self.table = _library.Framework(
            ctypes.sizeof(_library.Framework), _library.ABI,
            _library.INIT(self.init), _library.LOAD(self.load_model), _library.LINK(self.link_model),
            _library.CONFIGURE(self.configure_batch), _library.INFER(self.infer_batch), _library.DEINIT(self.deinit))

    # No exception may leave a callback, not even SystemExit: ctypes would drop it, and the
    # callback would return 0.

    def init(self, _, raw):
        try:
            self.env = Environment(self.library, raw[0])
            self.framework.init(self.env)
            return _library.OK
        except BaseException as e:
            return self.fail(e)

    def load_model(self, _):
        try:
            self.framework.load_model()
            return _library.OK
        except BaseException as e:
            return self.fail(e)

    def link_model(self, _, persistent):
        try:
            persistent[0] = _size("link_model", self.framework.link_model(), "it holds on the device")
            return _library.OK
        except BaseException as e:
            return self.fail(e)

    def configure_batch(self, _, slot, n, input, outputs, ephemeral):
        try:
            env = self.env
            make = DeviceTensor if env.on_gpu else HostTensor
            inputs = [make((input or 0) + t.offset, n, t) for t in env.inputs]
            held = self.framework.configure_batch(
                slot, n, inputs if "inputs" in env.card else inputs[0], [make(outputs[i] or 0, n, o) for i, o in enumerate(env.outputs)])
            ephemeral[0] = _size("configure_batch", held, "a batch takes beyond its input and outputs")
            return _library.OK
        except BaseException as e:
            return self.fail(e)

    def infer_batch(self, _, slot, n):
        try:
            result = self.framework.infer_batch(slot, n)
            if result is not None:
                # The library adds the callback's name.
                raise ValueError("returned %s: write to the outputs in place, and return nothing" % _described(result))
            return _library.OK
        except BaseException as e:
            return self.fail(e)

    def deinit(self, _):
        try:
            self.framework.deinit()
            return _library.OK
        except BaseException as e:
            return self.fail(e)

    def fail(self, e):
        code = code_of(e)
        if code != _library.NO_HOST_STAGE:
            for line in "".join(traceback.format_exception(type(e), e, e.__traceback__)).splitlines():
                self.library.penstock_log(_library.DEBUG, _bytes(line))
        self.library.penstock_error(_bytes(reason_of(e)))
        return code


# The max time that a Python thread holds the interpreter's lock while another waits, such as
# a batch. Python's default is 5 ms.
SWITCH_SECONDS = 0.0005


def _by_lines():
    """Make print write line by line. For a pipe, Python buffers some kilobytes, which are lost
    if the process is killed. stderr is line-buffered by default."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def run(framework):
    """Run the process of an inference function, which a node started. It returns after a
    drain, and raises Error on a failure. While it runs, SIGTERM and SIGINT drain the
    process. It can be called once in a process. After DeviceLost end the process with
    os._exit, like main."""
    if not isinstance(framework, Framework):
        raise Error("penstock_model.run: want an instance of a subclass of penstock_model.Framework, got %s" % (
            "the class %s itself" % framework.__name__ if isinstance(framework, type) else type(framework).__name__))
    library = _library.load()
    process = _Process(library, framework)
    _by_lines()
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
    code = library.penstock_run(ctypes.byref(process.table), None)
    if code != _library.OK:
        raise _of(library, code)


def main(framework):
    """Call run, print the reason of a failure in one line, and end the process. It runs no
    exit hooks of Python: calls that touch a lost GPU may never return."""
    code = 0
    try:
        run(framework)
    except (Error, OutOfMemory, DeviceLost, OSError) as e:
        print("%s: %s" % (os.path.basename(sys.argv[0]) or "penstock", reason_of(e) if isinstance(e, (Error, DeviceLost, OutOfMemory)) else e), file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
