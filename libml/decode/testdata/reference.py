"""Writes the answers of other people's code for outputs of their models, which have random weights. The tests of package
decode compare with them. Each file has a card, the outputs for one picture, and what their code finds in these.

    reference.py DIR [NAME...]

Needs Debian's python3-torch, python3-torchvision and python3-onnx, the packages of requirements.txt, and the sources of
yolox 0.3.0 and insightface 2.1 in the folders YOLOX_SOURCE and INSIGHTFACE_SOURCE. Uses no network.
"""

import base64
import importlib.util
import json
import os
import sys
import types

import numpy as np
import torch

os.environ.update(YOLO_OFFLINE="true", YOLO_AUTOINSTALL="false", YOLO_VERBOSE="false")
HEIGHT, WIDTH = 64, 96


def card(decoder, outputs, size=(HEIGHT, WIDTH, 3), labels=None):
    c = {
        "name": "reference", "version": 1, "framework": "null", "slo": "1s", "decoder": decoder,
        "input": {"size": list(size), "wire": {"type": "u8", "layout": "hwc"}, "tensor": {"type": "f32", "layout": "chw"}},
        "outputs": [{"name": n, "shape": list(t.shape)} for n, t in outputs.items()],
    }
    if labels:
        c["labels"] = labels
    return c


def case(decoder, outputs, want, **more):
    outputs = {n: np.ascontiguousarray(np.asarray(t), np.float32) for n, t in outputs.items()}
    data = [base64.b64encode(t.tobytes()).decode() for t in outputs.values()]
    return {"card": card(decoder, outputs, **more), "outputs": data, "want": want}


SCALE = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], np.float64)


def visible(rows):
    """The rows of x0, y0, x1, y1, ... whose boxes are in the picture."""
    rows = np.asarray(rows, np.float64)
    clipped = np.clip(rows[:, :4] / SCALE, 0, 1)
    return rows[np.all(clipped[:, :2] < clipped[:, 2:], 1)]


def boxes(rows):
    """Rows of x0, y0, x1, y1 in pixels, score, class."""
    return [{"class": int(r[5]), "score": float(r[4]), "box": np.clip(r[:4] / SCALE, 0, 1).tolist()} for r in visible(rows)]


def spread(model, run, seed=3):
    """Random weights whose outputs differ from row to row: each normalisation gets the statistics of a picture."""
    torch.manual_seed(seed)
    model.eval()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for m in norms:
        m.momentum = 1.0
        m.train()
    with torch.no_grad():
        run(torch.rand(4, 3, HEIGHT, WIDTH))
    return model.eval()


def picture(seed=5):
    torch.manual_seed(seed)
    return torch.rand(1, 3, HEIGHT, WIDTH)


def ultralytics(yaml, kind, end=False, rows=None):
    from ultralytics.nn import tasks

    model = getattr(tasks, kind)(yaml, nc=3, verbose=False)
    spread(model, model)
    head = model.model[-1]
    for level in [*head.cv3, *getattr(head, "one2one_cv3", [])]:
        with torch.no_grad():  # scores that are not all 0 or 1
            level[-1].weight *= 0.1
            level[-1].bias.zero_()
    for level in [*head.cv2, *getattr(head, "one2one_cv2", [])]:
        if head.reg_max > 1:
            with torch.no_grad():  # boxes that are smaller than the picture
                level[-1].weight *= 0.5
                level[-1].bias.view(4, -1)[:, :3] += 4
    if hasattr(head, "end2end") or end:
        head.end2end = end
    head.export, head.format = True, "onnx"
    if rows:
        head.max_det = rows
    with torch.no_grad():
        out = model(picture())
    return list(out) if isinstance(out, (tuple, list)) else [out]


def found(prediction, conf=0.25, **more):
    from ultralytics.utils import nms

    return nms.non_max_suppression(prediction, conf, 0.5, nc=3, **more)[0].numpy()


def threshold(scores, wanted=40):
    """A score that about as many rows reach: their number must not depend on the weights."""
    scores = np.sort(np.asarray(scores).ravel())[::-1]
    return min(round(float(scores[min(wanted, len(scores) - 1)]), 3) + 0.0005, 0.9995)


def yolo_v8(yaml, kind="DetectionModel", **keys):
    out = ultralytics(yaml, kind)
    conf = threshold(out[0][0, 4:7].max(0).values)
    decoder = {"name": "yolo", "score_threshold": conf, "iou_threshold": 0.5, "max_boxes": 300, **keys}
    return out, conf, decoder


