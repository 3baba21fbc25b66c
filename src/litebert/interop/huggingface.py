"""Hugging Face folders, both ways: config.json and the names of the tensors.

transformers knows only full sharing in groups. The other sharing modes are written as one group per layer, with our own
key in config.json, so that transformers computes the same and we read them shared again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from litebert.errors import CheckpointError, ConfigError
from litebert.files import HASH_FILE, atomic_path, file_sha256, read_json, write_json
from litebert.interop.sentence_transformers import read_sentence_map, write_modules
from litebert.interop.weights import quantize_tensors
from litebert.model import Albert, AlbertConfig, Encoder, pretraining_heads
from litebert.model.backends.int8 import range_names
from litebert.model.backends.onednn_int8 import ActivationRanges
from litebert.model.sentence_head import SentenceHead, SentenceMap
from litebert.tasks import TASKS, Task
from litebert.tasks.mask import Mask
from litebert.tokenizer import Tokenizer
from litebert.tokenizer.core import TOKENIZER_FILES

LITEBERT_SETTINGS = ("sharing", "relative_attention_distance", "depth_embedding", "lora_rank")
"""Settings transformers does not know; in config.json they stand under `litebert`."""
ALBERT_TYPES = ("albert", "litebert")
"""What config.json calls an ALBERT."""
BERT_TYPES = ("bert", "roberta", "distilbert")
"""What `bert.py` reads."""

_ATTENTION = {"out": "attention.dense", "norm": "attention.LayerNorm"}
_FFN = {"widen": "ffn", "narrow": "ffn_output", "norm": "full_layer_layer_norm"}
_EMBEDDINGS = {
    "word_embeddings.weight": "embeddings.word_embeddings.weight",
    "position_embeddings.weight": "embeddings.position_embeddings.weight",
    "segment_embeddings.weight": "embeddings.token_type_embeddings.weight",
    "embedding_norm.weight": "embeddings.LayerNorm.weight",
    "embedding_norm.bias": "embeddings.LayerNorm.bias",
    "project.weight": "encoder.embedding_hidden_mapping_in.weight",
    "project.bias": "encoder.embedding_hidden_mapping_in.bias",
    "pooler.weight": "pooler.weight",
    "pooler.bias": "pooler.bias",
    "relative_bias": "encoder.litebert_relative_bias",
    "depth_embeddings.weight": "encoder.litebert_depth_embeddings.weight",
    "adapters.down": "encoder.litebert_adapters.down",
    "adapters.up": "encoder.litebert_adapters.up",
}
_HEADS = {
    "mlm": {"dense": "predictions.dense", "norm": "predictions.LayerNorm", "bias": "predictions.bias"},
    "order": {"linear": "sop_classifier.classifier"},
    "classify": {"linear": "classifier"},
    "tag": {"linear": "classifier"},
    "choose": {"linear": "classifier"},
    "answer": {"linear": "qa_outputs"},
}
"""Parts of our heads that transformers knows, and what it calls them."""
_LITEBERT_HEADS_PREFIX = "litebert_heads"
"""The rest of them stand under this name, and the folder is one that transformers refuses."""
_TIED_TENSORS = {
    "predictions.decoder.weight": "encoder.word_embeddings.weight",
    "predictions.decoder.bias": "heads.mlm.bias",
}


@dataclass(frozen=True)
class Folder:
    """What a model folder holds."""

    model: Albert
    tokenizer: Tokenizer | None
    """None: the folder has none, and the model reads token ids only."""
    task: Task[Any, Any] | None
    max_length: int
    """The longest sequence the model was trained on, as far as the folder says."""
    sentence_map: SentenceMap | None = None
    """What vectors of sentences go through."""
    int8: ActivationRanges | None = None
    """Weights are held in eight bits, and between what its products' inputs lie, empty if that is not known."""

    def required_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise CheckpointError(
                "this model has no tokenizer, which the format needs; put the tokenizer.json, spiece.model or "
                "vocab.txt that it was trained with into its folder"
            )
        return self.tokenizer


