"""libpenstock.so, through ctypes. All numbers and layouts are those of penstock.h."""

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

VARIABLE = "PENSTOCK_LIBRARY"
ABI = 1

OK, FAILED, NO_HOST_STAGE, OUT_OF_MEMORY, DEVICE_LOST, NOT_SHARED, WRONG_ANSWERS = range(7)
DEBUG, INFO, WARN, ERROR = range(4)
TYPES = {1: "u8", 2: "f16", 3: "f32", 4: "bool", 5: "i8", 6: "i16", 7: "i32", 8: "i64", 9: "u16", 10: "u32", 11: "u64",
         12: "bf16", 13: "f64"}
LAYOUTS = {0: "", 1: "hwc", 2: "chw"}


class Tensor(Structure):
    _fields_ = [
        ("name", c_char_p), ("shape", POINTER(c_int64)), ("bytes", c_uint64), ("rank", c_uint32),
        ("type", c_uint32), ("layout", c_uint32), ("offset", c_uint32),
    ]


class Environment(Structure):
    _fields_ = [
        ("size", c_uint32), ("abi", c_uint32), ("name", c_char_p), ("version", c_uint32), ("threads", c_int32),
        ("model", c_char_p), ("card", c_char_p), ("device", c_char_p), ("input", POINTER(Tensor)),
        ("outputs", POINTER(Tensor)), ("output_count", c_uint32), ("batch_count", c_uint32), ("batches", POINTER(c_int32)),
        ("input_count", c_uint32),
    ]


INIT = CFUNCTYPE(c_int, c_void_p, POINTER(Environment))
LOAD = CFUNCTYPE(c_int, c_void_p)
LINK = CFUNCTYPE(c_int, c_void_p, POINTER(c_int64))
CONFIGURE = CFUNCTYPE(c_int, c_void_p, c_int32, c_int32, c_void_p, POINTER(c_void_p), POINTER(c_int64))
INFER = CFUNCTYPE(c_int, c_void_p, c_int32, c_int32)
DEINIT = CFUNCTYPE(c_int, c_void_p)


class Framework(Structure):
    _fields_ = [
        ("size", c_uint32), ("abi", c_uint32), ("init", INIT), ("load_model", LOAD), ("link_model", LINK),
        ("configure_batch", CONFIGURE), ("infer_batch", INFER), ("deinit", DEINIT),
    ]


def places():
    """The places to search for libpenstock.so, in this order."""
    here = os.path.dirname(os.path.abspath(__file__))
    up = [here]
    for _ in range(3):
        up.append(os.path.dirname(up[-1]))
    return [
        os.path.join(up[2], "libpenstock.so"),  # installed: lib/python/penstock_model, lib/libpenstock.so
        os.path.join(up[3], "bin", "lib", "libpenstock.so"),  # cloned: libml/python/penstock_model
    ]


def load():
    """Open the library. OSError names the places."""
    path = os.environ.get(VARIABLE)
    if not path:
        found = [p for p in places() if os.path.exists(p)]
        # If there is none, the loader searches its default places.
        path = found[0] if found else "libpenstock.so"
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise OSError("open libpenstock.so: %s; it is looked for where %s says, else at %s, else by the loader; "
                      "`make build` builds it" % (e, VARIABLE, ", ".join(places()))) from None
    for name, result, arguments in (
        ("penstock_abi", c_uint32, []),
        ("penstock_run", c_int, [POINTER(Framework), c_void_p]),
        ("penstock_last_error", c_char_p, []),
        ("penstock_error", None, [c_char_p]),
        ("penstock_log", None, [c_int32, c_char_p]),
        ("penstock_stream", c_void_p, [c_int32]),
        ("penstock_graph", c_int, [c_int32, c_int32, c_void_p]),
        ("penstock_weights", c_int, [c_char_p, POINTER(c_void_p), POINTER(c_uint64)]),
    ):
        try:
            f = getattr(lib, name)
        except AttributeError:
            raise OSError("%s has no %s: it is older than this module" % (path, name)) from None
        f.restype, f.argtypes = result, arguments
    if lib.penstock_abi() != ABI:
        raise OSError("%s has ABI %d, and this module %d: use the module that came with the library" % (path, lib.penstock_abi(), ABI))
    return lib