def yolov8():
    out, conf, decoder = yolo_v8("yolov8n.yaml")
    return case(decoder, {"output0": out[0][0]}, {"boxes": boxes(found(out[0], conf))})


def yolo11():
    out, conf, decoder = yolo_v8("yolo11n.yaml", classes=["1", "car"])
    return case(decoder, {"output0": out[0][0]}, {"boxes": boxes(found(out[0], conf, classes=[1, 2]))}, labels=["person", "bus", "car"])


def yolov8_pose():
    out, conf, decoder = yolo_v8("yolov8n-pose.yaml", "PoseModel", keypoints=[17, 3])
    rows = visible(found(out[0], conf))
    want = boxes(rows)
    for w, r in zip(want, rows):
        w["points"] = (r[6:].reshape(17, 3) / [WIDTH, HEIGHT, 1]).tolist()
    return case(decoder, {"output0": out[0][0]}, {"boxes": want})


def yolov8_segment():
    from ultralytics.utils import ops

    out, conf, decoder = yolo_v8("yolov8n-seg.yaml", "SegmentationModel", masks="output1", max_boxes=20)
    rows = visible(found(out[0], conf, max_det=20)).astype(np.float32)
    prototypes = out[1][0]
    masks = ops.process_mask(prototypes, torch.tensor(rows[:, 6:]), torch.tensor(rows[:, :4]), (HEIGHT, WIDTH))
    want = boxes(rows)
    for w, m in zip(want, masks):
        w["mask"] = ["".join("#" if v else "." for v in line) for line in m.tolist()]
    return case(decoder, {"output0": out[0][0], "output1": prototypes}, {"boxes": want})


def corners(rows, angle):
    from ultralytics.utils import ops

    whole = np.all(rows[:, 2:4] > 0, 1)  # random weights make boxes of negative size, too
    rows, angle = rows[whole], angle[whole]
    polygons = ops.xywhr2xyxyxyxy(torch.tensor(np.concatenate([rows[:, :4], angle], 1))).numpy() / [WIDTH, HEIGHT]
    return [{"class": int(r[5]), "score": float(r[4]), "corners": p.tolist()} for r, p in zip(rows, polygons)]


def yolo11_rotated():
    out, conf, decoder = yolo_v8("yolo11n-obb.yaml", "OBBModel", rotated=True)
    rows = found(out[0], conf, rotated=True)
    return case(decoder, {"output0": out[0][0]}, {"polygons": corners(rows, rows[:, 6:7])})


def yolov10():
    out = ultralytics("yolov10n.yaml", "DetectionModel", end=True, rows=50)
    conf = threshold(out[0][0, :, 4], 30)
    decoder = {"name": "yolo", "score_threshold": conf}
    return case(decoder, {"output0": out[0][0]}, {"boxes": boxes(found(out[0], conf, end2end=True))})


def yolo26_pose():
    out = ultralytics("yolo26n-pose.yaml", "PoseModel", end=True, rows=20)
    conf = threshold(out[0][0, :, 4], 10)
    rows = visible(found(out[0], conf, end2end=True))
    want = boxes(rows)
    for w, r in zip(want, rows):
        w["points"] = (r[6:].reshape(17, 3) / [WIDTH, HEIGHT, 1]).tolist()
    return case({"name": "yolo", "score_threshold": conf, "keypoints": [17, 3]}, {"output0": out[0][0]}, {"boxes": want})


def yolo26_rotated():
    out = ultralytics("yolo26n-obb.yaml", "OBBModel", end=True, rows=30)
    conf = threshold(out[0][0, :, 4], 20)
    rows = found(out[0], conf, end2end=True, rotated=True)
    decoder = {"name": "yolo", "score_threshold": conf, "rotated": True}
    return case(decoder, {"output0": out[0][0]}, {"polygons": corners(rows, rows[:, 6:7])})


def yolov5():
    from yolov5.models.yolo import Model
    from yolov5.utils.general import non_max_suppression

    import yolov5 as package

    model = Model(os.path.join(os.path.dirname(package.__file__), "models", "yolov5n.yaml"), nc=3)
    spread(model, model)
    with torch.no_grad():
        out = model(picture())[0]
    conf = threshold(out[0, :, 4] * out[0, :, 5:].max(-1).values)
    rows = non_max_suppression(out, conf, 0.5)[0].numpy()
    decoder = {"name": "yolo", "score_threshold": conf, "iou_threshold": 0.5, "max_boxes": 300}
    return case(decoder, {"output": out[0]}, {"boxes": boxes(rows)})


