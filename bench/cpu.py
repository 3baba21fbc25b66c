"""Texts on a CPU: ours in float32 and in eight bits, beside transformers, ONNX Runtime and OpenVINO.

  python bench/cpu.py --data text.txt
  python bench/cpu.py --data text.txt --many sentences.txt
  python bench/cpu.py --data text.txt --lengths 16 64 --rounds 30 --compiled

Everybody takes turns in one run, with the same weights, texts of the same number of tokens, and two threads. A turn is
six texts one after the other, each in and its vector out, tokenisation included; the first two wake threads and caches
and do not count (--cold: the first one alone counts, as for somebody who asks once in a while). Medians, with half the
distance between the quartiles beside them, and how many times as long the others take as ours in eight bits, by our own
code where a compiler is there; by oneDNN beside it, which is told between what numbers the inputs of products lie:
--data holds plain text for that. Needs pip install '.[bench]'; who is not installed is left out. ONNX Runtime quantizes
by its own quantize_dynamic, per channel (it has no bfloat16 on CPUs); OpenVINO computes in float32, in what it chooses
itself (bfloat16 where the CPU has it), and in eight bits by NNCF, calibrated with --data; torchao's eight bits are of
activations and weights, under torch.compile, without which they are slow. With --many, all lines of a file at once
instead of single texts: ours by `embed`, the others in batches of 32 of similar length, longest first.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import litebert
from litebert.builtin import folder_of
from litebert.compress.quantize import quantize_model
from litebert.data.batches import Example, batches_by_length, pad
from litebert.data.corpus import read_lines
from litebert.inference import Model
from litebert.interop.onnx import VectorModule, make_graph, run_session
from litebert.interop.onnx_int8 import quantize_graph
from litebert.model.backends.int8 import enable_int8

Answer = Callable[[list[str]], Any]
"""Texts in, their vectors out."""
BATCH = 32
WAKING, COUNTED = 2, 4
"""Texts of a turn."""
OURS = "litebert int8"
CALIBRATED, CALIBRATED_TOKENS = 32, 128
"""Texts that OpenVINO's eight bits are fitted to, and how much of each: 128 whole ones took minutes."""
REST = 0.05
"""Seconds in which the threads of who was before, waiting busily for more, go to sleep."""


def texts_of(model: Model, lines: list[str], length: int) -> list[str]:
    """Some of exactly so many tokens, cut from these lines."""
    found = []
    for start in range(len(lines)):
        words, text = " ".join(lines[start:]).split(), ""
        for word in words:
            longer = f"{text} {word}".strip()
            count = len(model.tokenizer.encode([longer])[0].ids)
            if count > length:
                break
            text = longer
            if count == length:
                found.append(text)
                break
        if len(found) == 5:
            return found
    raise SystemExit(f"--data has too little text for five texts of {length} tokens")


def ours(folder: Path, examples: list[Example], work: Path) -> dict[str, Answer]:
    model = litebert.load(folder, engine="torch")
    by_onednn = quantize_model(model, examples)
    enable_int8(by_onednn.encoder, by_onednn.int8, native=False)
    found: dict[str, Answer] = {
        "litebert fp32": model.embed,
        "litebert int8 by oneDNN": by_onednn.embed,
        OURS: quantize_model(model).embed,
    }
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        graph = make_graph(VectorModule(model.albert, model.sentence_map), model.max_length)
        quantize_graph(graph)
        (work / "ours.onnx").write_bytes(graph.SerializeToString())
        session = session_of(work / "ours.onnx")

        def by_graph(texts: list[str]) -> Any:
            batch = pad(model.tokenizer.encode(texts, max_length=model.max_length), model.tokenizer.pad_id)
            return run_session(session, batch)["sentence_embedding"]

        found["litebert export --int8, ONNX Runtime"] = by_graph
    return found


