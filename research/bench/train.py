"""Trains a network like ResNet-50 on random pictures, and prints `steps N` after every second step.

usage: train.py [batch size]
"""

import sys

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x))


def network():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(count):
            layers.append(Block(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    print(f"torch {torch.__version__} on {device}", file=sys.stderr)
    net = network().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    pictures = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)
    step = 0
    while True:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = functional.cross_entropy(net(pictures), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            if device == "cuda":
                torch.cuda.synchronize()
            print(f"steps {step}", flush=True)


main()
