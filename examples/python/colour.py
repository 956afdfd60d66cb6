"""A model in plain Python: a picture's mean red, green and blue.

    bin/penstock if add average --model examples/python/card.yaml --port 5012
"""

import penstock_model

CHANNELS = 3


class MeanColour(penstock_model.Framework):
    """It has nothing to load. A real one reads its weights in load_model and puts them on
    the device in link_model."""

    def __init__(self):
        self.batches = {}

    def init(self, env):
        """Check the card: only the program knows what the model can do."""
        if env.on_gpu:
            raise ValueError("this model runs on the CPU only, and the node's device is %s" % env.device)
        height, width, channels = env.card["input"]["size"]
        if channels != CHANNELS or env.input.type != "u8" or env.input.layout != "hwc":
            raise ValueError("card has input of %s in %s, want %d channels of u8 in hwc" % (env.input, env.input.layout, CHANNELS))
        if [o.shape for o in env.outputs] != [(CHANNELS,)]:
            raise ValueError("want a card with one output, of shape [%d]" % CHANNELS)
        self.pixels = height * width

    def configure_batch(self, slot, n, input, outputs):
        """Where a batch of n finds its pictures and leaves its answers, without a copy."""
        self.batches[slot, n] = input.memory(), outputs[0].elements()

    def infer_batch(self, slot, n):
        """Average each channel of each picture, in 0..255."""
        pictures, means = self.batches[slot, n]
        size = self.pixels * CHANNELS
        for i in range(n):
            picture = pictures[i * size:(i + 1) * size]
            for c in range(CHANNELS):
                means[i, c] = sum(picture[c::CHANNELS]) / self.pixels


if __name__ == "__main__":
    penstock_model.main(MeanColour())
