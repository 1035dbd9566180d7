"""Parts of bench/performance.py beside the comparison with peers: what tuning gives, the roofline, and
memory. Each measures one model at a time, so that each call can be a short one."""
import json
import statistics
import subprocess
import tempfile

ROOFLINE = ["resnet50", "bert-base", "mobilenetv2"]
BARE = """
import json, sys
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) / 1024
import numpy
bare = peak()
import onnxruntime
model = sys.argv[1]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options)
"""


def medians(call, heddle, model, threads, duration, variants):
    """Medians of variants of one model that run in turn, each a few times."""
    times = {name: [] for name in variants}
    for _ in range(3):
        for name, flags in variants.items():
            result = json.loads(call(heddle, "bench", f"build/zoo/{model}", "--threads", threads, "--json",
                                     "--duration", duration, *flags))
            times[name].append(result["heddle"]["median_ms"])
    return {name: statistics.median(ms) for name, ms in times.items()}


def measure_tuned(call, heddle, models, threads, duration, cache):
    """Without measurements (the lowering's own schedules, and the shipped ones), and with what
    `heddle tune --cache` has kept."""
    variants = {"own_ms": ["--schedules", "none", "--cache", cache], "none_ms": ["--cache", cache],
                "tuned_ms": ["--budget", "1e-9", "--cache", cache]}
    rows = []
    for model in models:
        for flags in variants.values():  # compiled before anything is timed
            call(heddle, "bench", f"build/zoo/{model}", "--threads", threads, "--duration", 0.01, *flags)
        rows.append({"model": model, "threads": threads,
                     **medians(call, heddle, model, threads, duration, variants)})
    return rows


def tuned_table(rows):
    out = ["\n### Without and with tuning\n",
           "`--budget none` with the lowering's own schedules and with those that come with the build, and the\n"
           "plan of `heddle tune`: median ms, in turn in one run.\n",
           "| model | threads | own schedules | `--budget none` | tuned | none over tuned |", "|---|---|---|---|---|---|"]
    for r in rows:
        out.append(f"| {r['model']} | {r['threads']} | {r['own_ms']:.3f} | {r['none_ms']:.3f} | "
                   f"{r['tuned_ms']:.3f} | **{r['none_ms'] / r['tuned_ms']:.2f}** |")
    return out


def measure_roofline(call, heddle, models, threads):
    rows = []
    for model in models:
        report = json.loads(call(heddle, "profile", f"build/zoo/{model}", "--roofline", "--threads", threads,
                                 "--json"))
        below = [{k: row[k] for k in ("us", "of_roofline", "bound", "schedule", "name")}
                 | {"covers": [s["op"] for s in row["sources"]]}
                 for row in report.pop("kernels") if row["of_roofline"] < 0.85]
        below.sort(key=lambda row: -row["us"])
        rows.append({**report, "model": model, "threads": threads, "missing": below[:8]})
    return rows


def roofline_table(rows):
    out = ["\n### Roofline\n",
           "`heddle profile --roofline`: a kernel's floor is its arithmetic at the measured peak, or its tensors\n"
           "once at the measured bandwidth of the cache that holds them, constants at the rate at which all of the program's\n"
           "can be read; peaks are those of multiply-adds, and of tile registers where there are any\n"
           "(for bf16, bytes, and f32 in pieces of bf16). Below: kernels under 85 % of it, and the\n"
           "dearest of them. Functions bound a kernel where an estimate of their vector instructions takes longer than\n"
           "its floor. As written: of those below, what is below 85 % of the peak by the products' own arithmetic, too\n"
           "(Winograd's and Strassen's do with less).\n",
           "| model | threads | floors ms | run ms | of the roofline | compute-bound: below, of | below as written | "
           "memory-bound: below, of | bound by functions: below, of |",
           "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        cells = [f"{r[b]['below']} of {r[b]['kernels']} kernels, {r[b]['below_us'] / 1e3:.2f} of {r[b]['us'] / 1e3:.2f} ms"
                 if b in r else "" for b in ("compute", "memory", "functions")]
        written = r["compute"].get("below_as_written_us")
        cells.insert(1, "" if written is None else f"{written / 1e3:.2f} ms")
        out.append(f"| {r['model']} | {r['threads']} | {r['floor_us'] / 1e3:.2f} | {r['run_us'] / 1e3:.2f} | "
                   f"**{100 * r['of_roofline']:.0f} %** | {' | '.join(cells)} |")
    for r in rows:
        out += [f"\n{r['model']}, {r['threads']} thread{'s' if r['threads'] > 1 else ''}, the dearest kernels below 85 %:\n",
                "| µs | of the roofline | bound | covers | schedule |", "|---|---|---|---|---|"]
        for k in r["missing"]:
            covers = ", ".join(dict.fromkeys(k["covers"]))
            out.append(f"| {k['us']:.0f} | {100 * k['of_roofline']:.0f} % | {k['bound']} | {covers} | {k['schedule']} |")
    return out


def peak_of_ort(python, path):
    """Of a process that loads and runs the model, and what Python and numpy alone had taken."""
    script = BARE + """
kinds = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64, "tensor(int32)": numpy.int32}
values = {i.name: numpy.zeros([d if isinstance(d, int) else 1 for d in i.shape], kinds[i.type])
          for i in session.get_inputs()}
session.run(None, values)
print(json.dumps([peak(), bare]))
"""
    done = subprocess.run([str(python), "-c", script, str(path)], capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)


def measure_memory(call, heddle, models, root):
    rows = []
    for model in models:
        peak, bare = peak_of_ort(root / "build/peers/bin/python", root / f"build/zoo/{model}/model.onnx")
        flags = ["--threads", 1, "--json", "--duration", 0.01]
        fresh = json.loads(call(heddle, "bench", f"build/zoo/{model}", "--cache", "none", *flags))["heddle"]
        with tempfile.TemporaryDirectory() as folder:
            artefact = f"{folder}/m.heddle"
            call(heddle, "compile", f"build/zoo/{model}", "-o", artefact, "--threads", 1)
            loaded = json.loads(call(heddle, "bench", artefact, *flags))["heddle"]
        rows.append({"model": model, "compile_mb": fresh["peak_mb"], "artefact_mb": loaded["peak_mb"],
                     "ort_mb": peak, "python_mb": bare})
    return rows


def memory_table(rows):
    out = ["\n### Peak resident memory\n",
           "MB, one thread, f32, of one process each: Heddle compiling and running, and running an artefact; ONNX\n"
           "Runtime loading and running, and the same less what Python and numpy take by themselves.\n",
           "| model | compile and run | artefact | ONNX Runtime | less Python |", "|---|---|---|---|---|"]
    for r in rows:
        out.append(f"| {r['model']} | {r['compile_mb']:.0f} | {r['artefact_mb']:.0f} | {r['ort_mb']:.0f} | "
                   f"{r['ort_mb'] - r['python_mb']:.0f} |")
    return out
