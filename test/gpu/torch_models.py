"""Models of torchvision's (random weights) for the framework pytorch, each with a card,
pictures, and what the same model answers to them in this process, on the GPU.

    PYTHONPATH=libml/python python3 test/gpu/torch_models.py OUT

OUT/NAME/: card.yaml, its model, pictures.bin (PICTURES of 224x224x3 bytes), answers.f32
(PICTURES rows of CLASSES).
"""

import copy
import os
import sys

import torch
import torchvision

from penstock_model.pytorch import files

PICTURES, SIDE, CLASSES = 40, 224, 1000
MEAN, STD = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]

CARD = """name: %(name)s
version: 1
framework: pytorch
model: %(file)s
input:
  name: image
  size: [224, 224, 3]
  wire: {type: u8, layout: hwc}
  tensor: {type: %(type)s, layout: chw}
  mean: [123.7, 116.3, 103.5]
  std: [58.4, 57.1, 57.4]
outputs: [{name: logits, shape: [1000]}]
batches: [1, 2, 4, 8]
slo: 20s
decoder: {name: raw}
"""


def calibrated(net, x):
    """With random weights answers vanish, but for normalisation by what it has seen."""
    for m in net.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.momentum = 1.0
    with torch.no_grad():
        net.train()(x[:16])
    return net.eval()


def scripted(net, path):
    torch.jit.save(torch.jit.script(net), path)


def flat(net, path):
    scripted(net, path)
    files.write_flat(path, path)


def exported(net, path):
    n = torch.export.Dim("n", min=1, max=64)
    torch.export.save(torch.export.export(net, (torch.randn(2, 3, SIDE, SIDE),), dynamic_shapes=({0: n},)), path)


def main(out):
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    pictures = torch.randint(0, 256, (PICTURES, SIDE, SIDE, 3), dtype=torch.uint8)
    # Noise alone looks the same to a network: brightness does not.
    pictures = (pictures.float() * torch.linspace(0.1, 1, PICTURES).view(-1, 1, 1, 1)).to(torch.uint8)
    x = ((pictures.float() - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2).contiguous()
    residual, depthwise = calibrated(torchvision.models.resnet18(), x), calibrated(torchvision.models.mobilenet_v2(), x)
    for name, net, kind, write, file in (
        ("resnet18", residual, "f32", scripted, "model.pt"),
        ("flat", residual, "f32", flat, "model.pt"),
        ("exported", residual, "f32", exported, "model.pt2"),
        ("half", depthwise.half(), "f16", scripted, "model.pt"),
    ):
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        write(net, os.path.join(folder, file))
        there = copy.deepcopy(net).cuda()
        with torch.inference_mode():
            y = torch.cat([there(part.to(next(net.parameters()).dtype).cuda()).float().cpu() for part in x.split(8)])
        pictures.numpy().tofile(os.path.join(folder, "pictures.bin"))
        y.numpy().tofile(os.path.join(folder, "answers.f32"))
        with open(os.path.join(folder, "card.yaml"), "w") as f:
            f.write(CARD % {"name": name, "type": kind, "file": file})
        print(name, "answers are", tuple(y.shape), "farthest apart", (y - y[0]).abs().max().item() / y.abs().max().item())


if __name__ == "__main__":
    main(sys.argv[1])
