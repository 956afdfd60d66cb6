import contextlib
import os
import tempfile
import types
import unittest
import unittest.mock
import warnings

try:
    import torch
except ImportError as e:
    raise unittest.SkipTest("PyTorch is missing: %s" % e)

from penstock_model.pytorch import card, files, gpu

warnings.simplefilter("ignore", FutureWarning)
warnings.simplefilter("ignore", DeprecationWarning)


class Tied(torch.nn.Module):
    """Convolutions in channels_last, a tied weight, a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Conv2d(4, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm2d(4)
        self.two = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.norm(self.one(x))).mean((2, 3))


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "model.pt")
        torch.manual_seed(2)
        self.model = Tied().eval()
        self.x = torch.randn(3, 4, 8, 8)
        with torch.no_grad():
            self.want = self.model(self.x)

    def tearDown(self):
        self.folder.cleanup()

    def saved(self):
        torch.jit.save(torch.jit.script(self.model), self.file)

    def answers(self, file):
        module, took = files.read(file).put(torch.device("cpu"))
        torch.testing.assert_close(card.run(module, [self.x]), self.want)
        return took

    def test_whole(self):
        self.saved()
        self.assertGreater(self.answers(self.file), 0)

    def test_flat_keeps_layout_and_ties(self):
        self.saved()
        flat = os.path.join(self.folder.name, "flat.pt")
        files.write_flat(self.file, flat)
        self.answers(flat)
        self.assertLess(os.path.getsize(flat), os.path.getsize(self.file))
        model = files.read(flat)
        weight = dict(model.module.named_parameters())["one.weight"]
        self.assertTrue(weight.is_contiguous(memory_format=torch.channels_last))
        # Two models from the same file do not share memory, and do not write the file.
        with torch.no_grad():
            weight.zero_()
        self.answers(flat)

    def test_flat_files_that_do_not_fit_are_refused(self):
        self.saved()
        flat = os.path.join(self.folder.name, "flat.pt")
        files.write_flat(self.file, flat)
        other = torch.jit.script(torch.nn.Conv2d(1, 1, 1).eval())
        torch.jit.save(other, self.file)
        files.write_flat(self.file, os.path.join(self.folder.name, "other.pt"))
        os.replace(os.path.join(self.folder.name, "other.pt.weights"), flat + ".weights")
        with self.assertRaisesRegex(ValueError, "has no one.weight"):
            files.read(flat)
        os.truncate(flat + ".weights", 100)
        with self.assertRaisesRegex(ValueError, "flat.pt.weights"):
            files.read(flat)

    def test_frozen_has_no_weights_to_share(self):
        torch.jit.save(torch.jit.freeze(torch.jit.script(self.model)), self.file)
        self.answers(self.file)
        self.assertTrue(files.constants(torch.jit.load(self.file)))
        with self.assertRaisesRegex(ValueError, "frozen"):
            files.write_flat(self.file, self.file + ".flat")

    def test_shared_bytes_of_another_length_are_refused(self):
        self.saved()
        files.write_flat(self.file, self.file)
        with self.assertRaisesRegex(ValueError, "has changed"):
            files.read(self.file).put(torch.device("cpu"), lambda _: torch.zeros(8, dtype=torch.uint8))

    def test_exported(self):
        if not hasattr(torch, "export"):
            self.skipTest("PyTorch %s exports nothing" % torch.__version__)
        n = torch.export.Dim("n", min=1, max=64)
        file = os.path.join(self.folder.name, "model.pt2")
        torch.export.save(torch.export.export(self.model, (self.x,), dynamic_shapes=({0: n},)), file)
        self.answers(file)


class Spec:
    def __init__(self, name, shape):
        self.name, self.shape, self.type = name, shape, "f32"


class Outputs(unittest.TestCase):
    outs = [Spec("a", (2,)), Spec("b", (3,))]

    def test_order_and_names(self):
        a, b = torch.zeros(4, 2), torch.zeros(4, 3)
        for y in ((a, b), [a, b], {"b": b, "a": a, "more": b}):
            got = card.outputs(self.outs, y, 4)
            self.assertIs(got[0], a)
            self.assertIs(got[1], b)

    def test_what_does_not_fit(self):
        a, b = torch.zeros(4, 2), torch.zeros(4, 3)
        for y, want in (
            (a, "1 outputs, and the card has 2"), ((a, a), r"\[4, 2\], and the card says \[4, 3\]"),
            ((a, b[:1]), r"\[1, 3\], and the card says \[4, 3\]"), ({"a": a}, "the card has b"), ((a, 1), "of type int"),
            ((a, b.to(torch.complex64)), "complex64"),
        ):
            with self.assertRaisesRegex(ValueError, want):
                card.outputs(self.outs, y, 4)

    def test_distance(self):
        one = torch.ones(1, 4)
        self.assertEqual(card.distance(one, one), 0)
        self.assertEqual(card.distance(torch.zeros(1, 4), torch.zeros(1, 4)), 0)
        self.assertAlmostEqual(card.distance(one, one * 1.25), 0.25)
        nan = card.distance(one, one * float("nan"))
        self.assertFalse(nan <= card.FARTHEST)
        self.assertFalse(card.distance(torch.zeros(1, 4), one) <= card.FARTHEST)


class Trials(unittest.TestCase):
    """The stream and pool of a trial. Both are names here."""

    def setUp(self):
        self.now = []  # those in use

        @contextlib.contextmanager
        def using(what):
            self.now.append(what)
            yield
            self.now.remove(what)

        cuda = types.SimpleNamespace(
            Stream=lambda: "a stream", MemPool=lambda: "a pool", stream=using, use_mem_pool=using, memory_reserved=lambda: 0)
        for patch in (unittest.mock.patch.object(torch, "cuda", cuda),
                      unittest.mock.patch.object(gpu.card, "try_on", self.ran)):
            patch.start()
            self.addCleanup(patch.stop)
        self.gpu = gpu.GPU.__new__(gpu.GPU)
        self.gpu.env = types.SimpleNamespace(outputs=[])
        self.gpu.module, self.gpu.reference, self.gpu.aside = None, None, "aside"
        self.gpu.samples = [unittest.mock.MagicMock()]
        self.lane = gpu.Lane()
        self.lane.stream, self.lane.pool = "the lane's stream", "the lane's pool"

    def ran(self, *_):
        self.where = set(self.now)
        return []

    def test_the_first_size_is_where_its_graph_will_be(self):
        self.gpu.try_size(self.lane, 1)
        self.assertEqual(self.where, {"the lane's stream", "the lane's pool"})

    def test_a_size_is_tried_aside_while_a_graph_may_be_in_flight(self):
        self.lane.graphs[1] = "in flight"
        self.gpu.try_size(self.lane, 2)
        self.assertEqual(self.where, {"aside"})
        self.where = None
        self.gpu.try_size(self.lane, 2)
        self.assertIsNone(self.where, "it is tried twice")


if __name__ == "__main__":
    unittest.main()