def theirs(folder: Path, compiled: bool, lines: list[str], work: Path) -> dict[str, Answer]:
    from transformers import AutoModel, AutoTokenizer

    loaded: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer = partial(loaded, padding=True, truncation=True)
    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    def by_torch(call: Any, dtype: torch.dtype) -> Answer:
        def answer(texts: list[str]) -> Any:
            with torch.inference_mode(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                return call(**tokenizer(texts, return_tensors="pt")).last_hidden_state.float().mean(1)

        return answer

    found = {"transformers fp32": by_torch(model, torch.float32)}
    if compiled:
        # all of them are one function to the compiler, which by itself gives up after eight shapes, without a word
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 12
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            found[f"transformers compiled, {name}"] = by_torch(
                torch.compile(copy.deepcopy(model), dynamic=False), dtype
            )
        if find_spec("torchao"):
            found["transformers compiled, torchao int8"] = by_torch(
                torch.compile(by_torchao(model), dynamic=False), torch.float32
            )
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        path = exported(model, tokenizer, work)
        found |= by_onnxruntime(path, tokenizer, work)
        if find_spec("openvino"):
            found |= by_openvino(path, tokenizer, lines)
    return found


def by_torchao(model: Any) -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    found = copy.deepcopy(model)
    quantize_(found, Int8DynamicActivationInt8WeightConfig())
    return found


def exported(model: Any, tokenizer: Any, work: Path) -> Path:
    """By torch's own exporter."""
    path = work / "model.onnx"
    given = dict(tokenizer(["one text", "another"], return_tensors="pt"))
    axes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=512)}
    with torch.inference_mode():
        torch.onnx.export(
            model, (), path, kwargs=given, dynamic_shapes=dict.fromkeys(given, axes), dynamo=True, verbose=False,
            external_data=False,
        )  # fmt: skip
    return path


def by_onnxruntime(path: Path, tokenizer: Any, work: Path) -> dict[str, Answer]:
    from onnxruntime.quantization import QuantType, quant_pre_process, quantize_dynamic

    small = work / "int8.onnx"
    quant_pre_process(path, work / "ready.onnx", skip_symbolic_shape=True)
    quantize_dynamic(work / "ready.onnx", small, weight_type=QuantType.QInt8, per_channel=True)

    def answers(file: Path) -> Answer:
        session = session_of(file)
        names = {one.name for one in session.get_inputs()}
        return lambda texts: session.run(
            None, {name: value for name, value in tokenizer(texts, return_tensors="np").items() if name in names}
        )[0].mean(1)

    return {"ONNX Runtime fp32": answers(path), "ONNX Runtime int8": answers(small)}


def session_of(file: Path) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = torch.get_num_threads(), 3
    return onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])


def by_openvino(path: Path, tokenizer: Any, lines: list[str]) -> dict[str, Answer]:
    """In float32, as it chooses itself, and where NNCF is installed in eight bits."""
    import openvino

    def given(texts: list[str], **more: int) -> dict[str, Any]:
        return {name: value for name, value in tokenizer(texts, return_tensors="np", **more).items() if name in names}

    def answers(model: Any, **more: str) -> Answer:
        compiled = openvino.compile_model(model, "CPU", settings | more)
        return lambda texts: compiled(given(texts))[0].mean(1)

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(torch.get_num_threads())}
    model = openvino.Core().read_model(path)
    names = {name for one in model.inputs for name in one.names}
    found = {"OpenVINO fp32": answers(model, INFERENCE_PRECISION_HINT="f32"), "OpenVINO": answers(model)}
    if find_spec("nncf"):
        import nncf

        texts = nncf.Dataset([[line] for line in lines[:CALIBRATED]], partial(given, max_length=CALIBRATED_TOKENS))
        how = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": CALIBRATED}
        found["OpenVINO int8"] = answers(nncf.quantize(model, texts, **how))
    return found


