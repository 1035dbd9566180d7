"""Dimensions of which one follows from others: a decoder's step with its keys and values."""
import json
import unittest

import numpy as np
import onnx.numpy_helper
import onnxruntime
from onnx import TensorProto, helper

from command import CommandTest, heddle

HEADS, WIDTH = 2, 4


def decoder(total, past="past", step="step", batch="B"):
    """One layer of attention over `past` positions and `step` new ones, as exporters write it: the
    mask has `total` of them, positions come from its sum, the new keys and values go out."""
    rng = np.random.default_rng(4)
    weight = lambda name, *shape: onnx.numpy_helper.from_array(
        rng.normal(size=shape).astype(np.float32) / 3, name)
    const = lambda name, value: onnx.numpy_helper.from_array(np.asarray(value), name)
    size = HEADS * WIDTH
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["tokens"], name="embed"),
             helper.make_node("CumSum", ["attention_mask", "one"], ["counts"], name="positions"),
             helper.make_node("Sub", ["counts", "one"], ["all_positions"]),
             helper.make_node("Shape", ["past_key"], ["past_shape"]),
             helper.make_node("Gather", ["past_shape", "two"], ["past_length"]),
             helper.make_node("Unsqueeze", ["past_length", "zero_axis"], ["start"]),
             helper.make_node("Slice", ["all_positions", "start", "far", "one_axis"], ["own"]),
             helper.make_node("Gather", ["where", "own"], ["placed"], name="place"),
             helper.make_node("Add", ["tokens", "placed"], ["x"])]
    for n in "qkv":
        nodes += [helper.make_node("MatMul", ["x", "w" + n], [n + "0"], name="to_" + n),
                  helper.make_node("Reshape", [n + "0", "heads"], [n + "1"]),
                  helper.make_node("Transpose", [n + "1"], [n + "2"], perm=[0, 2, 1, 3])]
    nodes += [helper.make_node("Concat", ["past_key", "k2"], ["key"], axis=2, name="keys"),
              helper.make_node("Concat", ["past_value", "v2"], ["value"], axis=2, name="values"),
              helper.make_node("Transpose", ["key"], ["kt"], perm=[0, 1, 3, 2]),
              helper.make_node("MatMul", ["q2", "kt"], ["scores"], name="scores"),
              helper.make_node("Cast", ["attention_mask"], ["seen"], to=TensorProto.BOOL),
              helper.make_node("Unsqueeze", ["seen", "heads_axes"], ["allowed"]),
              helper.make_node("Where", ["allowed", "scores", "never"], ["masked"]),
              helper.make_node("Softmax", ["masked"], ["p"], axis=-1, name="soft"),
              helper.make_node("MatMul", ["p", "value"], ["y"], name="mix"),
              helper.make_node("Transpose", ["y"], ["y1"], perm=[0, 2, 1, 3]),
              helper.make_node("Reshape", ["y1", "flat"], ["y2"]),
              helper.make_node("MatMul", ["y2", "wo"], ["logits"], name="out")]
    info = helper.make_tensor_value_info
    cache = [batch, HEADS, past, WIDTH]
    graph = helper.make_graph(
        nodes, "decoder",
        [info("input_ids", TensorProto.INT64, [batch, step]),
         info("past_key", TensorProto.FLOAT, cache), info("past_value", TensorProto.FLOAT, cache),
         info("attention_mask", TensorProto.INT64, [batch, total])],
        [info("logits", TensorProto.FLOAT, None), info("key", TensorProto.FLOAT, None),
         info("value", TensorProto.FLOAT, None)],
        [weight("table", 11, size), weight("where", 80, size), weight("wo", size, 11),
         *[weight("w" + n, size, size) for n in "qkv"], const("one", np.int64(1)),
         const("two", np.int64(2)), const("zero_axis", [0]), const("one_axis", [1]),
         const("far", [1 << 40]), const("heads", [0, 0, HEADS, WIDTH]), const("flat", [0, 0, size]),
         const("heads_axes", [1, 2]), const("never", np.float32(-1e9))])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def feeds(past, step=1, batch=1):
    rng = np.random.default_rng(past + 100 * step)
    mask = rng.integers(0, 2, size=(batch, past + step))
    mask[:, -step:] = 1
    cache = lambda: rng.normal(size=(batch, HEADS, past, WIDTH)).astype(np.float32)
    return {"input_ids": rng.integers(0, 11, size=(batch, step)), "past_key": cache(),
            "past_value": cache(), "attention_mask": mask}


