"""The formats of a card's `model`, and how they are loaded into host memory.

    torch.jit.save(model, FILE)       TorchScript: scripted, traced, frozen
    torch.export.save(program, FILE)  an exported program, its batch axis dynamic
    python3 -m penstock_model.pytorch flat  TorchScript without weights, and a flat file next to it

These formats cannot run arbitrary code. A pickled Python object (torch.save) can, and is
refused.
"""

import json
import os
import zipfile

import torch

from .. import flat

NOTE = "penstock.json"  # in a TorchScript file: {"weights": FILE} if they are in another file

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}
NAMES = {t: name for name, t in DTYPES.items()}


class Model:
    """A model in host memory. module is callable; put returns one on a device."""

    module = None
    weights = None  # the flat file, if there is one

    def put(self, device, lend=None):
        """The module on a device, and the bytes that it uses there. lend returns the flat
        file's bytes on the device as a tensor, which the module then uses without a copy, or
        None."""
        raise NotImplementedError


def read(path):
    """Read a model file. ValueError says why it is not a model."""
    kind = kind_of(path)
    if kind == "export":
        return Exported(path)
    return Scripted(path)


def kind_of(path):
    try:
        with zipfile.ZipFile(path) as z:
            names = z.namelist()
    except zipfile.BadZipFile:
        raise ValueError("%s is neither of torch.jit.save nor of torch.export.save: it is no archive" % path) from None
    ends = lambda *what: any(n == w or n.endswith("/" + w) for n in names for w in what)
    if any("/code/" in "/" + n for n in names) and ends("constants.pkl"):
        return "script"
    if ends("serialized_exported_program.json", "archive_format") or any("models/" in n and n.endswith(".json") for n in names):
        if any("data/aotinductor" in n for n in names):
            raise ValueError("%s is compiled for one device (AOTInductor); want what torch.export.save wrote" % path)
        return "export"
    if ends("data.pkl"):
        raise ValueError("%s is a pickled Python object (torch.save), whose code is not in it; want torch.jit.save or torch.export.save" % path)
    raise ValueError("%s is an archive, but neither of torch.jit.save nor of torch.export.save" % path)


def bytes_of(module):
    tensors = list(module.parameters()) + list(module.buffers())
    return sum(t.numel() * t.element_size() for t in tensors)


class Scripted(Model):
    def __init__(self, path):
        self.path = path
        note = {NOTE: ""}
        try:
            self.module = torch.jit.load(path, map_location="cpu", _extra_files=note).eval()
        except RuntimeError as e:
            raise ValueError("%s cannot be read by PyTorch %s: %s" % (path, torch.__version__, last_line(e))) from None
        text = note[NOTE]
        if isinstance(text, bytes):
            text = text.decode()
        if text:
            self.weights = os.path.join(os.path.dirname(path), json.loads(text)["weights"])
            self.memory, self.entries = flat.read(self.weights)
            self.attach(self.module, torch.frombuffer(self.memory, dtype=torch.uint8))

    def put(self, device, lend=None):
        if self.weights is None:
            return self.put_whole(device)
        whole, took = (lend(self.weights) if lend else None), 0
        if whole is None:
            host = torch.frombuffer(self.memory, dtype=torch.uint8)
            whole = host.to(device)
            took = host.numel()
        elif whole.numel() != len(self.memory):
            raise ValueError("%s has %d bytes, and what the node shares of it %d: it has changed" % (self.weights, len(self.memory), whole.numel()))
        module = self.module
        if device != torch.device("cpu"):
            module = torch.jit.load(self.path, map_location=device).eval()
        self.attach(module, whole)
        return module, took

    def put_whole(self, device):
        module = self.module
        if device != torch.device("cpu"):
            # module.to would not move tensors that were frozen or traced into the code.
            if constants(module):
                module = torch.jit.load(self.path, map_location=device).eval()
            else:
                module = module.to(device)
        return module, bytes_of(module)

    def attach(self, module, whole):
        """Make each parameter and buffer refer to its place in whole, the flat file's bytes on
        the module's device."""
        have = dict(self.entries)
        for name, t in named(module):
            e = have.pop(name, None)
            if e is None:
                raise ValueError("%s has no %s, which %s wants" % (self.weights, name, self.path))
            if DTYPES.get(e.dtype) != t.dtype:
                raise ValueError("%s: %s is %s, and %s wants %s" % (self.weights, name, e.dtype, self.path, NAMES.get(t.dtype, t.dtype)))
            part = whole[e.begin:e.end].view(DTYPES[e.dtype])
            t.data = part.as_strided(e.shape, e.strides)


def named(module):
    """Every parameter and buffer once, even if it has several names."""
    seen = set()
    for name, t in list(module.named_parameters()) + list(module.named_buffers()):
        if id(t) not in seen:
            seen.add(id(t))
            yield name, t


def constants(module):
    """Whether the code contains tensors."""
    graph = module.inlined_graph  # keep a reference: the nodes do not
    return any(n.hasAttribute("value") and n.kindOf("value") == "t" for n in graph.findAllNodes("prim::Constant"))


class Exported(Model):
    def __init__(self, path):
        if not hasattr(torch, "export") or not hasattr(torch.export, "load"):
            raise ValueError("%s is an exported program, which PyTorch %s cannot read; want 2.1 or newer" % (path, torch.__version__))
        try:
            self.program = torch.export.load(path)
        except Exception as e:  # the loader may raise any
            raise ValueError("%s cannot be read by PyTorch %s: %s" % (path, torch.__version__, last_line(e))) from None
        self.module = self.program.module()

    def put(self, device, lend=None):
        if device == torch.device("cpu"):
            return self.module, bytes_of(self.module)
        from torch.export.passes import move_to_device_pass
        module = move_to_device_pass(self.program, device).module()
        return module, bytes_of(module)


def last_line(e):
    """The text of an exception, without the stack that PyTorch adds."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    for line in reversed(lines):
        head = line.partition(":")[0]
        if head.endswith("Error") and " " not in head:
            return line
    return lines[0] if lines else type(e).__name__


def write_flat(path, out):
    """Write a TorchScript file's weights to OUT.weights and the rest to OUT. Tensors that are
    frozen into its code stay there. Return the number of bytes in OUT.weights."""
    module = torch.jit.load(path, map_location="cpu").eval()
    beside = os.path.basename(out) + ".weights"
    tensors = []
    for name, t in named(module):
        if t.dtype not in NAMES:
            raise ValueError("%s: %s is %s, which a flat file cannot hold" % (path, name, t.dtype))
        t, strides = t.detach(), t.stride()
        if not packed(t):
            t = t.contiguous()
            strides = t.stride()
        flatbytes = t.as_strided((t.numel(),), (1,)).view(torch.uint8) if t.numel() else t.reshape(0).view(torch.uint8)
        tensors.append((name, NAMES[t.dtype], t.shape, strides, flatbytes.numpy().tobytes()))
    if not tensors:
        raise ValueError("%s has no parameters of its own: it is frozen; write it without torch.jit.freeze" % path)
    flat.write(os.path.join(os.path.dirname(out), beside), tensors)
    for _, t in named(module):
        t.data = torch.empty(0, dtype=t.dtype)
    torch.jit.save(module, out, _extra_files={NOTE: json.dumps({"weights": beside})})
    return sum(len(data) for *_, data in tensors)


def packed(t):
    """Whether the elements fill memory without gaps, in any order of axes."""
    step = 1
    for size, stride in sorted(zip(t.shape, t.stride()), key=lambda p: p[1]):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True