def by_path(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def yolox():
    """YOLOX's package needs a compiler: only two files of its source are used, which need none."""
    source = os.environ["YOLOX_SOURCE"]
    decode = by_path("demo_utils", os.path.join(source, "yolox/utils/demo_utils.py")).demo_postprocess
    postprocess = by_path("boxes", os.path.join(source, "yolox/utils/boxes.py")).postprocess
    rng = np.random.default_rng(1)
    out = rng.normal(0, 1, (1, 126, 8)).astype(np.float32)
    out[..., 4:] = 1 / (1 + np.exp(-2 * out[..., 4:]))
    rows = decode(out.copy(), (HEIGHT, WIDTH))
    conf = threshold(out[0, :, 4] * out[0, :, 5:].max(-1))
    got = postprocess(torch.tensor(rows), 3, conf, 0.5)[0].numpy()
    got = np.concatenate([got[:, :4], got[:, 4:5] * got[:, 5:6], got[:, 6:7]], 1)
    decoder = {"name": "yolo", "style": "yolox", "score_threshold": conf, "iou_threshold": 0.5, "max_boxes": 300}
    return case(decoder, {"output": out[0]}, {"boxes": boxes(got)})


def rtdetr():
    from ultralytics.models.rtdetr.predict import RTDETRPredictor
    from ultralytics.nn.tasks import RTDETRDetectionModel

    model = RTDETRDetectionModel("rtdetr-resnet50.yaml", nc=3, verbose=False)
    spread(model, model)
    model.model[-1].export = True
    model.model[-1].num_queries = 30
    with torch.no_grad():
        out = model(picture())
    out = out[0] if isinstance(out, (tuple, list)) else out
    conf = threshold(out[0, :, 4], 20)
    predictor = types.SimpleNamespace(
        args=types.SimpleNamespace(conf=conf, classes=None, max_det=300), batch=[["picture"]], model=types.SimpleNamespace(names={0: "a", 1: "b", 2: "c"})
    )
    result = RTDETRPredictor.postprocess(predictor, out.clone(), None, [np.zeros((HEIGHT, WIDTH, 3), np.uint8)])[0]
    return case({"name": "detr", "score_threshold": conf}, {"output0": out[0]}, {"boxes": boxes(result.boxes.data.numpy())})


def packages(folder, *names):
    """Packages whose own __init__.py is not run: it would need more than the module of interest."""
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(folder, *name.split(".")[1:])]
        sys.modules[name] = module


def rfdetr():
    folder = importlib.util.find_spec("rfdetr").submodule_search_locations[0]
    packages(folder, "rfdetr", "rfdetr.models")  # the package itself needs a newer PyTorch
    from rfdetr.models.postprocess import PostProcess

    torch.manual_seed(2)
    logits, places = torch.randn(1, 30, 4), torch.rand(1, 30, 4) * 0.5 + 0.1
    result = PostProcess(num_select=30)({"pred_logits": logits, "pred_boxes": places}, torch.tensor([[HEIGHT, WIDTH]]))[0]
    rows = torch.cat([result["boxes"], result["scores"][:, None], result["labels"][:, None]], 1).numpy()
    conf = threshold(rows[:, 4], 20)
    decoder = {"name": "detr", "score_threshold": conf, "boxes": "dets", "scores": "labels"}
    return case(decoder, {"dets": places[0], "labels": logits[0]}, {"boxes": boxes(rows[rows[:, 4] > conf])})


def torchvision_ssd():
    import torchvision

    torch.manual_seed(1)
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    spread(model, lambda x: model(list(x)))
    with torch.no_grad():
        out = model([picture()[0]])[0]
    rows = torch.cat([out["boxes"], out["scores"][:, None], out["labels"][:, None] - 1.0], 1).numpy()
    conf = threshold(rows[:, 4], 20)
    decoder = {"name": "objects", "boxes": "boxes", "scores": "scores", "labels": "labels", "first_class": 1, "score_threshold": conf}
    return case(decoder, {n: out[n][:60] for n in ("boxes", "labels", "scores")}, {"boxes": boxes(rows[rows[:, 4] >= conf])})


def classes_softmax():
    torch.manual_seed(4)
    values = torch.randn(20) * 3
    p, i = torch.softmax(values, 0).topk(5)
    return case({"name": "classes", "activation": "softmax"}, {"logits": values}, {"classes": list(zip(i.tolist(), p.tolist()))})


