"""What OpenCV makes of pictures. The standard input has a JSON object per line: the file of a picture, its format, its size, the
size of the result, and whether the result is a mean. The answer is the file that the object names: f32, height x width x 3."""
import json
import sys

import cv2
import numpy as np

BAYER = {"rg": cv2.COLOR_BayerBG2RGB, "gr": cv2.COLOR_BayerGB2RGB, "gb": cv2.COLOR_BayerGR2RGB, "bg": cv2.COLOR_BayerRG2RGB}


def rgb(data, form, width, height):
    """The picture in levels of 0 to 255, as f32 unless it has 8 bits."""
    if form == "yyyyuv":  # as nv12
        groups = data.reshape(height // 2, width // 2, 6)
        light = groups[:, :, :4].reshape(height // 2, width // 2, 2, 2).transpose(0, 2, 1, 3)
        data, form = np.concatenate([light.reshape(-1), groups[:, :, 4:].reshape(-1)]), "nv12"
    if form in ("nv12", "i420"):
        code = cv2.COLOR_YUV2RGB_NV12 if form == "nv12" else cv2.COLOR_YUV2RGB_I420
        return cv2.cvtColor(data.reshape(height * 3 // 2, width), code)
    if form in ("uyvy", "yuyv"):
        code = cv2.COLOR_YUV2RGB_UYVY if form == "uyvy" else cv2.COLOR_YUV2RGB_YUYV
        return cv2.cvtColor(data.reshape(height, width, 2), code)
    if form == "rgb8":
        return data.reshape(height, width, 3)
    if form == "bgr8":
        return np.ascontiguousarray(data.reshape(height, width, 3)[:, :, ::-1])
    if form == "grey8":
        return cv2.cvtColor(data.reshape(height, width), cv2.COLOR_GRAY2RGB)
    family, order, bits = ("grey", None, form[4:]) if form.startswith("grey") else ("bayer", form[6:8], form[8:])
    depth = int(bits.rstrip("packed"))
    samples = data.view("<u2").reshape(height, width) if depth > 8 else data.reshape(height, width)
    picture = cv2.cvtColor(samples, BAYER[order] if family == "bayer" else cv2.COLOR_GRAY2RGB)
    return picture if depth == 8 else (picture * np.float32(255 / (2**depth - 1))).astype(np.float32)


for line in sys.stdin:
    q = json.loads(line)
    picture = rgb(np.fromfile(q["picture"], np.uint8), q["format"], q["width"], q["height"])
    how = cv2.INTER_AREA if q["area"] else cv2.INTER_LINEAR
    cv2.resize(picture, (q["to_width"], q["to_height"]), interpolation=how).astype(np.float32).tofile(q["result"])
