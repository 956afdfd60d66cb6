"""Compares the three models of a reader of text with its package, on text that Pillow draws."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from suite import ask, ask_photo, equal, near, picture, taken

LINES = [
    "LOT 4711-B", "EXP 2027/03", "SN: 00A39F7", "AB-123-CD", "Made in Italy", "Batch 88", "No entry", "25.4 mm", "OK", "B",
    "Platform 9", "Total 1,204.50 EUR",
]
# Wider than the 320 pixels of the other lines, and of widths between those that the model runs with.
LONG = ["Store in a cool and dry place", "Best before end: see bottom of the package"]
SIDE = 736  # of the page: as large as the model's input, so that nothing resizes it


def line(text, size=28):
    font = ImageFont.load_default(size)
    strip = Image.new("RGB", (int(font.getlength(text)) + 16, size + 16), "white")
    ImageDraw.Draw(strip).text((8, 6), text, "black", font=font)
    return strip


def page():
    """All lines in several sizes and directions."""
    paper = Image.new("RGB", (SIDE, SIDE), "white")
    for i, text in enumerate(LINES):
        strip = line(text, 20 + 2 * i).rotate(3 * (i % 5 - 2), expand=True, fillcolor="white")
        paper.paste(strip, (20 + 360 * (i % 2), 20 + 115 * (i // 2)))
    return paper


def bgr(image):
    return np.asarray(image)[:, :, ::-1].copy()


def seen():
    """The picture in RGB that the package gave its model."""
    return picture(127.5, 127.5)[:, :, ::-1]


def compare(find, direction, read):
    """Compares functions find, turned and text with these of the package, which take a picture in BGR.

    find returns the corners of each place, direction the label and its score, read the text and its score.
    """
    want = find(bgr(page()))
    got = ask("find", seen()).polygons
    equal("number of places", len(got.corners), len(want))
    far = []
    for corners in want:  # the first corner may be another one
        turns = [np.roll(c, -i, 0) * SIDE for c in got.corners for i in range(4)]
        far.append(near("place", min(turns, key=lambda c: np.abs(c - corners).max()), corners, 2))
    print(f"{len(want)} places: corners differ by at most {max(far):.2f} pixels")

    for text in LINES:
        for turned in 0, 180:
            label, score = direction(bgr(line(text).rotate(turned)))
            found = ask("turned", seen()).classes
            equal(f"direction of {text} at {turned}", ["0", "180"][found.classes[0]], label)
            near(f"score of the direction of {text} at {turned}", float(found.probabilities[0]), score, 0.01)

    for text in LINES:
        label, score = read(bgr(line(text)))
        found = ask("text", seen()).text
        equal("text", found.text, label)
        near(f"score of {text}", found.score, score, 0.01)
        equal("text of the photo", str(ask_photo("text", line(text))["text"]), label)
    for text in LONG:
        label, _ = read(bgr(line(text)))
        taken()
        equal("long text of the photo", str(ask_photo("text", line(text))["text"]), label)
    print(f"{len(LINES)} lines: directions and texts are equal, also of whole photos, and the texts of {len(LONG)} long lines")
