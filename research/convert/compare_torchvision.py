#!/usr/bin/env python3
"""Proves that the exported models are torchvision's networks.

    compare_torchvision.py [--state] DIR [NAME...]

Each network is made by torchvision, batch normalisation is folded into its convolutions,
and it gets the parameters of DIR/NAME/model.onnx: all of them, under the same names, or
this fails. Then both answer the same pictures of noise in f32, PyTorch here and ONNX
Runtime there, and the largest difference of a probability is printed, as a part of the
largest one. Above a thousandth this fails.

--state writes DIR/NAME/state.pt as well: the parameters for load_state_dict, f16.

Needs torch, torchvision, onnx, onnxruntime. All in DIR is compared if no NAME is given.
"""

import argparse
import concurrent.futures
import pathlib
import sys

import numpy
import onnx
import onnxruntime
import torch
import torchvision
from onnx import TensorProto, numpy_helper

CONSTRUCTORS = {
    "alexnet": torchvision.models.alexnet,
    "mobilenetv2": torchvision.models.mobilenet_v2,
    "resnet50": torchvision.models.resnet50,
    "resnet152": torchvision.models.resnet152,
    "resnext50": torchvision.models.resnext50_32x4d,
    "vgg16": torchvision.models.vgg16,
    "vgg19": torchvision.models.vgg19,
}

TOLERANCE = 1e-3  # f32, summed in another order through up to 152 layers


def fold(module):
    """Folds each batch normalisation into the convolution before it."""
    children = list(module.named_children())
    for (first, conv), (second, norm) in zip(children, children[1:]):
        if isinstance(conv, torch.nn.Conv2d) and isinstance(norm, torch.nn.BatchNorm2d):
            setattr(module, first, torch.nn.utils.fuse_conv_bn_eval(conv, norm))
            setattr(module, second, torch.nn.Identity())
    for _, child in children:
        fold(child)


def parameters(model):
    """The initializers that are parameters: those with a dot in their name."""
    return {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in model.graph.initializer if "." in i.name}


def in_f32(model):
    """The same graph and values, all in f32."""
    for i in model.graph.initializer:
        if i.data_type == TensorProto.FLOAT16:
            i.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(i).astype(numpy.float32), i.name))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def compare(folder, name, state):
    model = onnx.load(folder / name / "model.onnx")
    weights = parameters(model)
    net = CONSTRUCTORS[name](weights=None).eval()
    fold(net)
    net.load_state_dict({k: v.float() for k, v in weights.items()})  # strict: an error if a parameter is missing or unknown
    if state:
        torch.save(weights, folder / name / "state.pt")
    pictures = numpy.random.default_rng(1).normal(0, 1.26, (3, 3, 224, 224)).astype(numpy.float32)
    with torch.no_grad():
        ours = torch.softmax(net(torch.from_numpy(pictures)), dim=1).numpy()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(in_f32(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"picture": pictures})[0]
    return float(numpy.abs(theirs - ours).max() / ours.max()), float(ours.max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=pathlib.Path)
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--state", action="store_true", help="write DIR/NAME/state.pt")
    args = parser.parse_args()
    names = args.names or [n for n in CONSTRUCTORS if (args.folder / n / "model.onnx").exists()]
    if unknown := [n for n in names if n not in CONSTRUCTORS]:
        sys.exit(f"{', '.join(unknown)}: none of torchvision's; these are: {', '.join(CONSTRUCTORS)}")
    if not names:
        sys.exit(f"{args.folder}: no exported model")
    torch.set_num_threads(max(1, torch.get_num_threads() // len(names)))
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        for name, (difference, largest) in zip(names, pool.map(lambda n: compare(args.folder, n, args.state), names)):
            print(f"{name}: torchvision's parameters and answers, largest difference {difference:.1e} of {largest:.3f}", flush=True)
            wrong += not difference <= TOLERANCE
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
