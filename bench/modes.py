#!/usr/bin/env python3
"""What a monolith gains over kernels one after another (docs/monolith.md), on networks of many
small kernels. Each network is compiled with --mode auto, which times the layouts and `kernels` in turns in one
process; the table is of what it measured.

  bench/modes.py [--threads 2] [--precision f32|bf16|int8] [--page] [model…]

Models are folders of build/zoo; of int8, of what zoo/quantise.py makes of them in build/int8.
"""
import argparse
import datetime
import json
import math
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ["minilm-l6", "mobilenetv2", "yolox-nano", "gpt2-decode", "lstm-tagger"]
PAGE = ROOT / "docs" / "monolith.md"
DATA = PAGE.with_suffix(".json")

HEAD = """# Monoliths on the CPU

Made by `bench/modes.py`; do not edit.

Medians of a run in microseconds, the least of several compilations: kernels one after another, each a parallel region of its
own; one region in which threads meet after every kernel; and the fastest layout of a monolith (`--mode`), all in turns in one
process. In f32 where a table does not say otherwise. `compile --emit so|obj|exe` has no monoliths: kernels run one after another, whatever `--mode` says."""

NOTES = """
Wanted: 1.15×. What there is to gain on Zen 4 (two threads, kernels one after another, the best of each kernel against the
roofline's floors): MiniLM's kernels take 13.6 of a run's 14.0 ms (floors 11.8, of arithmetic), MobileNetV2's
2.98 of 3.04 (floors 2.76), YOLOX-nano's 6.37 of 6.51 (floors 4.98, which do not count activation functions); a decode step
reads 0.5 GB of weights at the 33 GB/s that two threads get from memory here (15 ms; at other times 58 GB/s). Waiting and
locality together are 2 to 3 % of the first three networks. A tagger's recurrences run side by side, each with its weights
in its own core's cache, at the 110 GB/s of that cache: 70 us of 48 products and 51 us of large products at 98 % of the peak
leave little of its 140 us.

Depth first, tiles of large results are consumed while they are in the second-level cache. Large products with few columns
were one task for each thread, which cannot be interleaved; they are now equal tasks of at most a quarter of that cache.
MobileNetV2, ten turns, medians: kernels 3.22 ms before and 3.18 after; counters 3.17 before, depth first with four items
3.15 after. In turns that met the machine's slower state (two of five): kernels 5.1 and 5.2 ms before, depth first with eight
items 4.2 and 4.4. Kernels one after another gain as well, so the ratios above do not. Six turns each as kernels, before and
after: ShuffleNetV2 1.75 and 1.71, EfficientViT-B1 6.10 and 6.06, EfficientNet-B0 5.37 and 5.31; SqueezeNet (2.51) and
YOLOX-nano (6.68 and 6.70) as before. Rings of rows in place of whole tensors were not tried after that.

On the Intel server (sapphirerapids) the mean hangs on the tagger, whose kernels take 0.25 ms with one thread and 0.40 to 0.46 with
two: parallel regions cost 1 to 2 us more there than on the others. Against one thread its monolith gains 1.7, and the mean would
be about 1.15. The other networks differ by as much from run to run (MobileNetV2 0.98 and 1.10 on two occasions).
On the Zen 3 two runs of this table, one after the other, said 1.17 and 1.10: the tagger's kernels took 0.56 and 0.31 ms.

Tried on Zen 4 (two threads, medians of 0.3 to 0.6 s in turns):

- Depth first before such tasks, with 1, 2, 4, 8 and 16 items of each worker: MobileNetV2 within 2 % of plain counters
  either way, YOLOX-nano 0 to 3 % slower.
- What the longest path of work hangs on before all else (`longest`, on a Zen 5): the tagger 82 us, as depth first; YOLOX-nano
  4.9 ms with no stage split, 5.0 depth first, 3.1 with stages split.
- No stage split (`whole=1000,depth`): the tagger 139 us, against 168 with stages split and 228 as kernels. It needs
  memory that is used again only where data orders the kernels anyway: without that the directions waited for
  each other's buffers.
- Each stage as whole runs say, with the same choice for all stages (the first `monolith:tuned`). With what stages on
  one worker add taken from runs in which they lay side by side, it was as fast as kernels on MobileNetV2 and the tagger
  (229 us) and 11 % slower on YOLOX-nano; counted with all its time, within 1 % of the best on most networks. Since then
  pairs of stages run alone, and edges choose.
- Tasks of such sizes that the last is smaller: workers waited for each other, and MobileNetV2 took 6.0 ms.
- Asking for the next stage's weights (up to 256 KB) while waiting, five turns: MobileNetV2 3.34 and 3.26 ms, YOLOX-nano
  6.85 and 6.80, MiniLM 13.28 and 13.22, a decode step 15.58 and 15.51 (medians without and with it): less than what turns
  differ by, and not kept.
- A recurrence's weights in turns forwards and backwards, so that the end of one product is in the first-level cache for
  the next: 1.48 to 1.41 us of a product written by hand, 3 us of the tagger's 140; not built.
"""


