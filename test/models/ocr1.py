"""The first generation of the reader, and its way to run one of its models."""

from rapidocr_onnxruntime import RapidOCR

from ocr import compare

reader = RapidOCR()


def run(image, model):
    return reader(image, **{m: m == model for m in ("use_det", "use_cls", "use_rec")})[0]


compare(lambda i: run(i, "use_det"), lambda i: run(i, "use_cls")[0], lambda i: run(i, "use_rec")[0])
