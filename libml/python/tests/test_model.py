import ctypes
import json
import os
import reprlib
import signal
import struct
import subprocess
import sys
import tempfile
import types
import unittest

import penstock_model
from penstock_model import _library, flat


class Layouts(unittest.TestCase):
    """The assertions of shim.c, for the structs in ctypes."""

    def test_offsets(self):
        for struct_, offsets, size in (
            (_library.Tensor, {"name": 0, "shape": 8, "bytes": 16, "rank": 24, "type": 28, "layout": 32}, 40),
            (_library.Environment, {"size": 0, "abi": 4, "name": 8, "version": 16, "threads": 20, "model": 24, "card": 32,
                                    "device": 40, "input": 48, "outputs": 56, "output_count": 64, "batch_count": 68, "batches": 72, "input_count": 80}, 88),
            (_library.Framework, {"size": 0, "abi": 4, "init": 8, "load_model": 16, "link_model": 24, "configure_batch": 32,
                                  "infer_batch": 40, "deinit": 48}, 56),
        ):
            for name, offset in offsets.items():
                self.assertEqual(getattr(struct_, name).offset, offset, "%s.%s" % (struct_.__name__, name))
            self.assertEqual(ctypes.sizeof(struct_), size)


class Tensors(unittest.TestCase):
    def setUp(self):
        self.memory = (ctypes.c_float * 12)(*range(12))
        self.spec = penstock_model.Spec("x", (2, 3), "f32", "", 24)

    def test_host_tensor_is_the_memory(self):
        t = penstock_model.HostTensor(ctypes.addressof(self.memory), 2, self.spec)
        self.assertEqual((t.shape, t.bytes), ((2, 2, 3), 48))
        self.assertEqual(t.elements()[1, 0, 2], 8)
        t.elements()[1, 0, 2] = 80
        self.assertEqual(self.memory[8], 80)
        t.memory()[0:4] = struct.pack("f", 5)
        self.assertEqual(self.memory[0], 5)
        self.assertEqual(t.__array_interface__["data"], (ctypes.addressof(self.memory), False))

    def test_each_says_only_what_its_device_can_read(self):
        host, device = penstock_model.HostTensor(64, 1, self.spec), penstock_model.DeviceTensor(64, 1, self.spec)
        self.assertFalse(hasattr(host, "__cuda_array_interface__"))
        self.assertFalse(hasattr(device, "__array_interface__"))
        self.assertFalse(hasattr(device, "memory"))
        self.assertEqual(device.__cuda_array_interface__["shape"], (1, 2, 3))
        self.assertEqual(device.__cuda_array_interface__["typestr"], "<f4")


class OutOfMemoryError(RuntimeError):
    pass


class AcceleratorError(RuntimeError):
    error_code = 700


OutOfMemoryError.__module__ = AcceleratorError.__module__ = "torch.cuda"