def measured_once(model, threads, precision):
    folder = ROOT / "build/int8" / f"{model}-int8" if precision == "int8" else ROOT / "build/zoo" / model
    command = [ROOT / "build/bin/heddle", "explain", folder, "--json", "--threads", str(threads), "--mode", "auto",
               "--precision", "bf16" if precision == "bf16" else "f32", "--cache", "none"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    times = {m["mode"]: m["us"] for m in report["mode"]["measured"]}
    return times, len(report["kernels"]), report["machine"]["cpu"]


def measured(model, threads, repeats, precision):
    """The least median of each mode: compiling leaves few turns to long networks."""
    runs = [measured_once(model, threads, precision) for _ in range(repeats)]
    return {m: min(r[0][m] for r in runs) for m in runs[0][0]}, runs[0][1], runs[0][2]


def table(machine, measured):
    lines = [f"\n## {machine}, {measured['date']}\n",
             "| network | kernels | one after another | barriers | monolith | layout | gain |", "|---" * 7 + "|"]
    gains = [r["apart_us"] / r["best_us"] for r in measured["rows"]]
    for r, gain in zip(measured["rows"], gains):
        barriers = "–" if r["barriers_us"] is None else f"{r['barriers_us']:.1f}"
        lines.append(f"| {r['model']} | {r['kernels']} | {r['apart_us']:.1f} | {barriers} | {r['best_us']:.1f} | "
                     f"{r['best']} | **{gain:.2f}×** |")
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return lines + [f"| geometric mean | | | | | | **{mean:.2f}×** |"]


def write(measured):
    """These machines' tables in place of theirs in what there is."""
    kept = json.loads(DATA.read_text()) if DATA.exists() else {}
    kept.update(measured)
    DATA.write_text(json.dumps(kept, indent=1) + "\n")
    lines = [HEAD] + [line for name, rows in kept.items() for line in table(name, rows)]
    PAGE.write_text("\n".join(lines) + "\n" + NOTES)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="compilations of each network")
    parser.add_argument("--precision", choices=["f32", "bf16", "int8"], default="f32")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("models", nargs="*", default=MODELS)
    args = parser.parse_args()
    rows, cpu = [], ""
    for model in args.models:
        times, kernels, cpu = measured(model, args.threads, args.repeats, args.precision)
        apart = times.pop("kernels")
        best = min(times, key=times.get)
        rows.append({"model": model, "kernels": kernels, "apart_us": apart, "best": best, "best_us": times[best],
                     "barriers_us": times.get("monolith:barriers")})
    here = {"date": datetime.date.today().isoformat(), "repeats": args.repeats, "rows": rows}
    name = f"{cpu}, {args.threads} threads" + (f", {args.precision}" if args.precision != "f32" else "")
    print("\n".join(table(name, here)))
    if args.page:
        write({name: here})


if __name__ == "__main__":
    main()