def classes_sigmoid():
    torch.manual_seed(4)
    values = torch.randn(1, 20) * 3
    p = torch.sigmoid(values[0])
    want = [(int(i), float(p[i])) for i in p.argsort(descending=True) if p[i] >= 0.5]
    return case({"name": "classes", "activation": "sigmoid", "k": 20, "score_threshold": 0.5}, {"logits": values}, {"classes": want})


def embedding():
    torch.manual_seed(4)
    values = torch.randn(64)
    return case({"name": "embedding"}, {"vector": values}, {"values": torch.nn.functional.normalize(values, dim=0).tolist()})


def text():
    from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode

    alphabet = ["a", "b", "ß", "字", "!"]
    rng = np.random.default_rng(8)
    out = rng.normal(0, 3, (1, 40, 7)).astype(np.float32)
    out[:, 10:14] = out[:, 10:11]
    out = np.exp(out) / np.exp(out).sum(-1, keepdims=True)
    line, score = CTCLabelDecode(list(alphabet))(out)[0][:2]
    return case({"name": "text"}, {"softmax": out[0]}, {"text": line, "score": score}, labels=alphabet)


def polygons():
    import cv2
    from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess

    size = 96
    probability = np.zeros((size, size), np.float32)
    for centre, sides, angle, p in [((24, 14), (30, 8), 0, 0.9), ((65, 36), (36, 9), 30, 0.8), ((30, 66), (26, 7), -45, 0.95), ((75, 80), (20, 12), 80, 0.4)]:
        place = np.zeros_like(probability)
        cv2.fillPoly(place, [cv2.boxPoints((centre, sides, angle)).astype(np.int32)], p)
        probability = np.maximum(probability, place)
    got, scores = DBPostProcess(0.3, 0.5, 1000, 1.6, use_dilation=True)(probability[None, None], (size, size))
    want = [{"class": 0, "score": float(s), "corners": (b / size).tolist()} for b, s in zip(got, scores)]
    return case({"name": "polygons"}, {"sigmoid": probability[None]}, {"polygons": want, "tolerance": 2 / size}, size=(size, size, 3))


def segmentation():
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    spread(model, model)
    with torch.no_grad():
        out = model(picture())["out"][0]
    out = out[:, ::2, ::2]
    return case({"name": "map", "cells": "classes"}, {"out": out}, {"cells": out.argmax(0).flatten().tolist()})


def simcc():
    import rtmlib.tools.pose_estimation.post_processings as rtm

    rng = np.random.default_rng(3)
    x, y = rng.normal(0, 1, (1, 5, 2 * WIDTH)).astype(np.float32), rng.normal(0, 1, (1, 5, 2 * HEIGHT)).astype(np.float32)
    places, scores = rtm.get_simcc_maximum(x.copy(), y.copy())
    points = np.concatenate([places[0] / 2 / [WIDTH, HEIGHT], scores[0][:, None]], 1)
    return case({"name": "pose", "x": "simcc_x", "y": "simcc_y"}, {"simcc_x": x[0], "simcc_y": y[0]}, {"points": points.tolist()})


