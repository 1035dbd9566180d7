"""That no operator is forgotten, and that each maker makes its operator.

    HEDDLE=build/bin/heddle build/venv/bin/python tests/fuzz/operators_test.py
"""

import json
import os
import subprocess
import unittest

import numpy as np

from graph import Graph, opsets_with
from graphs import operators
from table import LEFT_OUT, MAKERS, reason


class Operators(unittest.TestCase):
    def test_every_operator_has_a_maker_or_a_reason(self):
        done = subprocess.run([os.environ["HEDDLE"], "ops", "--json"], capture_output=True,
                              text=True, check=True)
        ours = set(json.loads(done.stdout)["ops"])
        self.assertEqual([], sorted(o for o in ours if o not in MAKERS and not reason(o)))
        self.assertEqual([], sorted(set(MAKERS) - ours))
        self.assertEqual([], sorted(set(LEFT_OUT) - ours))
        self.assertEqual([], sorted(set(MAKERS) & set(LEFT_OUT)))

    def test_every_maker_makes_its_operator(self):
        for name, maker in MAKERS.items():
            made, why = 0, ""
            for seed in range(24):
                opsets = opsets_with(name)
                g = Graph(np.random.default_rng(seed), opsets[-1 - seed % len(opsets)])
                try:
                    maker(g, name)
                    made += name in set(operators(g.nodes))
                except Exception as error:
                    why = repr(error)
            self.assertGreaterEqual(made, 4, f"{name}: {why}")


if __name__ == "__main__":
    unittest.main()
