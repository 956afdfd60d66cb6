"""Writes a picture for each built-in model: face.raw, detect.raw, fashion.raw. Needs Pillow; run it in the root of the clone."""

import gzip
from PIL import Image, ImageOps

photo = Image.open("models/zoo/pictures/astronaut.jpg").convert("RGB")
for name, side in ("face", 128), ("detect", 416):
    with open(name + ".raw", "wb") as f:
        f.write(ImageOps.pad(photo, (side, side), Image.Resampling.BILINEAR).tobytes())
with gzip.open("models/zoo/fashion-mnist/images.idx3.gz") as images, open("fashion.raw", "wb") as f:
    images.seek(16)                         # the header of an IDX file
    f.write(images.read(784))