CELLS = {stride: HEIGHT * WIDTH // stride**2 for stride in (8, 16, 32)}


def faces(rows, points, outputs, conf, overlap=0.4):
    """A case of rows of x0, y0, x1, y1, score, and points, all in pixels of the picture."""
    want = boxes(np.concatenate([rows, np.zeros((len(rows), 1))], 1))
    inside = np.all(np.clip(rows[:, :2] / SCALE[:2], 0, 1) < np.clip(rows[:, 2:4] / SCALE[:2], 0, 1), 1)
    for w, p in zip(want, points[inside]):
        w["points"] = np.concatenate([p / [WIDTH, HEIGHT], np.ones((5, 1))], 1).tolist()
    decoder = {"name": "faces", "score_threshold": conf, "iou_threshold": overlap, "max_boxes": 300}
    return case(decoder, outputs, {"boxes": want})


def retinaface():
    from retinaface.data.config import cfg_mnet
    from retinaface.inference_framework import RetinaFaceDetector

    rng = np.random.default_rng(4)
    rows = 2 * sum(CELLS.values())
    places, points = rng.normal(0, 1, (1, rows, 4)).astype(np.float32), rng.normal(0, 2, (1, rows, 10)).astype(np.float32)
    scores = torch.softmax(torch.tensor(rng.normal(0, 2, (1, rows, 2)).astype(np.float32)), -1)
    conf = threshold(scores[..., 1], 60)
    detector = RetinaFaceDetector.__new__(RetinaFaceDetector)  # the constructor loads weights
    detector.device, detector.features, detector.scale = torch.device("cpu"), ["bbox", "landmarks"], {}
    # A photo that is 20 times as large: the suppression counts pixels, and the answer does not depend on them.
    detector.cfg = dict(cfg_mnet, postreat={"resize": 0.05, "score_thr": conf, "top_k": 5000, "nms_thr": 0.4, "keep_top_k": 300})
    detector.set_input_shape(HEIGHT, WIDTH)
    got = detector._postreatment(torch.tensor(places), scores, torch.tensor(points))
    return faces(got["bbox"] * [0.05, 0.05, 0.05, 0.05, 1], got["landmarks"] * 0.05, {"boxes": places[0], "scores": scores[0], "points": points[0]}, conf)


def scrfd():
    source = os.path.join(os.environ["INSIGHTFACE_SOURCE"], "insightface")
    packages(source, "insightface", "insightface.model_zoo")
    from insightface.model_zoo.scrfd import SCRFD

    rng = np.random.default_rng(7)
    draw = {
        "scores": lambda n: 1 / (1 + np.exp(-rng.normal(0, 2, (n, 1)))), "boxes": lambda n: rng.exponential(1.5, (n, 4)), "points": lambda n: rng.normal(0, 1, (n, 10)),
    }
    outputs = {f"{name}_{stride}": make(2 * n).astype(np.float32) for name, make in draw.items() for stride, n in CELLS.items()}
    described = [types.SimpleNamespace(name=name, shape=t.shape) for name, t in outputs.items()]
    session = types.SimpleNamespace(
        get_inputs=lambda: [types.SimpleNamespace(name="input", shape=[1, 3, HEIGHT, WIDTH])], get_outputs=lambda: described,
        run=lambda names, feeds: [outputs[n] for n in names],
    )
    conf = threshold(np.concatenate([outputs[f"scores_{stride}"] for stride in CELLS]), 60)
    photo = np.zeros((20 * HEIGHT, 20 * WIDTH, 3), np.uint8)
    rows, points = SCRFD(session=session).detect(photo, det_thresh=conf)
    return faces(rows / [20, 20, 20, 20, 1], points / 20, outputs, conf)


class YuNet(torch.nn.Module):
    """The outputs of YuNet, of one convolution each. Weights of seed 4 make no boxes that overlap by nearly 0.4: cv2 rounds
    boxes to pixels before it compares them."""

    columns = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        heads = {f"{name}_{stride}": torch.nn.Conv2d(3, columns, stride, stride) for name, columns in self.columns.items() for stride in CELLS}
        self.heads = torch.nn.ModuleDict(heads)

    def forward(self, x):
        out = []
        for name, head in self.heads.items():
            values = head(x / 64 - 2).permute(0, 2, 3, 1).reshape(1, -1, self.columns[name.split("_")[0]])
            out.append(torch.sigmoid(2 * values) if name[0] in "co" else values)
        return tuple(out)


def yunet():
    import tempfile

    import cv2

    model = YuNet().eval()
    photo = np.random.default_rng(2).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    names = list(model.heads)
    with torch.no_grad():
        outputs = {n: t[0] for n, t in zip(names, model(torch.tensor(photo.transpose(2, 0, 1)[None].astype(np.float32))))}
    scores = [torch.sqrt(outputs[f"cls_{stride}"] * outputs[f"obj_{stride}"]) for stride in CELLS]
    conf = threshold(torch.cat(scores), 60)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as f:
        torch.onnx.export(model, torch.zeros(1, 3, HEIGHT, WIDTH), f.name, input_names=["input"], output_names=names, opset_version=11)
        rows = cv2.FaceDetectorYN.create(f.name, "", (WIDTH, HEIGHT), conf, 0.4, 5000).detect(photo)[1].astype(np.float64)
    rows[:, 2:4] += rows[:, :2]
    return faces(rows[:, [0, 1, 2, 3, 14]], rows[:, 4:14].reshape(-1, 5, 2), outputs, conf)


def main(folder, names):
    everything = [
        yolov5, yolov8, yolo11, yolov10, yolox, yolov8_pose, yolo26_pose, yolov8_segment, yolo11_rotated, yolo26_rotated, rtdetr, rfdetr,
        torchvision_ssd, classes_softmax, classes_sigmoid, embedding, text, polygons, segmentation, simcc, retinaface, scrfd, yunet,
    ]
    for make in everything:
        if names and make.__name__ not in names:
            continue
        with open(os.path.join(folder, make.__name__ + ".json"), "w") as f:
            json.dump(make(), f)
            f.write("\n")


main(sys.argv[1], sys.argv[2:])
