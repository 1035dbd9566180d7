"""What gpu_monolith.py makes of measurements, and the network that it makes."""
import json
import math
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import onnx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_monolith  # noqa: E402


class Monoliths(unittest.TestCase):
    def test_verdicts(self):
        row = {"model": "gpt2-decode", "ms": {"monolith": 0.1, "kernels": 0.2}, "peers": {"torch-compile": {"ratio": 1.6}},
               "waiting": 0.04, "weight_bytes": 320e6}
        self.assertEqual([t["state"] for t in gpu_monolith.verdicts([row], 4000)], ["reached"] * 3)
        self.assertEqual([t["state"] for t in gpu_monolith.verdicts([row], 4000, False)], ["unproven"] * 3)
        slow = {**row, "ms": {"monolith": 0.2, "kernels": 0.2}, "peers": {"torch-compile": {"ratio": 1.9}, "jax": {"ratio": 1.1}},
                "waiting": 0.1}
        self.assertEqual([t["state"] for t in gpu_monolith.verdicts([slow], 4000)], ["missed"] * 3)

    def test_rings_are_compared(self):
        commands = []

        def run(command, seconds):
            commands.append(command)
            ms = 0.3 if "--ring" in command else 0.2
            return int("profile" in command), json.dumps({"heddle": {"median_ms": ms}}), "", 0

        class Clock:
            def left(self):
                return 100

        class Arguments:
            scale, peers, duration, budget = 1, [], 1, "none"

        with mock.patch.multiple(gpu_monolith, model_of=lambda *_: ("m", ""), weight_bytes=lambda _: 1):
            rows = gpu_monolith.measure(run, "heddle", Clock(), Arguments)
        ringless = [c for c in commands if "--ring" in c]
        self.assertEqual(len(ringless), len(gpu_monolith.DECODES))
        for command in ringless:
            self.assertEqual(command[command.index("--mode") + 1], "monolith")
        lines = [line for line in gpu_monolith.markdown(rows) if line.startswith("| gpt2-decode")]
        self.assertTrue(lines[0].startswith("| gpt2-decode | 0.200 | 0.30 | 0.200 |"), lines)

    def test_waiting(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "t.json"
            events = [{"ph": "X", "name": n, "tid": t, "ts": s, "dur": d}
                      for n, t, s, d in [("a", 0, 0, 10), ("wait", 1, 0, 4), ("b", 1, 4, 6)]]
            trace.write_text(json.dumps({"traceEvents": events}))
            self.assertEqual(gpu_monolith.waiting(trace), 4 / 20)

    def test_networks_are_there(self):
        zoo = pathlib.Path(gpu_monolith.__file__).parent.parent / "zoo"
        for network in gpu_monolith.NETWORKS:
            folder = zoo / "large" / network if network in gpu_monolith.LARGE else zoo / network
            self.assertTrue(network == "llama-like" or list(folder.glob("graph.onnx*")), network)

    def test_large_networks_have_their_weights(self):
        sys.path.insert(0, str(pathlib.Path(gpu_monolith.__file__).parent.parent / "zoo"))
        import large
        import materialise
        self.assertEqual(large.names(), sorted(gpu_monolith.LARGE))
        millions = {}
        for name in large.names():
            graph = materialise.load_graph(f"large/{name}").graph
            millions[name] = round(sum(math.prod(t.dims) for t in graph.initializer
                                       if t.data_type == onnx.TensorProto.FLOAT) / 1e6)
        self.assertEqual(millions, {"bert-large": 335, "clip-text": 63, "opt-125m-decode": 162, "t5-base-encoder": 110,
                                    "t5-base-decoder": 163})

    def test_models_are_made_when_they_are_due(self):
        commands = []

        def run(command, seconds):
            commands.append(command)
            return ("clip-text" in command), "", "error: no space", 0

        class Clock:
            def left(self):
                return 100

        model, why = gpu_monolith.model_of(run, "bert-large", Clock(), 1)
        self.assertEqual(model, gpu_monolith.ROOT / "build/large/bert-large/model.onnx")
        self.assertEqual(commands[0][1:], ["zoo/large.py", "build/large", "bert-large"])
        model, why = gpu_monolith.model_of(run, "clip-text", Clock(), 1)
        self.assertEqual((model, why), (None, "error: no space"))
        gpu_monolith.model_of(run, "bert-base", Clock(), 1)
        self.assertEqual(len(commands), 2)

    def test_network_is_sound(self):
        with tempfile.TemporaryDirectory() as folder:
            path = gpu_monolith.llama_like(pathlib.Path(folder), 2, 64, 4, 96, 9, 70)
            onnx.checker.check_model(str(path), full_check=True)
            size = 2 * (2 * (4 * 64 * 64 + 3 * 64 * 96) + 64 * 70)
            self.assertEqual(gpu_monolith.weight_bytes(path), size + 4)
            self.assertLess(path.with_name("weights").stat().st_size, size + 20 * 4096)


if __name__ == "__main__":
    unittest.main()
