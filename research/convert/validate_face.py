#!/usr/bin/env python3
"""Finds the score_threshold of models/zoo/face by pictures with and without a face.

    validate_face.py [--faces DIR]

Needs numpy, onnxruntime, pillow, scikit-image and scikit-learn. The pictures are those that the
last two packages carry, the shipped ones, and patterns made here. DIR has more photos of one face
each. Half of the pictures chooses the threshold, the other half only checks it. All variants of a
picture are in the same half.
"""

import argparse
import importlib.util
import pathlib

import numpy as np
import onnxruntime
from PIL import Image

SIDE = 128  # pixels, of the model's input
THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
MOST_FALSE_ALARMS = 0.01
CROPS = 12  # of each photo
PATTERNS = 400

# Photos and drawings in scikit-image without a face of a person.
FACELESS = """brick cell chelsea chessboard_GRAY clock_motion coffee coins color grass gravel horse
hubble_deep_field ihc logo microaneurysms moon motorcycle_left page phantom retina rocket text""".split()

zoo = pathlib.Path(__file__).resolve().parents[2] / "models/zoo"


def package(name: str) -> pathlib.Path:
    return pathlib.Path(importlib.util.find_spec(name).origin).parent


def letterbox(picture: Image.Image) -> Image.Image:
    picture = picture.convert("RGB")
    scale = SIDE / max(picture.size)
    width, height = (max(1, round(scale * n)) for n in picture.size)
    sheet = Image.new("RGB", (SIDE, SIDE))
    sheet.paste(picture.resize((width, height), Image.BILINEAR), ((SIDE - width) // 2, (SIDE - height) // 2))
    return sheet


class Model:
    def __init__(self, path: pathlib.Path):
        self.session = onnxruntime.InferenceSession(str(path))

    def score(self, picture: Image.Image) -> float:
        """Returns the score of the best box."""
        pixels = np.asarray(letterbox(picture), np.float32)[None] / 127.5 - 1
        logits = self.session.run(["Identity:0", "Identity_1:0"], {"input:0": pixels})
        return float(1 / (1 + np.exp(-max(l.max() for l in logits))))


def bordered(picture: Image.Image) -> list[Image.Image]:
    """Returns a picture that fills a half, a third and a fifth of a grey one's side."""
    out = []
    for border in (0.5, 1, 2):
        side = round(picture.width * (1 + 2 * border))
        sheet = Image.new("L", (side, side), 128)
        sheet.paste(picture, ((side - picture.width) // 2,) * 2)
        out.append(sheet.resize((SIDE, SIDE), Image.BICUBIC))
    return out


def crops(picture: Image.Image, random: np.random.Generator) -> list[Image.Image]:
    """Returns a photo and square parts of it, of a quarter to all of its shorter side."""
    out = [picture]
    shorter = min(picture.size)
    for _ in range(CROPS):
        side = int(random.integers(max(16, shorter // 4), shorter + 1))
        x, y = (int(random.integers(0, n - side + 1)) for n in picture.size)
        out.append(picture.crop((x, y, x + side, y + side)))
    return out


def pattern(random: np.random.Generator) -> Image.Image:
    """Returns a test pattern: a shape of any period in one colour on another, bars, or discs."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    one, other = random.integers(0, 256, (2, 3))
    period = 4 + 60 * random.random()
    middle = SIDE / 2
    shapes = (
        lambda: 0.5 + 0.5 * np.sin(2 * np.pi * np.hypot(x - middle, y - middle) / period),
        lambda: np.hypot(x % period - period / 2, y % period - period / 2) < period / 3,
        lambda: (x // period + y // period) % 2,
        lambda: 0.5 + 0.25 * np.sin(2 * np.pi * x / period) + 0.25 * np.sin(2 * np.pi * y / period),
        lambda: random.random((SIDE, SIDE)),
        lambda: (x * random.random() + y * random.random()) / (2 * SIDE),
    )
    kind = random.integers(0, len(shapes) + 2)
    if kind < len(shapes):
        part = shapes[kind]()[:, :, None]
        picture = part * one + (1 - part) * other
    elif kind == len(shapes):
        picture = random.integers(0, 256, (1, int(random.integers(2, 9)), 3)).repeat(SIDE, 0).repeat(SIDE, 1)
    else:
        picture = np.tile(one, (SIDE, SIDE, 1))
        for _ in range(6):
            cx, cy, r = random.integers(0, SIDE), random.integers(0, SIDE), random.integers(6, 40)
            picture[np.hypot(x - cx, y - cy) < r] = random.integers(0, 256, 3)
    return Image.fromarray(picture.astype(np.uint8))


def collect(more: pathlib.Path | None) -> dict[str, list[list[Image.Image]]]:
    """Returns the pictures of each kind: the variants of each source."""
    random = np.random.default_rng(20261128)
    skimage, sklearn = package("skimage") / "data", package("sklearn") / "datasets/images"
    lfw = [bordered(Image.fromarray((255 * p).astype(np.uint8))) for p in np.load(skimage / "lfw_subset.npy")]
    faces = [zoo / "pictures" / name for name in ("astronaut.jpg", "grace_hopper.jpg")]
    if more:
        faces += sorted(p for p in more.iterdir() if p.suffix in (".jpg", ".png"))
    faceless = [next(skimage.glob(name + ".*")) for name in FACELESS] + sorted(sklearn.glob("*.jpg"))
    return {
        "faces of LFW": lfw[:100],
        "photos with a face": [[p := Image.open(f).convert("RGB"), p.transpose(Image.FLIP_LEFT_RIGHT)] for f in faces],
        "other parts of LFW": lfw[100:],
        "photos without a face": [crops(Image.open(f).convert("RGB"), random) for f in faceless],
        "patterns": [[pattern(random)] for _ in range(PATTERNS)],
    }


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--faces", type=pathlib.Path, metavar="DIR")
    model = Model(zoo / "face/model.onnx")

    kinds = collect(flags.parse_args().faces)
    halves = []
    for first in (0, 1):
        halves.append({k: np.array([model.score(p) for source in s[first::2] for p in source]) for k, s in kinds.items()})

    print("| half | pictures | number |", *(f"{t:.2f} |" for t in THRESHOLDS))
    print("|---|---|---|" + "---|" * len(THRESHOLDS))
    for name, scores in zip(("chooses", "checks"), halves):
        for kind, s in scores.items():
            print(f"| {name} | {kind} | {len(s)} |", *(f"{(s >= t).sum()} |" for t in THRESHOLDS))

    others = np.concatenate([s for kind, s in halves[0].items() if "with a face" not in kind and "faces of" not in kind])
    chosen = next((t for t in THRESHOLDS if (others >= t).mean() <= MOST_FALSE_ALARMS), THRESHOLDS[-1])
    print(f"\nscore_threshold: {chosen} ({MOST_FALSE_ALARMS:.0%} false alarms at most)")


if __name__ == "__main__":
    main()
