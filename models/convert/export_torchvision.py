#!/usr/bin/env python3
"""Exports torchvision's architectures, with random weights, to ONNX and a card each.

    export_torchvision.py DIR [NAME...]     NAME: resnet50 mobilenetv2 vgg19 alexnet

They are for measuring what the architectures cost, never for answers: the weights
are drawn from a seed, and the card says so. Inside they are fp16, as they would be
served: input "picture" f16 [n, 3, 224, 224], output "prob" f32 [n, 1000], n dynamic.
Batch normalisation takes its statistics from pictures of noise, so that activations
stay in fp16's range as a trained model's do, and is folded into the convolutions before
they are rounded to fp16.

DIR/NAME/model.onnx and DIR/NAME/card.yaml are written, and DIR/exported.json last:
versions, parameters, and what the exported file answered beside PyTorch.

Needs torch, torchvision, onnx, onnxruntime; a GPU where there is one.
"""

import json
import pathlib
import sys
import warnings

import numpy
import onnxruntime
import torch
import torchvision

SEED = 20261121
SIDE = 224

# ImageNet's, of pixels from 0 to 255.
MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]

ARCHITECTURES = {
    "resnet50": torchvision.models.resnet50,
    "mobilenetv2": torchvision.models.mobilenet_v2,
    "vgg19": torchvision.models.vgg19,
    "alexnet": torchvision.models.alexnet,
}

CARD = """\
# {constructor} of torchvision {torchvision} with RANDOM weights (seed {seed}), fp16: for
# measuring what the architecture costs. Its answers mean nothing.
name: {name}
version: 1
framework: onnx
model: model.onnx
input:
  name: picture
  size: [{side}, {side}, 3] # height, width, channels
  wire: {{type: u8, layout: hwc}} # RGB, {wire_bytes:,} bytes
  tensor: {{type: f16, layout: chw}}
  mean: {mean} # ImageNet's
  std: {std}
outputs:
  - {{name: prob, shape: [1000]}}
batches: [1, 2, 4, 8, 16, 32]
slo: 25ms
decoder: {{name: topk, k: 5}}
"""


class Served(torch.nn.Module):
    """The network in fp16, its answer as f32 probabilities."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, picture):
        return torch.softmax(self.net(picture).float(), dim=1)


def noise(count, generator):
    """Pictures of noise as the gather would normalise them, f32."""
    pixels = torch.randint(0, 256, (count, 3, SIDE, SIDE), generator=generator).float()
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    return (pixels - mean) / std


def fold(module):
    """Folds each batch normalisation into the convolution before it, in f32."""
    children = list(module.named_children())
    for (first, conv), (second, norm) in zip(children, children[1:]):
        if isinstance(conv, torch.nn.Conv2d) and isinstance(norm, torch.nn.BatchNorm2d):
            setattr(module, first, torch.nn.utils.fuse_conv_bn_eval(conv, norm))
            setattr(module, second, torch.nn.Identity())
    for _, child in children:
        fold(child)


def make(name, device):
    """The architecture with weights from the seed, ready to be exported."""
    torch.manual_seed(SEED)
    net = ARCHITECTURES[name](weights=None).to(device)
    generator = torch.Generator().manual_seed(SEED)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean of what it sees
    net.train()
    with torch.no_grad():
        for _ in range(4):
            net(noise(16, generator).to(device))
    net.eval()
    fold(net)
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in net.modules()):
        sys.exit(f"{name}: a batch normalisation has no convolution before it")
    return Served(net.half())


def export(name, folder, device):
    """Writes model and card; returns what is to be told of them."""
    folder.mkdir(parents=True, exist_ok=True)
    served = make(name, device)
    path = folder / "model.onnx"
    example = noise(2, torch.Generator().manual_seed(1)).half().to(device)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            served, (example,), str(path), dynamo=False, opset_version=17,
            input_names=["picture"], output_names=["prob"],
            dynamic_axes={"picture": {0: "n"}, "prob": {0: "n"}},
        )
        ours = served(noise(5, torch.Generator().manual_seed(2)).half().to(device)).cpu().numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"picture": noise(5, torch.Generator().manual_seed(2)).half().numpy()})[0]
    if theirs.shape != (5, 1000) or not numpy.isfinite(theirs).all():
        sys.exit(f"{name}: the exported model answers {theirs.shape}, finite: {numpy.isfinite(theirs).all()}")
    (folder / "card.yaml").write_text(CARD.format(
        constructor=ARCHITECTURES[name].__name__, torchvision=torchvision.__version__, seed=SEED,
        name=name, side=SIDE, wire_bytes=SIDE * SIDE * 3, mean=MEAN, std=STD))
    return {
        "parameters": sum(p.numel() for p in served.parameters()),
        "bytes": path.stat().st_size,
        # fp16 on another device, summed in another order.
        "largest_difference_from_pytorch": float(numpy.abs(theirs - ours).max()),
        "largest_probability": float(ours.max()),
    }


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    folder = pathlib.Path(sys.argv[1])
    names = sys.argv[2:] or list(ARCHITECTURES)
    unknown = [n for n in names if n not in ARCHITECTURES]
    if unknown:
        sys.exit(f"no architecture {', '.join(unknown)}; there are: {', '.join(ARCHITECTURES)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    told = {"torch": torch.__version__, "torchvision": torchvision.__version__, "seed": SEED, "weights": "random", "models": {}}
    for name in names:
        told["models"][name] = export(name, folder / name, device)
        print(name, told["models"][name], flush=True)
    (folder / "exported.json").write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