def assemble_folder(
    path: Path, settings: dict[str, Any], tensors: dict[str, Tensor], tokenizer: Tokenizer | None = None
) -> Folder:
    """What a folder holds, from its config.json and its weights by their current names; the tokenizer is read too,
    unless it is given."""
    model, task = build_model(path, settings, tensors)
    config = model.config
    if task is not None:
        task.load_extra_files(path)
    if tokenizer is None and any((path / name).is_file() for name in TOKENIZER_FILES):
        tokenizer = Tokenizer.load(path)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens and the model only {config.vocab_size}; "
            "they do not belong together"
        )
    max_length = settings.get("litebert", {}).get("max_length", config.max_position_embeddings)
    if not isinstance(max_length, int) or not 8 <= max_length <= config.max_position_embeddings:
        raise CheckpointError(f"{path / 'config.json'}: litebert.max_length={max_length!r} must fit the model")
    sentence_map, int8 = (
        read_sentence_map(path, config.hidden_size, tokenizer),
        _parse_ranges(settings, model.encoder, path),
    )
    return Folder(model, tokenizer, task, max_length, sentence_map, int8)


def build_model(
    path: Path, settings: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[Albert, Task[Any, Any] | None]:
    """The model of these settings with these weights, and its task."""
    config = parse_config(settings, path)
    task, heads = _build_heads(settings, config, tensors)
    with torch.device("meta"):  # shapes without memory: nothing is allocated for a file that does not fit
        model = Albert(config, heads)
    model.load_state_dict(_build_state_dict(model, tensors, path), assign=True)
    return model.eval(), task


def save_folder(path: Path, folder: Folder, half: bool = False) -> None:
    """Write a folder that transformers, sentence-transformers and litebert load.

    With `half` weights are rounded to bfloat16: half the bytes, loaded as float32 all the same. Eight bits are read by
    litebert alone. config.json comes last: a folder without it is unfinished.
    """
    tensors = {name: tensor.bfloat16() if half else tensor for name, tensor in named_tensors(folder.model)}
    if folder.int8 is not None:
        tensors = dict(quantize_tensors(tensors))
    if folder.tokenizer is not None:
        folder.tokenizer.save(path, folder.max_length)
    if folder.task is not None:
        folder.task.save_extra_files(path)
    _write_tensors(path, tensors)
    write_modules(path, folder.model.config, folder.max_length, folder.tokenizer, folder.sentence_map, half)
    write_json(path / "config.json", config_dict(folder))


def save_weights(path: Path, model: Albert, task: Task[Any, Any] | None) -> None:
    """Write the weights and the settings of a model whose vocabulary nobody has; one can be put beside them later."""
    _write_tensors(path, dict(named_tensors(model)))
    write_json(path / "config.json", model_config_dict(model, task, model.config.max_position_embeddings))


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with atomic_path(path / "model.safetensors") as temporary:
        safetensors.torch.save_file(tensors, temporary, metadata={"format": "pt"})
    write_json(path / HASH_FILE, {"model.safetensors": file_sha256(path / "model.safetensors")})


def read_settings(folder: Path) -> dict[str, Any]:
    """config.json of an ALBERT; anything else is refused here."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: has no config.json, so it is not a finished model folder; "
            "give a folder that litebert or transformers saved"
        )
    settings = read_json(path)
    kind = settings.get("model_type", "albert" if "embedding_size" in settings else None)
    if kind not in ALBERT_TYPES:
        raise CheckpointError(
            f"{path}: model_type={kind!r} is not an ALBERT ('albert' or 'litebert'); give an ALBERT's folder"
            + ("" if kind not in BERT_TYPES else ", or make one of it: litebert distill --from-bert")
        )
    return settings


def parse_config(settings: dict[str, Any], folder: Path) -> AlbertConfig:
    """The model that settings describe; a complaint names config.json of the folder, or the file that is given."""
    where = folder if folder.is_file() else folder / "config.json"
    known = {field.name for field in fields(AlbertConfig)} - set(LITEBERT_SETTINGS)
    ours = settings.get("litebert", {})
    if not isinstance(ours, dict):
        raise CheckpointError(f"{where}: 'litebert' must be an object; save the model again")
    chosen = {key: value for key, value in settings.items() if key in known and value is not None}
    chosen |= {key: value for key, value in ours.items() if key in known or key in LITEBERT_SETTINGS}
    try:
        return AlbertConfig(**chosen)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{where}: {error}") from error


def config_dict(folder: Folder) -> dict[str, Any]:
    """What config.json says."""
    settings = model_config_dict(folder.model, folder.task, folder.max_length)
    if folder.sentence_map is not None and folder.sentence_map.passes > 1:
        settings["output_hidden_states"] = True  # which sentence-transformers reads
    if folder.int8 is not None:
        settings["litebert"]["int8"], settings["model_type"] = folder.int8, "litebert"
    tokenizer = folder.tokenizer
    if tokenizer is None:
        return settings
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return settings | ids


def model_config_dict(model: Albert, task: Task[Any, Any] | None, max_length: int) -> dict[str, Any]:
    """What config.json says of a model without its vocabulary."""
    config = model.config
    settings = {key: value for key, value in config.to_dict().items() if key not in LITEBERT_SETTINGS}
    ours: dict[str, Any] = {key: getattr(config, key) for key in LITEBERT_SETTINGS} | {"max_length": max_length}
    if config.sharing != "all":
        ours["num_hidden_groups"] = config.num_hidden_groups
        settings["num_hidden_groups"] = config.num_hidden_layers
    if task is not None:
        ours |= {"task": task.name, "options": task.options()}
        settings |= task.settings()
    # transformers would load these and ignore what makes them different, so it must not know them
    expressible = not (config.relative_attention_distance or config.depth_embedding or config.lora_rank)
    expressible = expressible and not any(theirs.startswith(_LITEBERT_HEADS_PREFIX) for _, theirs, _ in name_map(model))
    return settings | {
        "model_type": "albert" if expressible else "litebert",
        "architectures": [_architecture(model, task)],
        "dtype": "float32",
        "litebert": ours,
    }


def named_tensors(model: Albert) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under its Hugging Face name."""
    states = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for ours, theirs, part in name_map(model):
        if ours in states:
            tensor = states[ours] if part is None else states[ours].chunk(3)[part]
            yield theirs, tensor.clone()  # safetensors takes no two names for one memory


def _parse_ranges(settings: dict[str, Any], encoder: Encoder, folder: Path) -> ActivationRanges | None:
    ranges = settings.get("litebert", {}).get("int8")
    if ranges is None:
        return None
    fits = isinstance(ranges, dict) and set(ranges) in (set(), set(range_names(encoder)))
    if not fits or not all(_is_range(bounds) for bounds in ranges.values()):
        raise CheckpointError(
            f"{folder / 'config.json'}: litebert.int8 must say between what numbers the inputs of products lie, or "
            "nothing; quantize the model again"
        )
    return {place: (float(least), float(largest)) for place, (least, largest) in ranges.items()}


def _is_range(bounds: Any) -> bool:
    numbers = isinstance(bounds, list) and len(bounds) == 2 and all(type(bound) in (int, float) for bound in bounds)
    return numbers and -math.inf < bounds[0] <= bounds[1] < math.inf


def name_map(model: Albert) -> Iterator[tuple[str, str, int | None]]:
    """(our name, their name, which third of ours it is). A block shared across their groups appears once per group."""
    config = model.config
    for ours, theirs in _EMBEDDINGS.items():
        yield f"encoder.{ours}", f"albert.{theirs}", None
    groups = config.num_hidden_groups if config.sharing == "all" else config.num_hidden_layers
    for group in range(groups):
        layer = (
            group
            if config.sharing != "all"
            else next(x for x in range(config.num_hidden_layers) if config.group(x) == group)
        )
        for inner in range(config.inner_group_num):
            theirs = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
            attention = f"encoder.attention.{config.block_at('attention', layer, inner)}"
            ffn = f"encoder.ffn.{config.block_at('ffn', layer, inner)}"
            for kind in ("weight", "bias"):
                for part, name in enumerate(("query", "key", "value")):
                    yield f"{attention}.qkv.{kind}", f"{theirs}.attention.{name}.{kind}", part
                for ours, name in _ATTENTION.items():
                    yield f"{attention}.{ours}.{kind}", f"{theirs}.{name}.{kind}", None
                for ours, name in _FFN.items():
                    yield f"{ffn}.{ours}.{kind}", f"{theirs}.{name}.{kind}", None
    for head, module in model.heads.items():
        if head == SentenceHead.name:
            continue  # it is written as sentence-transformers' modules
        for name in module.state_dict():
            own, _, rest = name.partition(".")
            known = _HEADS.get(head, {}).get(own)
            theirs = f"{_LITEBERT_HEADS_PREFIX}.{head}.{name}" if known is None else f"{known}.{rest}".rstrip(".")
            yield f"heads.{head}.{name}", theirs, None


def _build_state_dict(model: Albert, tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The model's state from the file's tensors; refuses what is missing, misshapen, contradictory or left over."""
    shapes = {name: state.shape for name, state in model.state_dict().items()}
    pieces: dict[str, dict[int, Tensor]] = {}
    missing = []
    for ours, theirs, part in name_map(model):
        if ours not in shapes:
            continue
        shape = shapes[ours] if part is None else torch.Size((shapes[ours][0] // 3, *shapes[ours][1:]))
        tensor = tensors.pop(theirs, None)
        if tensor is None:
            missing.append(theirs)
            continue
        if tensor.shape != shape:
            raise CheckpointError(
                f"{folder}: {theirs} has shape {tuple(tensor.shape)} where config.json implies {tuple(shape)}; "
                "weights and config do not belong together"
            )
        before = pieces.setdefault(ours, {}).setdefault(part or 0, tensor)
        if not torch.equal(before, tensor):
            _refuse_nan(theirs, tensor, folder)
            raise CheckpointError(
                f"{folder}: sharing={model.config.sharing!r} but {theirs} differs from its copies; "
                "set litebert.sharing to 'none' in config.json"
            )
    if set(missing) == {"albert.pooler.weight", "albert.pooler.bias"}:
        pieces |= {f"encoder.{name}": {0: tensor} for name, tensor in _initial_pooler(model.config).items()}
        missing = []
    if missing:
        raise CheckpointError(
            f"{folder}: lacks {len(missing)} tensors, {missing[0]} among them; "
            "the file is incomplete or of another model: download it again"
        )
    state = {name: torch.cat([parts[i] for i in sorted(parts)]).float() for name, parts in pieces.items()}
    _check_unused_tensors(state, tensors, folder)
    return state


def _refuse_nan(name: str, tensor: Tensor, folder: Path) -> None:
    if count := int(tensor.isnan().sum()):
        raise CheckpointError(
            f"{folder}: {name} holds {count:,} values that are not a number (NaN); its training went wrong or it is "
            "damaged: take an earlier checkpoint or download it again"
        )


def _initial_pooler(config: AlbertConfig) -> dict[str, Tensor]:
    """transformers' masked-LM, tagging and question-answering classes save no pooler: start one, always the same."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(config.hidden_size, config.hidden_size).normal_(
        std=config.initializer_range, generator=generator
    )
    return {"pooler.weight": weight, "pooler.bias": torch.zeros(config.hidden_size)}


def _check_unused_tensors(state: dict[str, Tensor], tensors: dict[str, Tensor], folder: Path) -> None:
    """What the file holds beyond the model: copies of the tied table are fine, another head is lost with a warning."""
    for copy, original in _TIED_TENSORS.items():
        tensor = tensors.pop(copy, None)
        if tensor is not None and original in state and not torch.equal(tensor.float(), state[original]):
            raise CheckpointError(
                f"{folder}: {copy} is not tied to {original}, which ALBERT's head is; this model cannot be expressed"
            )
    encoder_left = [name for name in tensors if name.startswith("albert.")]
    if encoder_left:
        raise CheckpointError(
            f"{folder}: {len(encoder_left)} tensors have no place in the model config.json describes, "
            f"{encoder_left[0]} among them; they do not belong together"
        )
    if tensors:
        names = ", ".join(sorted(tensors)[:4])
        warnings.warn(f"{folder}: litebert has no head for {names}; the encoder is loaded without it", stacklevel=4)


def _build_heads(
    settings: dict[str, Any], config: AlbertConfig, tensors: dict[str, Tensor]
) -> tuple[Task[Any, Any] | None, dict[str, nn.Module]]:
    """Which heads the file carries, and the task that reads them."""
    task = finetuned_task(settings)
    if task is not None and task.head_name == SentenceHead.name:
        return task, {}
    if task is not None:
        with torch.device("meta"):
            return task, {task.head_name: task.head(config)}
    with torch.device("meta"):
        heads = pretraining_heads(config)
    heads = {
        name: head
        for name, head in heads.items()
        if any(theirs.startswith(prefix) for prefix in _HEADS[name].values() for theirs in tensors)
    }
    return (Mask() if "mlm" in heads else None), heads


def finetuned_task(settings: dict[str, Any]) -> Task[Any, Any] | None:
    """The task that a config.json speaks of, if the model was taught one."""
    architectures = settings.get("architectures") or [""]
    if not isinstance(architectures, list):
        raise CheckpointError(f"architectures={architectures!r} in config.json must be a list of names")
    architecture, ours = architectures[0], settings.get("litebert", {})
    named, problem = ours.get("task"), settings.get("problem_type")
    for task_class in TASKS.values():
        same = architecture == task_class.architecture and problem in task_class.problem_types
        if task_class is not Mask and (named == task_class.name or (named is None and same)):
            return task_class.from_settings(settings | {"options": ours.get("options", {})})
    return None


def _architecture(model: Albert, task: Task[Any, Any] | None) -> str:
    if {"mlm", "order"} <= set(model.heads):
        return "AlbertForPreTraining"
    return task.architecture if task is not None else "AlbertModel"
