"""`litebert export` of a model that translates: a graph that reads and one that writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from litebert.commands.export import CLOSE, Figures, distance, open_session
from litebert.compress.evaluation import scores_of
from litebert.data.batches import Batch
from litebert.errors import CheckpointError, ConfigError
from litebert.files import atomic_path
from litebert.inference.exported import Exported
from litebert.interop.onnx_int8 import quantize_graph
from litebert.interop.onnx_translate import READS, WRITES, Reads, Sessions, Writes, reading_graph, writing_graph
from litebert.model.decoder import Decoder
from litebert.tasks.translate import Translate

if TYPE_CHECKING:
    from litebert.commands.export import Config
    from litebert.inference import Model
    from litebert.tasks import Task
    from litebert.tasks.base import Scores

CHECKED_TOKENS = 4


class ExportedTranslator(Exported):
    """Searches as the model does; ONNX Runtime computes what reads and what writes."""

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        assert isinstance(task, Translate)
        return task.searched(self.session, self.session.memory(batch), batch.real)


def export_translator(config: Config, model: Model) -> Figures:
    if config.format != "onnx":
        raise ConfigError("a translator is two graphs, which are written as ONNX; leave out --format")
    decoder: Any = model.albert.heads[Translate.head_name]
    longest = model.config.max_position_embeddings
    reads, writes = Reads(model.albert, decoder), Writes(decoder)
    sizes = 0.0
    for name, graph in ((READS, reading_graph(reads, longest)), (WRITES, writing_graph(writes, longest))):
        if config.int8:
            quantize_graph(graph)
        with atomic_path(config.out / name) as temporary:
            temporary.write_bytes(graph.SerializeToString())
        sizes += (config.out / name).stat().st_size / 1e6
    figures: dict[str, Any] = {"file": f"{READS} and {WRITES}", "megabytes": sizes, "outputs": ["scores", "looks"]}
    if config.check or config.test is not None:
        paths = (config.out / READS, config.out / WRITES)
        sessions = Sessions(decoder, *map(open_session, paths))
        figures["off"] = _off(model, decoder, sessions)
        if figures["off"] > CLOSE and not config.int8:
            _refuse(figures["off"], paths)
        if config.test is not None:
            both = [model, ExportedTranslator(model, sessions)]
            metric, scores = scores_of(both, config.test, config.columns)
            figures |= {"metric": metric, "scores": tuple(scores)}
    return Figures(**figures)


@torch.inference_mode()
def _off(model: Model, decoder: Decoder, sessions: Sessions) -> float:
    """How far the scores of a few tokens after made-up sources of several lengths are off."""
    draw, off = torch.Generator().manual_seed(0), 0.0
    for sequences, length in ((1, 1), (1, 17), (3, 40)):
        length = min(length, model.config.max_position_embeddings)
        ids = torch.randint(0, model.config.vocab_size, (sequences, length), generator=draw)
        real = torch.ones_like(ids, dtype=torch.bool)
        real[1:, max(1, 2 * length // 3) :] = False
        batch = Batch(ids, real, torch.zeros_like(ids))
        cache = sessions.begin(sessions.memory(batch), real)
        source = Reads(model.albert, decoder)(ids, real.long(), batch.token_type_ids)["source"]
        truth = sessions.begin(source.permute(2, 0, 1, 3, 4, 5), real)
        for _ in range(CHECKED_TOKENS):
            tokens = torch.randint(0, decoder.config.vocab_size, (sequences,), generator=draw)
            found, wanted = sessions.step(tokens, cache)[0], decoder.step(tokens, truth)[0]
            off = max(off, distance({"scores": found}, {"scores": wanted}))
    return off


def _refuse(off: float, paths: tuple[Path, ...]) -> None:
    for path in paths:
        path.unlink()
    raise CheckpointError(
        f"what {paths[0].parent} gives is {off:.1%} off from torch, so it was deleted; please report it"
    )
