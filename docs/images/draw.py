"""The diagrams of the pages, as SVG: `python docs/images/draw.py` writes them beside itself.

Each has a background of its own and follows the reader's light or dark setting, so it can be read on any page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

STYLE = """
    text { fill: #1f2933; font-family: system-ui, sans-serif; font-size: 14px; }
    .page { fill: #ffffff; } .mono { font-family: ui-monospace, monospace; font-size: 13.5px; }
    .soft { fill: #52606d; font-size: 12.5px; } .title { font-weight: 600; } .blue { fill: #1d5a9e; }
    .box { fill: #e3edf8; stroke: #2563a8; stroke-width: 1.4; }
    .thing { fill: #fdf6e6; stroke: #a87a1f; stroke-width: 1.4; }
    .group { fill: none; stroke: #9aa5b1; stroke-dasharray: 5 4; }
    .line { fill: none; stroke: #52606d; stroke-width: 1.5; }
    .tip { fill: #52606d; } .a { fill: #d5e5f6; stroke: #2563a8; } .b { fill: #fbe3cf; stroke: #b4632a; }
    .c { fill: #dff0dc; stroke: #4b8a41; } .hidden { fill: #3e4c59; stroke: #1f2933; } .on-hidden { fill: #ffffff; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7eb; } .page { fill: #131722; } .soft { fill: #b0bac5; } .blue { fill: #8fbdf0; }
      .box { fill: #1d3350; stroke: #6aa5e6; } .thing { fill: #3a2f17; stroke: #d6a849; } .group { stroke: #7b8794; }
      .line { stroke: #b0bac5; } .tip { fill: #b0bac5; } .a { fill: #1d3350; stroke: #6aa5e6; }
      .b { fill: #4a2c18; stroke: #e09a63; } .c { fill: #203a1d; stroke: #7fc074; }
      .hidden { fill: #cbd2d9; stroke: #e4e7eb; } .on-hidden { fill: #131722; }
    }
"""


@dataclass
class Drawing:
    """Shapes on a page of this size."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, lines: Sequence[str] = ()) -> None:
        """A box with a line of code and lines about it; things are rounder than commands."""
        round_ = 16 if kind == "thing" else 3 if kind in ("a", "b", "c", "hidden") else 6
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_}" class="{kind}"/>'
        )
        first = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            name = "soft" if number else "mono" if kind == "box" else "on-hidden" if kind == "hidden" else ""
            self.text(x + width / 2, first + 18 * number, line, name)

    def arrow(self, *points: tuple[float, float], tip: bool = True) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(
            f'<path d="{path}" class="line"{" marker-end=" + chr(34) + "url(#tip)" + chr(34) if tip else ""}/>'
        )

    def write(self, path: Path) -> None:
        path.write_text(self.svg(), encoding="utf-8")

    def svg(self) -> str:
        shapes = "\n  ".join(self.parts)
        return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">
  <title>{escape(self.title)}</title>
  <style>{STYLE}  </style>
  <defs>
    <marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
      <path d="M0 0 10 5 0 10z" class="tip"/>
    </marker>
  </defs>
  <rect width="{self.width}" height="{self.height}" rx="10" class="page"/>
  {shapes}
</svg>
"""


def pipeline() -> Drawing:
    """From text to a server, command by command."""
    d = Drawing(960, 500, "From text to a server: the commands, and what passes between them")
    left, right, high = 20, 800, 62
    for y, name in ((20, "pre-train"), (190, "fine-tune"), (360, "use")):
        d.text(left if y == 20 else left + 70, y + 12, name, "title blue", "start")

    y = 42
    d.box(left, y, 110, high, "thing", ["text", "any size"])
    steps = [("tokenizer", "a vocabulary"), ("prepare", "shards of tokens"), ("pretrain", "MLM, sentence order")]
    for number, (name, about) in enumerate(steps):
        x = 172 + 205 * number
        d.arrow((x - 42 if number == 0 else x - 55, y + high / 2), (x, y + high / 2))
        d.box(x, y, 150, high, "box", [name, about])
    d.arrow((172 + 410 + 150, y + high / 2), (right, y + high / 2))
    d.box(right, y, 140, high, "thing", ["an encoder", "a folder"])
    d.arrow((right + 70, y + high), (right + 70, 152), (left + 55, 152), (left + 55, 212))
    d.text(480, 146, "or the built-in encoder; another checkpoint: convert; a BERT: distill --from-bert", "soft")

    y = 212
    d.box(left, y, 110, high, "thing", ["an encoder", "and examples"])
    d.arrow((left + 110, y + high / 2), (162, y + high / 2))
    d.box(162, y - 12, 580, high + 24, "group")
    teach = [("finetune", "hundreds of labels"), ("adapt", "a handful, seconds"), ("meta-train", "few-shot practice")]
    for number, (name, about) in enumerate(teach):
        d.box(178 + 188 * number, y, 172, high, "box", [name, about])
    d.arrow((742, y + high / 2), (right, y + high / 2))
    d.box(right, y, 140, high, "thing", ["a task model", "a folder"])
    d.arrow((right + 70, y + high), (right + 70, 322), (left + 55, 322), (left + 55, 382))

    y = 382
    d.box(left, y, 110, high, "thing", ["a task model", "a folder"])
    d.arrow((left + 110, y + high / 2), (162, y + high / 2))
    d.box(162, y - 12, 276, high + 24, "group")
    d.box(176, y, 118, high, "box", ["distill", "fewer passes"])
    d.box(306, y, 118, high, "box", ["quantize", "int8"])
    d.arrow((438, y + high / 2), (476, y + high / 2))
    d.box(476, y - 12, 464, high + 24, "group")
    use = [("predict", "evaluate"), ("embed", "search"), ("export", "ONNX"), ("serve", "HTTP, a page")]
    for number, (name, about) in enumerate(use):
        d.box(488 + 112 * number, y, 104, high, "box", [name, about])
    d.text(480, 486, "Boxes are commands. Rounded boxes are the files and folders that they read and write.", "soft")
    return d


def pretraining_data() -> Drawing:
    """From documents to a training step."""
    d = Drawing(960, 560, "From documents to a pre-training batch")
    d.text(20, 34, "1  documents, whole sentences", "title blue", "start")
    for number, (name, kind) in enumerate(
        [("s1", "a"), ("s2", "a"), ("s3", "a"), ("s4", "a"), ("t1", "b"), ("t2", "b"), ("t3", "b")]
    ):
        d.box(20 + 98 * number + (12 if kind == "b" else 0), 48, 92, 34, kind, [name])
    d.text(736, 60, "a row starts at a sentence and", "soft", "start")
    d.text(736, 77, "holds what fits of one document", "soft", "start")

    d.text(52, 130, "2  cut at a sentence: two segments of one document", "title blue", "start")
    d.arrow((34, 86), (34, 142))
    d.box(20, 146, 190, 34, "a", ["A = s1 s2"])
    d.box(216, 146, 190, 34, "c", ["B = s3 s4"])
    d.text(430, 168, "never of another document: the topic must give no clue", "soft", "start")

    d.text(52, 228, "3  swap them, half of the time", "title blue", "start")
    d.arrow((34, 184), (34, 240))
    cells = [
        ("[CLS]", 58, "thing"),
        ("B = s3 s4", 168, "c"),
        ("[SEP]", 58, "thing"),
        ("A = s1 s2", 168, "a"),
        ("[SEP]", 58, "thing"),
    ]
    x = 20.0
    for name, width, kind in cells:
        d.box(x, 244, width, 34, kind, [name])
        x += width + 4
    d.text(x + 14, 258, "swapped = 1: the model predicts", "soft", "start")
    d.text(x + 14, 275, "which of the two came first", "soft", "start")

    d.text(52, 326, "4  mask tokens, whole words or n-grams of 1 to 3 words, p(n) ∝ 1/n", "title blue", "start")
    d.arrow((34, 282), (34, 338))
    words = ["[CLS]", "the", "[MASK]", "[MASK]", "at", "five", "[SEP]", "the", "baker", "[MASK]", "up", "[SEP]"]
    for number, word in enumerate(words):
        kind = "hidden" if word == "[MASK]" else "thing" if word.startswith("[") else "c" if number < 6 else "a"
        d.box(20 + 68 * number, 342, 64, 34, kind, [word])
    d.text(
        20,
        396,
        "Selected tokens become [MASK] (80 %), another token (10 %) or stay as they are (10 %).",
        "soft",
        "start",
    )

    d.text(52, 444, "5  pack sequences end to end: no padding is computed", "title blue", "start")
    d.arrow((34, 404), (34, 456))
    shapes = [("input_ids", "(T,)", "tokens of all rows"), ("lengths", "(S,)", "of the sequences"),
              ("masked_positions, labels", "(M,)", "masked tokens"),
              ("cls_positions, swapped", "(P,)", "the pairs")]  # fmt: skip
    for number, (name, shape, about) in enumerate(shapes):
        d.box(20 + 232 * number, 460, 222, 62, "box", [name, f"{shape} {about}"])
    d.text(
        480,
        546,
        "The rows, cuts, swaps and masks of a batch are a function of (seed, step).",
        "soft",
    )
    return d


LAYERS = (
    ("cli",),
    ("command_help",),
    ("commands",),
    ("studies", "serve"),
    ("trainers",),
    ("compress", "meta"),
    ("loading",),
    ("fewshot",),
    ("inference",),
    ("interop", "search"),
    ("tasks",),
    ("data", "model", "train", "measure"),
    ("tokenizer", "checks", "run_folder", "cuda_graphs"),
    ("builtin", "files", "console", "device"),
    ("errors",),
)
ABOUT = {
    "cli": "flags", "command_help": "--help, --help-all",
    "commands": "one file per command", "serve": "HTTP, the page", "compress": "int8, students",
    "studies": "reproduce, bench, demo", "trainers": "pretrain, finetune, …", "loading": "litebert.load",
    "fewshot": "litebert.adapt",
    "inference": "predictions", "search": "indexes", "interop": "other file formats", "meta": "episodes",
    "tasks": "one file per task", "data": "files to batches", "tokenizer": "text to ids", "model": "ids to vectors",
    "train": "the training loop", "measure": "scores, plots, pages", "builtin": "built-in models",
    "device": "device, precision", "cuda_graphs": "record, replay",
    "checks": "settings", "run_folder": "the folder of a run", "console": "messages", "files": "atomic writing",
    "errors": "value, rule, remedy",
}  # fmt: skip


def layers() -> Drawing:
    """Which package may import which."""
    d = Drawing(960, 60 + 57 * len(LAYERS), "The packages of litebert: each imports only packages below it")
    d.text(480, 28, "A package imports only packages below it.", "soft")
    for number, row in enumerate(LAYERS):
        width = min(300, (920 - 14 * (len(row) - 1)) / len(row))
        x = 480 - (width * len(row) + 14 * (len(row) - 1)) / 2
        for name in row:
            d.box(x, 44 + 57 * number, width, 46, "box", [f"{name}", ABOUT[name]])
            x += width + 14
    return d


DRAWINGS = {"pipeline": pipeline, "pretraining-data": pretraining_data, "layers": layers}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        draw().write(Path(__file__).with_name(f"{name}.svg"))