class Facts(CommandTest):
    def agrees(self, path, program, inputs, *more):
        wanted = onnxruntime.InferenceSession(
            path, providers=["CPUExecutionProvider"]).run(None, inputs)
        saved = self.path / "saved"
        saved.mkdir(exist_ok=True)
        done = heddle("run", program, *self.given(inputs), "--save", saved, *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        for k, value in enumerate(wanted):
            np.testing.assert_allclose(np.load(saved / f"output_{k}.npy"), value, rtol=1e-4,
                                       atol=1e-5)

    def test_a_decoder_step_of_any_past_runs_from_one_artefact(self):
        path, artefact = self.save("decoder", decoder("total")), self.path / "d.heddle"
        done = heddle("compile", path, "--dynamic", "past=0..64", "--dynamic", "B=1", "--dynamic",
                      "step=1", "--dynamic", "total=past+1", "-o", artefact, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["sizes"], 65)
        self.assertLessEqual(report["programs"], 9)
        for past in (*range(0, 10), 15, 16, 17, 31, 32, 33, 40, 63, 64):
            self.agrees(path, artefact, feeds(past))
        shown = heddle("explain", artefact, "--size", "past=20").stdout
        self.assertIn("dimension 'total' (input 'attention_mask', dimension 1) = past+1", shown)
        self.assertIn("total=18..32", shown)
        self.assertEqual(heddle("explain", artefact, "--size", "total=65").returncode, 0)
        wrong = dict(feeds(7), attention_mask=np.ones((1, 9), np.int64))
        self.assert_fails(2, "dimension 'total' (input 'attention_mask', dimension 1) is 9, want "
                             "past+1 = 8 for past = 7", "run", artefact, *self.given(wrong))
        wrong = dict(feeds(7), past_value=feeds(6)["past_value"])
        self.assert_fails(2, "input 'past_value': dimension 2 ('past') is 6, want 7 as in input "
                             "'past_key'", "run", artefact, *self.given(wrong))
        self.assert_fails(2, "no program for these sizes", "run", artefact, *self.given(feeds(65)))

    def test_names_that_are_expressions_follow_by_themselves(self):
        path = self.save("named", decoder("past + step"))
        artefact = self.path / "n.heddle"
        done = heddle("compile", path, "--dynamic", "past=0..12@5,12", "--dynamic", "step=1..3@1,3",
                      "--dynamic", "B=2", "-o", artefact, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["sizes"], 39)
        for past, step in ((0, 1), (0, 3), (1, 1), (4, 2), (5, 3), (6, 1), (11, 2), (12, 3)):
            self.agrees(path, artefact, feeds(past, step, 2))
        self.assertIn("'past + step' (input 'attention_mask', dimension 1) = past + step",
                      heddle("explain", artefact).stdout)
        wrong = dict(feeds(4, 2, 2), attention_mask=np.ones((2, 5), np.int64))
        self.assert_fails(2, "is 5, want past + step = 6 for past = 4, step = 2", "run", artefact,
                          *self.given(wrong))
        # One size of inputs: the mask's shape follows from the others'.
        shapes = ["--shape", "input_ids=1x2", "--shape", f"past_key=1x{HEADS}x3x{WIDTH}"]
        done = heddle("run", path, *shapes, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_fails(2, "is 6, want past + step = 5", "run", path, *shapes, "--shape",
                          "attention_mask=1x6")
        self.agrees(path, path, feeds(3, 2), "--as-given")
        self.assert_fails(2, "is 5, want past + step = 6", "run", path, "--as-given",
                          *self.given(wrong))

    def test_facts_are_for_one_size_too(self):
        path = self.save("decoder", decoder("total"))
        shapes = ["--shape", "input_ids=1x2", "--shape", f"past_key=1x{HEADS}x3x{WIDTH}"]
        self.assert_fails(3, "'attention_mask': dimension 1 is symbolic ('total')", "run", path,
                          *shapes)
        done = heddle("run", path, *shapes, "--dynamic", "total=past+step", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.agrees(path, path, feeds(3, 2), "--as-given", "--dynamic", "total=past+step")
        self.assert_fails(2, "is 5, want past+step+1 = 6", "run", path, "--as-given", "--dynamic",
                          "total=past+step+1", *self.given(feeds(3, 2)))

    def test_a_name_that_only_looks_like_an_expression_is_a_name(self):
        path = self.save("dashed", decoder("seq-len", past="past-len"))
        done = heddle("run", path, "--shape", "input_ids=1x1", "--shape",
                      f"past_key=1x{HEADS}x3x{WIDTH}", "--shape", "attention_mask=1x4")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_mistakes_are_named(self):
        path = self.save("decoder", decoder("total"))
        sizes = ["--dynamic", "past=0..4", "--dynamic", "B=1", "--dynamic", "step=1"]
        for facts, part in (
                (["totl=past+1"], "no symbolic dimension 'totl', it has 'B' 'past' 'step' 'total'"),
                (["total=passed+1"], "'passed' is no dimension of the model"),
                (["total=past-1"], "past-1 at past = 0 is -1, want an extent"),
                (["total=past/2"], "divides 1 by 2, which leaves a rest"),
                (["total=1//past"], "past = 0 divides by zero"),
                (["total=total+1"], "in a circle: 'total' = total+1"),
                (["total=past+1", "total=past+2"], "'total' is given twice"),
                (["total=past+1", "total=1..5"], "'total' has sizes, and follows from past+1"),
                (["total=past+"], "want NAME=EXPRESSION"), (["total=(past"], "want NAME=EXPRESSION"),
                (["total=" + 100000 * "(" + "past"], "want NAME=EXPRESSION")):
            more = [argument for fact in facts for argument in ("--dynamic", fact)]
            self.assert_fails(2, part, "compile", path, *sizes, *more, "-o", self.path / "none")
        circle = self.save("circle", decoder("total", past="p"))
        self.assert_fails(2, "in a circle: 'p' = total-1, 'total' = p+1", "compile", circle,
                          "--dynamic", "total=p+1", "--dynamic", "p=total-1", "--dynamic", "B=1",
                          "--dynamic", "step=1", "-o", self.path / "none")
        named = self.save("named", decoder("past + step"))
        self.assert_fails(2, "'past + step' follows from past + step; give sizes of 'B' 'past' "
                             "'step' only", "compile", named, *sizes, "--dynamic",
                          "past + step=1..5", "-o", self.path / "none")


if __name__ == "__main__":
    unittest.main()