def measured(contenders: dict[str, Answer], texts: list[str], rounds: int, cold: bool) -> dict[str, list[float]]:
    """Milliseconds of the texts of everybody's turns, but the first two turns."""
    found: dict[str, list[float]] = {who: [] for who in contenders}
    for turn in range(rounds + 2):
        for who, answer in contenders.items():
            time.sleep(REST)
            taken = []
            for number in range(1 if cold else WAKING + COUNTED):
                began = time.perf_counter()
                answer([texts[(turn + number) % len(texts)]])
                taken.append(1000 * (time.perf_counter() - began))
            if turn > 1:
                found[who] += taken if cold else taken[WAKING:]
    return found


def throughput(contenders: dict[str, Answer], model: Model, texts: list[str], rounds: int) -> None:
    """Texts per second of everybody, in turns."""
    lengths = [len(one.ids) for one in model.tokenizer.encode(texts, max_length=model.max_length)]
    groups = [[texts[i] for i in group] for group in batches_by_length(lengths, BATCH)]
    seconds: dict[str, list[float]] = {who: [] for who in contenders}
    for _ in range(rounds):
        for who, answer in contenders.items():
            time.sleep(REST)
            began = time.perf_counter()
            for group in [texts] if who.startswith("litebert") and "export" not in who else groups:
                answer(group)
            seconds[who].append(time.perf_counter() - began)
    base = statistics.median(seconds[OURS])
    print(f"{len(texts):,} texts of {statistics.mean(lengths):.1f} tokens, {max(lengths)} at most")
    print("| who | texts/s | times as long as ours in int8 |\n|---|---|---|")
    for who, times in seconds.items():
        middle = statistics.median(times)
        print(f"| {who} | {len(texts) / middle:.0f} | {middle / base:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="litebert-base-en")
    parser.add_argument("--data", type=Path, required=True, help="plain text")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 128, 512])
    parser.add_argument("--many", type=Path, help="a file of texts, one per line, to be read at once")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cold", action="store_true", help="count the first text after a rest, not those that follow")
    parser.add_argument(
        "--compiled", action="store_true", help="transformers under torch.compile too; needs a compiler"
    )
    parser.add_argument("--out", type=Path, help="write the figures there, JSON lines")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    folder = folder_of(options.model)
    model = litebert.load(folder)
    lines = [line for line in read_lines([options.data]) if line.strip()]
    examples = [Example([one]) for one in model.tokenizer.encode(lines[:256], max_length=128)]
    packages = [
        name for name in ("torch", "transformers", "onnxruntime", "openvino", "nncf", "torchao") if find_spec(name)
    ]
    print(", ".join(f"{name} {version(name)}" for name in packages))
    with tempfile.TemporaryDirectory() as work:
        contenders = theirs(folder, options.compiled, lines, Path(work)) | ours(folder, examples, Path(work))
        one = texts_of(model, lines, min(options.lengths))[0]
        truth = contenders["transformers fp32"]([one])
        for who, answer in contenders.items():
            if "litebert" not in who:  # whose vectors are mapped
                near = np.asarray(answer([one])).ravel()
                cosine = np.dot(near, truth.ravel()) / np.linalg.norm(near) / np.linalg.norm(truth)
                print(f"{who}: cosine with transformers fp32 {cosine:.4f}")
        if options.many is not None:
            many = [line for line in read_lines([options.many]) if line.strip()]
            throughput(contenders, model, many, options.rounds)
            return
        print("| tokens | who | ms | ± | times as long as ours in int8 |\n|---|---|---|---|---|", flush=True)
        for length in options.lengths:
            found = measured(contenders, texts_of(model, lines, length), options.rounds, options.cold)
            base = statistics.median(found[OURS])
            for who, times in found.items():
                lower, middle, upper = statistics.quantiles(times, n=4)
                row = {
                    "tokens": length,
                    "who": who,
                    "ms": middle,
                    "spread": (upper - lower) / 2,
                    "ratio": middle / base,
                }
                print(
                    f"| {length} | {who} | {middle:.1f} | {(upper - lower) / 2:.1f} | {middle / base:.2f} |", flush=True
                )
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
