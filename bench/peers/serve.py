"""One peer framework as a worker process for `heddle bench --vs`.

    build/peers/bin/python bench/peers/serve.py PEER [THREADS]

Speaks one JSON object a line on standard input and output; README.md has the protocol.  PEER is a
row of `PEERS`: a module beside this file with

    PRECISIONS                                        those it can compute an f32 model in
    version() -> str
    load(model_path, threads, precision, inputs) -> session      inputs: {name: numpy array}
    session.run()                                     one inference into prepared buffers
    session.outputs() -> {name: numpy array}          what the last run gave

Timing, files and errors are here, so that every peer is measured in the same way.
"""

import argparse
import gc
import importlib
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import traceback

import numpy as np

# A new peer is a row here and a file. Modules are imported only when asked for.
PEERS = {
    "ort": "peer_ort",
    "openvino": "peer_openvino",
    "torch": "peer_torch",
    "torch-compile": "peer_torch_compile",
    "jax": "peer_jax",
    "iree": "peer_iree",
    "tvm": "peer_tvm",
    "torch-training": "peer_torch_training",
    "torch-compile-training": "peer_torch_compile_training",
    "torch-training-cuda": "peer_torch_training_cuda",
    "torch-compile-training-cuda": "peer_torch_compile_training_cuda",
    "torch-cuda": "peer_torch_cuda",
    "torch-compile-cuda": "peer_torch_compile_cuda",
    "jax-cuda": "peer_jax_cuda",
}


class Refused(Exception):
    """A request that cannot be served, with the reason that the caller is told."""


class Server:
    def __init__(self, module, threads, scratch):
        self.module = module
        self.threads = threads
        self.scratch = pathlib.Path(scratch)
        self.session = None

    def load(self, request):
        precision = request.get("precision", "f32")
        if precision not in self.module.PRECISIONS:
            raise Refused(f"cannot compute in {precision}, only in "
                          f"{', '.join(self.module.PRECISIONS)}")
        inputs = {name: np.load(path, allow_pickle=False)
                  for name, path in require(request, "inputs", dict).items()}
        self.session = None  # free the last model first
        start = time.perf_counter()
        # Training: {"loss", "optimizer", "rate"}; then `inputs` hold the target, a run is a step, and
        # the output is the losses of the first steps.
        training = [request["training"]] if "training" in request else []
        session = self.module.load(require(request, "model", str), self.threads, precision,
                                   inputs, *training)
        loaded = time.perf_counter()
        session.run()
        first = time.perf_counter()
        self.session = session
        paths = {}
        for index, (name, array) in enumerate(session.outputs().items()):
            path = self.scratch / f"output_{index}.npy"
            np.save(path, array, allow_pickle=False)
            paths[name] = str(path)
        settle()
        return {"version": self.module.version(), "outputs": paths,
                "load_ms": 1e3 * (loaded - start), "first_ms": 1e3 * (first - loaded)}

    def run(self, request):
        if self.session is None:
            raise Refused("run: no model is loaded")
        iters = request.get("iters", 1)
        if not isinstance(iters, int) or not 1 <= iters <= 1_000_000:
            raise Refused(f"run: iters is {iters!r}, want 1..1000000")
        warmup = request.get("warmup", 0)
        if not isinstance(warmup, int) or not 0 <= warmup <= 1_000_000:
            raise Refused(f"run: warmup is {warmup!r}, want 0..1000000")
        run, clock = self.session.run, time.perf_counter
        milliseconds = [0.0] * iters
        gc.disable()
        try:
            for _ in range(warmup):
                run()
            begin, used = clock(), time.process_time()
            for k in range(iters):
                start = clock()
                run()
                milliseconds[k] = 1e3 * (clock() - start)
            cores = (time.process_time() - used) / max(clock() - begin, 1e-9)
        finally:
            gc.enable()
        return {"ms": milliseconds, "cores": cores, "settle_ms": settle()}

    def stats(self, _request):
        # Not getrusage's ru_maxrss: that one starts with the peak of the parent that forked us.
        status = pathlib.Path("/proc/self/status").read_text()
        peak_kb = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
        return {"peak_mb": peak_kb / 1024, "base_mb": getattr(self.session, "base_mb", 0),
                "cpu_s": time.process_time()}


def others_running():
    """Whether a thread of this process other than the caller is running or ready to run. Unlike
    processor time used, this also sees a spinning thread that a busy machine keeps waiting."""
    own = str(threading.get_native_id())
    for task in os.listdir("/proc/self/task"):
        try:
            stat = pathlib.Path("/proc/self/task", task, "stat").read_text()
        except OSError:
            continue  # the thread has just ended
        if task != own and stat.rpartition(")")[2].split()[0] == "R":
            return True
    return False


def settle():
    """Waits until the workers rest (those of a pool spin for a while after a run, and would take a
    core from whoever is measured next), a second at most. Returns the milliseconds it took."""
    start, calm = time.perf_counter(), 0
    while calm < 3 and time.perf_counter() - start < 1.0:
        calm = 0 if others_running() else calm + 1
        time.sleep(0.001)
    return 1e3 * (time.perf_counter() - start)


def require(request, key, kind):
    value = request.get(key)
    if not isinstance(value, kind):
        raise Refused(f"{request['cmd']}: '{key}' is {value!r}, want a {kind.__name__}")
    return value


def answer(server, line):
    """The reply to one line, or None for quit. Whatever goes wrong becomes an error reply: a peer
    that cannot run a model is a result, and must not end the comparison."""
    try:
        request = json.loads(line)
        command = request.get("cmd") if isinstance(request, dict) else None
        if command == "quit":
            return None
        handlers = {"load": server.load, "run": server.run, "stats": server.stats}
        if command not in handlers:
            raise Refused(f"unknown cmd {command!r}, want load, run, stats or quit")
        return {"ok": True, **handlers[command](request)}
    except Refused as refused:
        return {"error": str(refused)}
    except Exception as error:
        if sys.flags.dev_mode:
            traceback.print_exc()
        return {"error": f"{type(error).__name__}: {first_line(str(error))}"}


def first_line(text):
    """The first line that names an error, else the first that says anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ([line for line in lines if "error: " in line] + lines + [""])[0][:300]


def limit_threads(threads):
    """For frameworks that only listen to the environment, or to the cores they may run on. Before
    any of them is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS",
                 "NPROC"):  # NPROC: XLA's pool
        os.environ[name] = str(threads)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("threads", nargs="?", type=int, default=os.cpu_count())
    flags = parser.parse_args()
    if not 1 <= flags.threads <= 1024:
        parser.error(f"threads is {flags.threads}, want 1..1024")
    limit_threads(flags.threads)
    # Frameworks print to standard output at will; the protocol keeps a descriptor of its own.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        module = importlib.import_module(PEERS[flags.peer])
    except Exception as error:  # whatever an import raises
        print(json.dumps({"error": f"{flags.peer} is not installed: {first_line(str(error))}"}),
              file=replies)
        sys.exit(6)
    with tempfile.TemporaryDirectory(prefix="heddle-peer-") as scratch:
        server = Server(module, flags.threads, scratch)
        for line in sys.stdin:
            reply = answer(server, line)
            if reply is None:
                break
            print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
