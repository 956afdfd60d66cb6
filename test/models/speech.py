"""Whether there is speech in a sound. Each answer depends on what the stream sent before, so streams take turns."""

import numpy as np
import torch
from silero_vad import load_silero_vad

from suite import client, inputs, near

RATE, CHUNK = 16000, 512
t = np.arange(60 * CHUNK) / RATE


def vowel(pitch, formants):
    """Harmonics of a voice, loudest near the formants, in syllables."""
    harmonics = pitch * np.arange(1, 40)
    loudness = sum(np.exp(-(((harmonics - f) / 120) ** 2)) for f in formants) + 0.01
    sound = sum(a * np.sin(2 * np.pi * h * t) for a, h in zip(loudness, harmonics))
    return (0.2 * sound / np.abs(sound).max() * (np.sin(2 * np.pi * 3 * t) > -0.3)).astype(np.float32)


noise = np.random.default_rng(1).normal(0, 0.05, t.size).astype(np.float32)
sounds = [vowel(120, [700, 1200, 2500]) + noise / 20, noise, vowel(210, [300, 2300, 3000])]
streams = [(load_silero_vad(onnx=True), client("speech"), sound, []) for sound in sounds]
far = 0.0
for at in range(0, t.size, CHUNK):
    for model, stream, sound, scores in streams:
        want = model(torch.from_numpy(sound[at : at + CHUNK]), RATE).item()
        chunk = np.asarray(inputs[0])  # with the end of the one before
        inputs.clear()
        got = stream.infer(chunk, deadline=60).tensors["output"].item()
        far = max(far, near(f"chunk at {at}", got, want, 1e-3))
        scores.append(got)
print(f"{len(sounds)} streams of {t.size // CHUNK} chunks: scores differ by at most {far:.2g}; from {[min(s[3]) for s in streams]} to {[max(s[3]) for s in streams]}")
