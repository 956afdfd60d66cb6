"""PyTorch on a CPU: the model reads libml's inputs without a copy."""

import torch

from . import card


class CPU:
    def __init__(self, env, model):
        self.env, self.model, self.batches = env, model, {}

    def load(self):
        card.try_on(self.env, self.model.module, card.samples(self.env))

    def link(self):
        self.module, took = self.model.put(torch.device("cpu"))
        return took

    def configure(self, slot, n, inputs, outputs):
        self.batches[slot, n] = [[torch.frombuffer(t.memory(), dtype=card.TYPES[t.type]).view(t.shape) for t in tensors]
                                 for tensors in (inputs, outputs)]
        return 0

    def infer(self, slot, n):
        xs, into = self.batches[slot, n]
        # copy_ would broadcast a wrong shape without an error.
        for to, y in zip(into, card.outputs(self.env.outputs, card.run(self.module, xs), n)):
            to.copy_(y)

    def close(self):
        self.batches.clear()
