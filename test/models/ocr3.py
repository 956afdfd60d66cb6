"""The third generation of the reader, and its way to run one of its models."""

from rapidocr import RapidOCR

from ocr import compare

reader = RapidOCR(params={"Global.log_level": "warning"})


def run(image, model):
    return reader(image, **{m: m == model for m in ("use_det", "use_cls", "use_rec")})


def read(image):
    found = run(image, "use_rec")
    return found.txts[0], found.scores[0]


compare(lambda i: run(i, "use_det").boxes, lambda i: run(i, "use_cls").cls_res[0], read)
