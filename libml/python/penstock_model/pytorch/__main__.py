import sys
import warnings

import penstock_model


class PyTorch(penstock_model.Framework):
    def init(self, env):
        if not env.model:
            raise ValueError("card has no model; want the file that torch.jit.save or torch.export.save wrote")
        try:
            import torch
        except ImportError as e:
            raise ValueError("python %s has no PyTorch (%s); PENSTOCK_PYTHON of the node names another python3, and penstock doctor says which has it" % (sys.executable, e)) from None
        # Models may be TorchScript, for which newer versions warn that it is deprecated.
        warnings.filterwarnings("ignore", message=".*torch.jit.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.* is deprecated", category=DeprecationWarning)
        torch.set_num_threads(env.threads)
        torch.set_num_interop_threads(1)
        self.env = env

    def load_model(self):
        from . import cpu, files, gpu
        env = self.env
        self.engine = (gpu.GPU if env.on_gpu else cpu.CPU)(env, files.read(env.model))
        self.engine.load()

    def link_model(self):
        return self.engine.link()

    def configure_batch(self, slot, n, inputs, outputs):
        return self.engine.configure(slot, n, inputs if "inputs" in self.env.card else [inputs], outputs)

    def infer_batch(self, slot, n):
        self.engine.infer(slot, n)

    def deinit(self):
        engine = getattr(self, "engine", None)
        if engine is not None:
            engine.close()


USAGE = """python3 -m penstock_model.pytorch                  is started by a node, for a card with framework: pytorch
python3 -m penstock_model.pytorch flat MODEL OUT   writes the TorchScript file MODEL as OUT and OUT.weights"""


def main(arguments):
    if not arguments:
        penstock_model.main(PyTorch())
    if len(arguments) == 3 and arguments[0] == "flat":
        try:
            from . import files
        except ImportError as e:
            sys.exit("penstock_model.pytorch: python %s has no PyTorch (%s); run this with a python3 that has it" % (sys.executable, e))
        try:
            size = files.write_flat(arguments[1], arguments[2])
        except (ValueError, OSError, RuntimeError) as e:
            sys.exit("penstock_model.pytorch: %s" % penstock_model.reason_of(e))
        print("%s, and %d bytes of weights in %s.weights" % (arguments[2], size, arguments[2]))
        return
    sys.exit(USAGE)


if __name__ == "__main__":
    sys.argv[0] = "penstock_model.pytorch"
    main(sys.argv[1:])
