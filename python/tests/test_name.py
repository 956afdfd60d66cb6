"""The module of models (libml/python) has the same name."""

import os
import subprocess
import sys
import unittest

import penstock

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "..", "libml", "python")
CLIENT = os.path.dirname(os.path.dirname(os.path.abspath(penstock.__file__)))

PROGRAM = """
import penstock
from penstock import SyncClient, flat
import penstock.pytorch

class Model(penstock.Framework):
    pass

assert issubclass(penstock.Late, penstock.RequestError)
assert not issubclass(penstock.Late, penstock.Error)
try:
    penstock.Nothing
except AttributeError as e:
    print(penstock.Client("host:5001").__class__.__name__, e)
"""


class Name(unittest.TestCase):
    def run_with(self, program, *folders):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", program], env=env, cwd=os.sep, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_program_that_has_both(self):
        out = self.run_with(PROGRAM, MODELS, CLIENT)
        self.assertEqual(out, "Client module 'penstock' has no attribute 'Nothing'\n")

    def test_no_name_is_in_both(self):
        out = self.run_with("import penstock; print(*penstock.__all__)", MODELS)
        self.assertEqual(set(out.split()) & set(penstock.__all__), set())
        self.assertEqual(sorted(penstock.__all__), penstock.__all__)
