"""Boxes of photos. The package puts a photo above black, the gateway between grey, so boxes of whole photos differ a bit."""

import sys

import nudenet
import numpy as np
from PIL import Image

from suite import PICTURES, ask, ask_photo, equal, near, picture

detector = nudenet.NudeDetector()
labels = vars(nudenet.nudenet)["__labels"]


def sized(corners):
    """Left, top, width and height, as the package has them."""
    return np.hstack([corners[..., :2], corners[..., 2:] - corners[..., :2]])


def overlap(a, b):
    """What two boxes have in common, as a part of what both cover."""
    common = np.prod(np.clip(np.minimum(a[:2] + a[2:], b[:2] + b[2:]) - np.maximum(a[:2], b[:2]), 0, None))
    return common / (np.prod(a[2:]) + np.prod(b[2:]) - common)


for name in "astronaut", "grace_hopper":
    want = detector.detect(f"{PICTURES}{name}.jpg")
    photo = Image.open(f"{PICTURES}{name}.jpg").convert("RGB")
    answer = ask("detector", picture(0, 255)).boxes
    boxes = sized(answer.corners * max(photo.size))
    equal(f"{name} has boxes", len(want) > 0, True)
    own = np.array([w["box"] for w in want])
    for i, w in enumerate(want):
        # Their code rounds down.
        at = min(range(len(boxes)), key=lambda j: (labels[answer.classes[j]] != w["class"], np.abs(boxes[j] - own[i]).max()))
        equal(f"label of {name}", labels[answer.classes[at]], w["class"])
        near(f"box of {name}", boxes[at], own[i] + 0.5, 0.51)
        near(f"score of {name}", float(answer.scores[at]), w["score"], 0.01)
    # Of boxes that overlap, the package keeps one, and Penstock one per label.
    for box in boxes:
        if not any(overlap(box, o) > 0.45 for o in own):
            sys.exit(f"{name}: Penstock answers {box}, the package only {own}")

    whole = ask_photo("detector", photo)
    equal(f"labels of the photo {name}", list(whole["labels"]), [w["class"] for w in want])
    share = [round(overlap(sized(b), o), 3) for b, o in zip(whole["boxes"], own)]
    if min(share) < 0.85:
        sys.exit(f"{name}: the gateway answers {whole['boxes']}, the package {own}")
    print(f"{name}: {len(want)} boxes; of the whole photo {share} in common, scores {whole['scores']}, the package {[w['score'] for w in want]}")