class Errors(unittest.TestCase):
    def test_codes(self):
        lost, memory, failed = _library.DEVICE_LOST, _library.OUT_OF_MEMORY, _library.FAILED
        for e, code in (
            (penstock_model.NoHostStage(), _library.NO_HOST_STAGE),
            (MemoryError(), memory), (penstock_model.OutOfMemory("x"), memory), (penstock_model.WrongAnswers("x"), _library.WRONG_ANSWERS), (OutOfMemoryError("CUDA out of memory."), memory),
            (RuntimeError("CUDA error: out of memory"), memory),
            (penstock_model.DeviceLost("x"), lost), (AcceleratorError("CUDA error"), lost),
            (RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might"), lost),
            (RuntimeError("CUDA error: unspecified launch failure"), lost),
            (RuntimeError("an illegal memory access in a text of somebody's"), failed),
            (ValueError("CUDA error: device-side assert triggered"), failed),
            (SystemExit(3), failed), (KeyboardInterrupt(), failed),
        ):
            self.assertEqual(penstock_model.code_of(e), code, repr(e))

    def test_reason_is_one_line(self):
        for e, want in (
            (ValueError("\n first\nsecond"), "first"), (KeyError("k"), "KeyError: 'k'"), (SystemExit(), "SystemExit"),
            (penstock_model.Error("x"), "x"), (MemoryError(), "MemoryError"),
        ):
            self.assertEqual(penstock_model.reason_of(e), want)


class Recorder:
    """Stands in for the library."""

    def __init__(self):
        self.lines, self.reason = [], None

    def penstock_log(self, level, text):
        self.lines.append(text)

    def penstock_error(self, text):
        self.reason = text


class Callbacks(unittest.TestCase):
    def test_nothing_leaves_a_callback(self):
        for e in (ValueError("no\nmore"), SystemExit(0), KeyboardInterrupt(), GeneratorExit()):
            class Wrong(penstock_model.Framework):
                def infer_batch(self, slot, n):
                    raise e
            library = Recorder()
            process = penstock_model._Process(library, Wrong())
            self.assertEqual(process.table.infer_batch(None, 0, 1), _library.FAILED, repr(e))
            self.assertEqual(library.reason.decode(), penstock_model.reason_of(e))
            self.assertIn(b"Traceback", library.lines[0])

    def test_a_framework_without_infer_batch_answers_nothing(self):
        class Misspelt(penstock_model.Framework):
            def inferbatch(self, slot, n):
                pass
        library = Recorder()
        process = penstock_model._Process(library, Misspelt())
        self.assertEqual(process.table.infer_batch(None, 0, 1), _library.FAILED)
        self.assertIn("Misspelt has no infer_batch", library.reason.decode())

    def test_what_is_no_framework_is_refused(self):
        class Bare:
            pass
        for it, said in ((penstock_model.Framework, "got the class Framework itself"), (Bare(), "got Bare"), (None, "got NoneType")):
            with self.assertRaisesRegex(penstock_model.Error, said):
                penstock_model.run(it)

    def test_results_reach_the_caller(self):
        class Right(penstock_model.Framework):
            def link_model(self):
                return 12
        process = penstock_model._Process(Recorder(), Right())
        held = ctypes.c_int64()
        self.assertEqual(process.table.link_model(None, ctypes.byref(held)), 0)
        self.assertEqual(held.value, 12)

    def test_no_bytes_are_none_and_0(self):
        for value, want in ((None, 0), (0, 0), (12, 12), (12.0, 12), (2**63 - 1, 2**63 - 1)):
            self.assertEqual(penstock_model._size("link_model", value, ""), want, repr(value))

    def test_results_of_other_kinds_are_refused(self):
        holds, takes = "it holds on the device", "a batch takes beyond its input and outputs"
        array, limits = type("ndarray", (), {"__module__": "numpy"})(), "0 to 9223372036854775807"
        for value, told, limited in (
            ("three", "'three' (str)", ""), ("x" * 1000, reprlib.repr("x" * 1000) + " (str)", ""), (float("nan"), "nan (float)", ""),
            (float("inf"), "inf (float)", ""), (1.5, "1.5 (float)", ""), (True, "True (bool)", ""), ("", "'' (str)", ""), ([0], "a list", ""),
            (array, "a numpy.ndarray", ""), (1 << 70, "1180591620717411303424 (int)", ", " + limits), (-1, "-1 (int)", ", " + limits),
            (10**5000, "an int", ", " + limits),
        ):
            class Wrong(penstock_model.Framework):
                def link_model(self):
                    return value

                def configure_batch(self, slot, n, input, outputs):
                    return value
            library, held = Recorder(), ctypes.c_int64()
            process = penstock_model._Process(library, Wrong())
            self.assertEqual(process.table.link_model(None, ctypes.byref(held)), _library.FAILED, told)
            self.assertEqual(library.reason.decode(), "link_model returned %s, want the bytes that %s%s, or None" % (told, holds, limited))
            process.env = types.SimpleNamespace(on_gpu=False, card={}, inputs=[penstock_model.Spec("x", (1,), "u8", "hwc", 1)], outputs=[])
            self.assertEqual(process.table.configure_batch(None, 0, 1, None, None, ctypes.byref(held)), _library.FAILED, told)
            self.assertEqual(library.reason.decode(), "configure_batch returned %s, want the bytes that %s%s, or None" % (told, takes, limited))
            self.assertEqual(held.value, 0)

    def test_outputs_are_written_and_not_returned(self):
        for value, told in (([], "a list"), (0, "0 (int)"), (penstock_model.Spec("x", (), "u8", "", 1), "a penstock_model.Spec"), ({}, "a dict")):
            class Returns(penstock_model.Framework):
                def infer_batch(self, slot, n):
                    return value
            library = Recorder()
            process = penstock_model._Process(library, Returns())
            self.assertEqual(process.table.infer_batch(None, 0, 1), _library.FAILED, told)
            self.assertEqual(library.reason.decode(), "returned %s: write to the outputs in place, and return nothing" % told)


class Output(unittest.TestCase):
    def test_a_line_is_written_before_the_process_is_killed(self):
        code = """if True:
            import os, signal, types, penstock_model
            def penstock_run(table, self):
                print("in a callback")
                os.kill(os.getpid(), signal.SIGKILL)
            penstock_model._library.load = lambda: types.SimpleNamespace(penstock_run=penstock_run)
            print("before run")
            penstock_model.run(penstock_model.Framework())
        """
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
        self.assertEqual((child.returncode, child.stdout), (-signal.SIGKILL, b"before run\nin a callback\n"))


class Flat(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "w")

    def tearDown(self):
        self.folder.cleanup()

    def test_what_is_written_is_read(self):
        flat.write(self.path, [("a", "F32", (2, 3), (3, 1), bytes(range(24))), ("b", "U8", (5,), (1,), b"12345"),
                               ("c", "F16", (2, 2), (1, 2), b"abcdefgh"), ("none", "F32", (0,), (1,), b"")])
        memory, entries = flat.read(self.path)
        self.assertEqual(memory[entries["a"].begin:entries["a"].end], bytes(range(24)))
        self.assertEqual(memory[entries["b"].begin:entries["b"].end], b"12345")
        self.assertEqual((entries["c"].shape, entries["c"].strides), ((2, 2), (1, 2)))
        for name in ("a", "b", "c"):
            self.assertEqual(entries[name].begin % flat.ALIGN, 0, name)
        # The layout requires that every byte belongs to a tensor.
        ends = sorted((e.begin, e.end) for e in entries.values())
        for (_, end), (begin, _) in zip(ends, ends[1:]):
            self.assertEqual(end, begin)
        self.assertEqual(ends[-1][1], os.path.getsize(self.path))

    def test_damaged_files_are_refused(self):
        good = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        for name, data in {
            "empty": b"", "short": b"1234567", "no header": struct.pack("<Q", 100) + b"{}",
            "a length of everything": struct.pack("<Q", 2**64 - 1) + bytes(64), "no JSON": struct.pack("<Q", 2) + b"{]1234",
            "a list": struct.pack("<Q", 2) + b"[]1234", "cut short": struct.pack("<Q", len(good)) + good + b"123",
            "backwards": struct.pack("<Q", 54) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}' + b"1234",
            "before the data": struct.pack("<Q", 55) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}' + b"1234",
            "one offset": struct.pack("<Q", 52) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}}' + b"1234",
            "a shape beyond its bytes": struct.pack("<Q", 54) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}' + b"12345678",
            "a negative shape": struct.pack("<Q", 55) + b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}' + b"1234",
            "no such type": struct.pack("<Q", 54) + b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}' + b"1234",
            "strides beyond its bytes": struct.pack("<Q", 91) + (
                b'{"__metadata__":{"strides:a":"[8]"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,4]}}   ') + b"1234",
            "no offsets": struct.pack("<Q", 32) + b'{"a":{"dtype":"F32","shape":[1]}}'[:32] + b"1234",
        }.items():
            with open(self.path, "wb") as f:
                f.write(data)
            with self.assertRaises(ValueError, msg=name) as raised:
                flat.read(self.path)
            self.assertIn(self.path, str(raised.exception), name)


if __name__ == "__main__":
    unittest.main()
