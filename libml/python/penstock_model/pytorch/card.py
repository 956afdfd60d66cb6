"""Compares a model's answers with its card, and a GPU's with the CPU's."""

import math

import torch

from .. import WrongAnswers, failure
from .files import last_line

# PyTorch before 2.3 has no u16, u32 and u64.
TYPES = {name: getattr(torch, of) for name, of in {
    "bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}.items() if hasattr(torch, of)}

# The max difference between a value and the CPU's, divided by the largest value of its output.
# The framework "onnx" has the same limit. Its correct models differed by at most 0.06, and
# those that a GPU's libraries computed incorrectly by more than 0.4.
FARTHEST = 0.25


def run(module, xs):
    """What the module returns for a batch of each input. PyTorch does not recompile, so the first
    batch of a size runs like the thousandth."""
    with torch.inference_mode(), torch.jit.optimized_execution(False):
        return module(*xs)


def outputs(card_outputs, y, n):
    """The model's outputs in the card's order: of a dict by name, else by place. ValueError
    has the model's outputs and the card's."""
    if isinstance(y, dict):
        missing = [o.name for o in card_outputs if o.name not in y]
        if missing:
            raise ValueError("model gives outputs %s, and the card has %s" % (", ".join(map(str, y)), ", ".join(missing)))
        y = [y[o.name] for o in card_outputs]
    elif not isinstance(y, (list, tuple)):
        y = [y]
    if len(y) != len(card_outputs):
        raise ValueError("model gives %d outputs, and the card has %d" % (len(y), len(card_outputs)))
    for o, t in zip(card_outputs, y):
        if not isinstance(t, torch.Tensor):
            raise ValueError("output %s of the model is of type %s, want a tensor" % (o.name, type(t).__name__))
        if tuple(t.shape) != (n,) + o.shape:
            raise ValueError("output %s of the model is %s, and the card says %s" % (o.name, list(t.shape), [n] + list(o.shape)))
        if t.is_complex():
            raise ValueError("output %s of the model is of %s, which %s cannot hold" % (o.name, t.dtype, o.type))
    return y


def try_on(env, module, xs):
    """The outputs of a batch of each input. ValueError says why the model refuses them."""
    try:
        y = run(module, xs)
    except Exception as e:  # the model's code may raise any
        if failure(e):
            raise
        floats = sorted({str(t.dtype).replace("torch.", "") for t in list(module.parameters()) if t.is_floating_point()})
        of = " (its weights are %s)" % ", ".join(floats) if floats else ""
        given = ", ".join("%s of %s" % (list(x.shape), i.type) for x, i in zip(xs, env.inputs))
        raise ValueError("model does not take %s, which the card says%s: %s" % (given, of, last_line(e))) from e
    return outputs(env.outputs, y, len(xs[0]))


def samples(env):
    """A batch of one of each input. Whole numbers may be indexes, so they are 0."""
    if "input" in env.card:
        return [picture(env)]
    generator = torch.Generator().manual_seed(1)
    return [torch.randn((1,) + i.shape, generator=generator).to(TYPES[i.type]) if TYPES[i.type].is_floating_point
            else torch.zeros((1,) + i.shape, dtype=TYPES[i.type]) for i in env.inputs]


def picture(env):
    """A picture of noise in the format of the gather's output. Its values are those of bytes,
    also if pictures on the wire are not."""
    shape = (1,) + env.input.shape
    noise = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1))
    if env.input.type == "u8":
        return noise.to(torch.uint8)
    x = noise.to(torch.float32)
    mean, std = env.card["input"].get("mean"), env.card["input"].get("std")
    if mean:
        of = (1, -1, 1, 1) if env.input.layout == "chw" else (1, 1, 1, -1)
        x = (x - torch.tensor(mean).view(of)) / torch.tensor(std).view(of)
    return x.to(TYPES[env.input.type])


def distance(want, got):
    """The largest difference divided by the largest value; NaN if a value is NaN."""
    want, got = want.to(torch.float32), got.to(torch.float32)
    worst, largest = (want - got).abs().max().item(), want.abs().max().item()
    if worst == 0:
        return 0.0
    return worst / largest if largest else math.inf


def compare(env, want, got):
    """Compare a batch's outputs with one image's. Raise WrongAnswers if they differ."""
    for o, w, g in zip(env.outputs, want, got):
        d = distance(w.cpu().expand(g.shape), g.cpu())
        if not d <= FARTHEST:
            raise WrongAnswers("model answers wrongly on this GPU: output %s is %.2g of its largest value away from the CPU's" % (o.name, d))
