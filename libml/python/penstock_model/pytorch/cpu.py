"""PyTorch on a CPU: the model reads libml's input without a copy."""

import torch

from . import card


class CPU:
    def __init__(self, env, model):
        self.env, self.model, self.batches = env, model, {}

    def load(self):
        x = card.sample(self.env)
        card.try_on(self.env, self.model.module, x)

    def link(self):
        self.module, took = self.model.put(torch.device("cpu"))
        return took

    def configure(self, slot, n, input, outputs):
        x = torch.frombuffer(input.memory(), dtype=card.TYPES[input.type]).view(input.shape)
        ys = [torch.frombuffer(o.memory(), dtype=card.TYPES[o.type]).view(o.shape) for o in outputs]
        self.batches[slot, n] = x, ys
        return 0

    def infer(self, slot, n):
        x, into = self.batches[slot, n]
        # copy_ would broadcast a wrong shape without an error.
        for to, y in zip(into, card.outputs(self.env.outputs, card.run(self.module, x), n)):
            to.copy_(y)

    def close(self):
        self.batches.clear()
