"""heddle explain --train on a small BERT: what it says of the step is what its kernels are."""
import json
import re
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper

from command import CommandTest, heddle

BATCH, TOKENS, WIDTH, HEADS, INNER, LAYERS, CLASSES = 16, 32, 64, 4, 256, 2, 8


class Bert:
    """Encoder layers as PyTorch exports them: norms and GELU by Erf, heads by Reshape and Transpose."""

    def __init__(self):
        self.nodes, self.weights, self.random = [], [], np.random.default_rng(4)

    def constant(self, value):
        name = f"c{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape):
        return self.constant((self.random.normal(size=shape) / shape[0] ** 0.5).astype(np.float32))

    def op(self, kind, *inputs, **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [f"v{len(self.nodes)}"], name=name, **attributes))
        return self.nodes[-1].output[0]

    def linear(self, x, before, after):
        return self.op("Add", self.op("MatMul", x, self.weight(before, after)), self.weight(after))

    def norm(self, x):
        return self.op("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH), axis=-1)

    def heads(self, x, order):
        split = self.op("Reshape", x, self.constant(np.int64([BATCH, TOKENS, HEADS, WIDTH // HEADS])))
        return self.op("Transpose", split, perm=order)

    def layer(self, x):
        q, k, v = (self.heads(self.linear(x, WIDTH, WIDTH), order)
                   for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = self.op("Div", self.op("MatMul", q, k), self.constant(np.float32(4)))
        mixed = self.op("Transpose", self.op("MatMul", self.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        mixed = self.op("Reshape", mixed, self.constant(np.int64([BATCH, TOKENS, WIDTH])))
        x = self.norm(self.op("Add", x, self.linear(mixed, WIDTH, WIDTH)))
        inner = self.linear(x, WIDTH, INNER)
        gate = self.op("Add", self.op("Erf", self.op("Div", inner, self.constant(np.float32(2 ** 0.5)))),
                       self.constant(np.float32(1)))
        inner = self.op("Mul", self.op("Mul", inner, gate), self.constant(np.float32(0.5)))
        return self.norm(self.op("Add", x, self.linear(inner, INNER, WIDTH)))

    def model(self):
        x = self.norm(self.op("Gather", self.weight(100, WIDTH), "ids"))
        for _ in range(LAYERS):
            x = self.layer(x)
        mean = self.op("ReduceMean", x, self.constant(np.int64([1])), keepdims=0)
        self.op("Gemm", mean, self.weight(WIDTH, CLASSES), self.weight(CLASSES))
        self.nodes[-1].output[0] = "scores"
        graph = helper.make_graph(
            self.nodes, "bert", [helper.make_tensor_value_info("ids", TensorProto.INT64, [BATCH, TOKENS])],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [BATCH, CLASSES])], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


class ExplainTrainingTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.bert = self.save("bert", Bert().model())

    def explain(self, *more):
        done = heddle("explain", self.bert, "--train", "cross_entropy", "--mode", "kernels", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def number(self, pattern, text):
        found = re.search(pattern, text)
        self.assertIsNotNone(found, f"{pattern} in:\n{text}")
        return int(found.group(1))

    def places(self, where, row):
        """Of reductions: none, where the row does not say so."""
        found = re.search(rf"(\d+) {where}", row)
        return int(found.group(1)) if found else 0

    def test_what_is_said_is_what_the_kernels_are(self):
        text, kernels = self.explain(), json.loads(self.explain("--json"))["kernels"]

        def has(kernel, kind):
            return any(p.startswith(kind + " ") for p in kernel["primitives"])

        def reductions(chosen):
            return sum(p.startswith("reduce ") for k in chosen for p in k["primitives"])
        products = [k for k in kernels if has(k, "contract")]
        others = [k for k in kernels if not has(k, "contract") and has(k, "map")]
        self.assertEqual(self.number(r"step: (\d+) kernels; one for each operator", text), len(kernels))
        self.assertEqual(self.number(r"contractions: (\d+) kernels", text), len(products))
        self.assertEqual(self.number(r"(\d+) that write several values", text),
                         sum(len(k["outputs"]) > 1 for k in products))
        row = re.search(r"all reductions: .*", text).group(0)
        again = self.places(r"times one is computed again", row)
        # Each counts once, however many kernels compute it.
        self.assertEqual(self.number(r"all reductions: (\d+)", text) + again, reductions(kernels))
        in_products = self.places(r"in epilogues", row) + self.places(r"before a contraction", row)
        self.assertTrue(reductions(products) - again <= in_products <= reductions(products))
        elsewhere = self.places(r"with other arithmetic", row)
        self.assertTrue(reductions(others) - again <= elsewhere <= reductions(others))
        self.assertEqual(self.number(r"statistics of normalisations: (\d+)", text), 2 * (2 * LAYERS + 1))
        results = {o["name"] for o in json.loads(self.explain("--json"))["outputs"]}
        self.assertEqual(self.number(r"updates: \d+ kernels for (\d+) parameters", text),
                         sum("mean:" + name in results for name in results))
        # What stores a weight or a moment, which no other kernel reads; those of the corrections are none.
        read = {i["id"] for k in kernels for i in k["inputs"] if "id" in i}
        updates = [k for k in kernels if any(s["op"] == "Optimizer" for s in k["sources"]) and
                   any(o["id"] not in read for o in k["outputs"]) and not has(k, "contract")]
        said = self.number(r"updates: (\d+) kernels", text) - self.number(r"parameters, (\d+) of them", text)
        self.assertEqual(said, len(updates))

    def test_clipping_and_frozen_weights_are_part_of_the_step(self):
        def updates(*more):
            return self.number(r"updates: \d+ kernels for (\d+) parameters", self.explain(*more))

        def kernels(*more):
            return self.number(r"step: (\d+) kernels", self.explain(*more))
        frozen = onnx.load(self.bert).graph.initializer[-1].name
        self.assertEqual(updates("--freeze", frozen), updates() - 1)
        self.assertGreater(kernels("--clip-norm", "1"), kernels())
        done = heddle("explain", self.bert, "--train", "mse", "--clip-norm", "nan")
        self.assertEqual((done.returncode, "want a number of at least 0" in done.stderr), (2, True))

    def test_what_evt_shows(self):
        text = self.explain()
        # Of a layer's operators some are fused into others, so kernels are fewer in spite of the updates.
        operators = self.number(r"one for each operator would be (\d+)", text)
        self.assertGreater(operators, 40 * LAYERS)
        # γ and β of each norm but the first, whose gradient no product makes, and each inner bias.
        gradients = re.search(r"gradients of normalisations: .*", text).group(0)
        self.assertGreaterEqual(self.places("in epilogues", gradients), 2 * LAYERS)
        everything = re.search(r"all reductions: .*", text).group(0)
        self.assertGreaterEqual(self.places("in epilogues", everything), 3 * LAYERS)
        self.assertLessEqual(self.places("in kernels of their own", everything), 2 * LAYERS)
        self.assertGreater(self.number(r"updates: \d+ kernels for \d+ parameters, (\d+) of them in the epilogue", text), 4 * LAYERS)

    def test_the_value_of_the_loss_can_be_left_out(self):
        with_value, without = self.explain(), self.explain("--no-loss-value")
        self.assertIn("its gradient reads none of them", with_value)
        self.assertGreater(self.number(r"loss: (\d+) primitives are for its value alone", with_value), 0)
        self.assertIn("loss: eliminated: nothing is computed for its value", without)
        primitives = r"kernels for (\d+) primitives"
        self.assertLess(self.number(primitives, without), self.number(primitives, with_value))
        for text in (with_value, without):  # planned, not put together by rules
            self.assertGreater(self.number(r"(\d+) regions of which", text), 0)
        outputs = [o["name"] for o in json.loads(self.explain("--no-loss-value", "--json"))["outputs"]]
        self.assertNotIn("loss", outputs)

    def test_no_update_waits_for_numbers_that_another_makes(self):
        """The optimiser's corrections depend on the step's number alone; a kernel that made them beside the update of
        a late gradient would have all others, and the activations that their products read, wait for it."""
        kernels = json.loads(self.explain("--json"))["kernels"]
        read = {i["id"] for k in kernels for i in k["inputs"] if "id" in i}
        numbers = [k for k in kernels if any(o["type"] == "f32[]" and o["id"] in read for o in k["outputs"])]
        for kernel in numbers:
            self.assertEqual({i["type"] for i in kernel["inputs"]}, {"f32[]"}, kernel["name"])

    def test_the_page_says_the_same(self):
        page = self.path / "plan.html"
        self.explain("--html", page)
        html, text = page.read_text(), self.explain()
        for line in re.findall(r"^(?:step:|     ) (\w.*(?:kernel|loss|update).*)$", text, re.M):
            if "within" not in line and "candidates" not in line:
                self.assertIn(f"<li>{line}", html)
        self.assertIn("<h2>Mode</h2>\n<p>kernels (asked for)</p>", html)

    def test_a_model_that_is_not_trained_has_no_step(self):
        done = heddle("explain", self.bert, "--mode", "kernels")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("step:", done.stdout)


if __name__ == "__main__":
    unittest.main()
