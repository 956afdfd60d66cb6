"""A small network in PyTorch, from its definition to a file that a card names: the
brightness of a picture's quadrants.

    python3 examples/pytorch/quadrants.py           # writes quadrants.pt next to itself
    bin/penstock if add quadrants --model examples/pytorch/card.yaml --port 5013
"""

import os
import sys

import torch


class Quadrants(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.luma = torch.nn.Conv2d(3, 1, kernel_size=1, bias=False)
        # ITU-R BT.601: the parts of red, green and blue in brightness.
        self.luma.weight.data = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
        self.mean = torch.nn.AdaptiveAvgPool2d(2)

    def forward(self, image):  # [n, 3, height, width]
        return self.mean(self.luma(image)).flatten(1)  # [n, 4]: row by row


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    file = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "quadrants.pt")
    torch.jit.save(torch.jit.script(Quadrants().eval()), file)
