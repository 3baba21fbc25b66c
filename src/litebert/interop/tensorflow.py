"""ALBERTs of TensorFlow's checkpoints, both ways: Google's, TF-Hub's, and both kinds of albert_zh's.

albert_zh's own kind has token embeddings of the small size and a matrix, while positions and segments have the hidden
size. As one table of the hidden size, with an identity where other ALBERTs have their matrix, it computes the same.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from litebert.errors import CheckpointError, ConfigError
from litebert.files import atomic_write, write_json
from litebert.interop.checkpoint_source import NO_HEAD, Checkpoint, TensorRecord, find_settings, refuse_damaged_settings
from litebert.interop.google_names import (
    PROJECTION,
    SECOND_EMBEDDINGS,
    WORD_EMBEDDINGS,
    is_lonepatient_name,
    to_google,
    to_huggingface,
)
from litebert.interop.huggingface import Folder, config_dict, name_map, named_tensors, parse_config
from litebert.interop.sentence_transformers import write_modules
from litebert.interop.tensor_bundle import OBJECT_GRAPH, BundleEntry, TensorBundle, write_bundle
from litebert.model.config import PRESETS, AlbertConfig

CHECKPOINT_NAME = "model.ckpt-best"
"""As in what Google gave away."""
CONFIG_NAME = "albert_config.json"
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu"}
"""Google's names of them, and ours: its GELU is the one by tanh."""
_COUNTER_NAMES = ("global_step", "beta1_power", "beta2_power", "save_counter")
_OPTIMIZER_SLOTS = (
    "adam_m", "adam_v", "lamb_m", "lamb_v", "Adam", "Adam_1", "AdamWeightDecay", "AdamWeightDecay_1", "LAMB",
    "LAMB_1", "Momentum", "RMSProp", "RMSProp_1", "RMSProp_2", "Adagrad", "Adadelta", "Adadelta_1", "Ftrl", "Ftrl_1",
    "ExponentialMovingAverage",
)  # fmt: skip
"""What optimizers keep below a weight, of its shape."""
_ADAFACTOR_SLOTS, _ADAFACTOR_FACTORED_SLOTS = ("m", "v"), ("vr", "vc")
"""Adafactor's, which could mean anything elsewhere; the last two are means, of rows and of columns."""
_EMBEDDINGS, _FIRST_LAYER = "albert.embeddings.", "albert.encoder.albert_layer_groups.0.albert_layers.0"
MAX_TABLE_SIZE = 1 << 28
"""Numbers of a table that two are multiplied into; that of the largest of albert_zh's shape has 87 million."""
_GOOGLE_DEFAULTS = {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1}
"""What Google's settings have beside ours, and always the same."""


def read_checkpoint(index: Path) -> Checkpoint:
    """Read the ALBERT of a checkpoint: the weights that it has a place for, and why others are left out."""
    bundle = TensorBundle(index)
    full_names = bundle.names()
    shapes = {name: bundle.entries[key].shape for key, name in full_names.items()}
    prefix = _prefix(set(shapes), index)
    places = {key: name.removeprefix(prefix) for key, name in full_names.items() if bundle.entries[key].is_weight}
    _refuse_bert(set(places.values()), index)
    renamed = {key: to_huggingface(name) for key, name in places.items()}
    rows, tensors = [], dict[str, Tensor]()
    for key, entry in bundle.entries.items():
        known, name = renamed.get(key), places.get(key, "")
        if known is None and name != SECOND_EMBEDDINGS:
            rows.append(TensorRecord(full_names[key], entry.shape, why=_why_left_out(full_names[key], entry, shapes)))
            continue
        becomes, transposed = known or (SECOND_EMBEDDINGS, False)
        if becomes in tensors:
            raise CheckpointError(f"{index}: holds {becomes} twice, once as {full_names[key]}; it is not one model")
        tensor = bundle.read(key)
        if transposed and tensor.dim() != 2:
            raise CheckpointError(f"{index}: {full_names[key]} has shape {entry.shape}, where a matrix was expected")
        tensors[becomes] = tensor.T.contiguous() if transposed else tensor
        rows.append(TensorRecord(full_names[key], entry.shape, becomes))
    _refuse_unknown_encoder_tensors(rows, prefix, index)
    return describe_checkpoint(index, tensors, rows, "a TensorFlow checkpoint")


def describe_checkpoint(
    path: Path, tensors: dict[str, Tensor], rows: list[TensorRecord], kind: str, torch_names: bool = False
) -> Checkpoint:
    """Weights by transformers' names, and albert_zh's second matrix, with the settings that lie beside them."""
    remarks: list[str] = []
    theirs = SECOND_EMBEDDINGS in tensors
    where, settings = _find_matching_settings(path, infer_sizes(tensors, path), theirs, remarks, torch_names)
    if settings.get("hidden_act", "") is None:
        raise CheckpointError(
            f"{path.parent}: hidden_act=null: Google's code then has no activation, and no ALBERT of transformers' or "
            "ours does without one; say in its settings which one the model was trained with"
        )
    if theirs:
        kind += " of albert_zh's own kind"
        rows = fold_second_matrix(tensors, rows, path)
    size = settings["embedding_size"] = tensors[f"{_EMBEDDINGS}word_embeddings.weight"].shape[1]
    query = tensors.get(f"{_FIRST_LAYER}.attention.query.weight")
    if f"{PROJECTION}.weight" not in tensors and query is not None and query.shape == (size, size):
        # with E = H Google has no matrix there; a square of that size is in the file, so this one is not too large
        tensors |= {f"{PROJECTION}.weight": torch.eye(size), f"{PROJECTION}.bias": torch.zeros(size)}
    config = parse_config(settings, where)
    if not torch_names and not _groups_agree(config.num_hidden_layers, settings["num_hidden_groups"]):
        raise CheckpointError(
            f"{path}: of {config.num_hidden_layers} layers in {settings['num_hidden_groups']} groups Google's division "
            "puts some into other groups than transformers' does; this model cannot be expressed"
        )
    by_transformers = torch_names and not any(is_lonepatient_name(row.name) for row in rows)
    framework = "transformers" if by_transformers else "" if torch_names else "tensorflow"
    return Checkpoint(kind, framework, path, _infer_task(settings, tensors, path), tensors, rows, remarks)


def write_google(folder: Folder, path: Path) -> list[TensorRecord]:
    """Write what google-research/albert reads: a checkpoint, albert_config.json and the vocabulary's files.

    Returns what each tensor became. A head that it has no whole place for is left out, with its task and a warning.
    """
    folder = _drop_unsupported_heads(folder)
    settings = _google_settings(folder)
    tensors, rows = dict[str, Tensor](), []
    for name, tensor in _drop_identity_projection(named_tensors(folder.model), folder.model.config):
        known = to_google(name)
        assert known is not None, name  # other heads were left out, and other encoders refused
        becomes, transposed = known
        tensors[becomes] = tensor.T if transposed else tensor
        rows.append(TensorRecord(name, tuple(tensor.shape), becomes))
    tokenizer = folder.required_tokenizer()
    tokenizer.save(path, folder.max_length)
    tokens, scores = tokenizer.vocabulary(), tokenizer.piece_scores()
    if scores is not None:
        lines = (f"{token}\t{score:.6g}\n" for token, score in zip(tokens, scores, strict=True))
        atomic_write(path / "spiece.vocab", "".join(lines))
    else:
        atomic_write(path / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    if folder.sentence_map is not None:  # which Google's code does not see, and we read again
        write_modules(path, folder.model.config, folder.max_length, tokenizer, folder.sentence_map)
    if folder.task is not None:
        folder.task.save_extra_files(path)
    write_bundle(path / CHECKPOINT_NAME, tensors)
    write_json(path / CONFIG_NAME, settings)
    return rows


def infer_sizes(tensors: Mapping[str, Tensor], path: Path) -> dict[str, int]:
    """The settings that shapes tell."""
    try:
        tables = [
            tensors[f"{_EMBEDDINGS}{name}_embeddings.weight"].shape for name in ("word", "position", "token_type")
        ]
        wide, hidden = tensors[f"{_FIRST_LAYER}.ffn.weight"].shape
        (vocabulary, small), (positions, _), (segments, _) = tables
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path}: lacks a table of embeddings or the first layer of an ALBERT ({error}); it is incomplete, or "
            "something else"
        ) from error
    blocks = [re.search(r"groups\.(\d+)\.albert_layers\.(\d+)\.ffn\.weight$", name) for name in tensors]
    numbers = [tuple(map(int, block.groups())) for block in blocks if block]
    return {
        "vocab_size": vocabulary, "embedding_size": small, "hidden_size": hidden, "intermediate_size": wide,
        "max_position_embeddings": positions, "type_vocab_size": segments,
        "num_hidden_groups": 1 + max(group for group, _ in numbers),
        "inner_group_num": 1 + max(inner for _, inner in numbers),
    }  # fmt: skip


def _find_matching_settings(
    path: Path, sizes: dict[str, int], theirs: bool, remarks: list[str], torch_names: bool
) -> tuple[Path, dict[str, Any]]:
    """The settings beside a checkpoint, as config.json would say them, and the file that does."""
    beside = list(find_settings(path.parent))
    fitting = {
        where: candidate
        for where, candidate in beside
        if all(candidate.get(key, sizes[key]) == sizes[key] for key in sizes)
    }
    if beside and not fitting:
        where, candidate = beside[0]
        key = next(key for key, size in sizes.items() if candidate.get(key, size) != size)
        raise CheckpointError(
            f"{where}: says {key}={candidate[key]!r}, and {path.name} has {sizes[key]}; they do not belong together"
        )
    shapes = [(candidate["num_hidden_layers"], candidate.get("num_attention_heads")) for candidate in fitting.values()]
    if any(other != shapes[0] for other in shapes):
        names = ", ".join(other.name for other in fitting)
        raise CheckpointError(f"{path.parent}: {names} fit {path.name} and differ; leave only the right one there")
    where, matching = next(iter(fitting.items())) if fitting else (path, {})
    settings = dict(matching) if fitting else _settings_from_preset(path, sizes, theirs, remarks, torch_names)
    if settings.get("ln_type") == "preln":
        raise CheckpointError(
            f"{where}: ln_type='preln': its layers normalise first, where an ALBERT normalises last, and "
            "no ALBERT computes the same; take one of albert_zh's models with 'postln', or in Google's format"
        )
    if "model_type" not in settings and not torch_names:
        act = settings.get("hidden_act", "gelu")
        settings["hidden_act"] = ACTIVATIONS.get(act, act) if isinstance(act, str) else act
    return where, settings | {key: size for key, size in sizes.items() if key not in settings}


def _settings_from_preset(
    path: Path, sizes: dict[str, int], theirs: bool, remarks: list[str], torch_names: bool
) -> dict[str, Any]:
    """Shapes tell neither how often a shared layer runs nor its heads, but those of the known sizes are known."""
    wanted = "config.json" if torch_names else CONFIG_NAME
    refuse_damaged_settings(path.parent, wanted)
    same = [
        (name, preset)
        for name, preset in PRESETS.items()
        if (preset.hidden_size, preset.intermediate_size) == (sizes["hidden_size"], sizes["intermediate_size"])
    ]
    if not same or theirs:
        reason = "the same names serve layers that normalise first" if theirs else "its shape is none of the known ones"
        raise CheckpointError(
            f"{path.parent}: has no {wanted}, and without it the model cannot be known ({reason}); put it beside "
            f"{path.name}"
        )
    name, preset = same[0]
    remarks.append(
        f"no {wanted} beside it: {preset.num_hidden_layers} passes and {preset.num_attention_heads} heads are those of "
        f"ALBERT {name}, which has this shape"
    )
    return {"num_hidden_layers": preset.num_hidden_layers, "num_attention_heads": preset.num_attention_heads,
            "hidden_act": ACTIVATIONS["gelu"], **sizes}  # fmt: skip


def fold_second_matrix(tensors: dict[str, Tensor], rows: list[TensorRecord], path: Path) -> list[TensorRecord]:
    """Make one table of albert_zh's two. In double precision, so that the product is rounded once."""
    words, second = f"{_EMBEDDINGS}word_embeddings.weight", tensors.pop(SECOND_EMBEDDINGS)
    if second.dim() != 2 or tensors[words].shape[1] != second.shape[0]:
        raise CheckpointError(
            f"{path}: {SECOND_EMBEDDINGS} of shape {tuple(second.shape)} does not fit the word embeddings; it is "
            "damaged: download it again"
        )
    size = len(tensors[words]) * max(second.shape)  # both its factor and the product are held in double precision
    if size > MAX_TABLE_SIZE:
        raise CheckpointError(
            f"{path}: {SECOND_EMBEDDINGS} takes a table of {size:,} numbers, over the limit of {MAX_TABLE_SIZE:,}; "
            "this is no ALBERT's checkpoint"
        )
    tensors[words] = (tensors[words].double() @ second.double()).float()
    why = "multiplied into one table of the hidden size"
    return [
        TensorRecord(row.name, row.shape, words, why) if row.becomes in (words, SECOND_EMBEDDINGS) else row
        for row in rows
    ]


def _infer_task(settings: dict[str, Any], tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """What a fine-tuned checkpoint answers shows in its heads alone."""
    ours = settings.get("litebert", {})
    if "architectures" in settings or not isinstance(ours, dict) or "task" in ours:
        return settings
    if "qa_outputs.weight" in tensors:
        return settings | {"architectures": ["AlbertForQuestionAnswering"]}
    if "classifier.weight" in tensors:
        shape = tuple(tensors["classifier.weight"].shape)
        if len(shape) != 2:
            raise CheckpointError(f"{path}: classifier.weight has shape {shape}, where a matrix was expected; it is "
                                  "damaged: download it again")  # fmt: skip
        labels = {str(number): f"LABEL_{number}" for number in range(shape[0])}
        problem = {"problem_type": "regression"} if len(labels) == 1 else {}
        return settings | {"architectures": ["AlbertForSequenceClassification"], "id2label": labels} | problem
    return settings


def _prefix(names: set[str], index: Path) -> str:
    """What stands before every name, as `module/` does in TF-Hub's."""
    tables = [name for name in names if name == WORD_EMBEDDINGS or name.endswith(f"/{WORD_EMBEDDINGS}")]
    if len(tables) != 1:
        examples = ", ".join(sorted(name for name in names if name != OBJECT_GRAPH)[:4]) or "nothing"
        raise CheckpointError(
            f"{index}: is not an ALBERT's checkpoint: of {WORD_EMBEDDINGS} it has {len(tables)} and not one; it holds "
            f"{examples}, …"
        )
    return tables[0].removesuffix(WORD_EMBEDDINGS)


def _refuse_bert(names: set[str], index: Path) -> None:
    if SECOND_EMBEDDINGS not in names and any(re.match(r"bert/encoder/layer_\d", name) for name in names):
        raise CheckpointError(
            f"{index}: is a BERT's: each of its layers has weights of its own, and its embeddings have no second "
            "matrix; convert it with transformers, then make an ALBERT of it: litebert distill --from-bert"
        )


def _why_left_out(name: str, entry: BundleEntry, shapes: Mapping[str, tuple[int, ...]]) -> str:
    before, _, last = name.rpartition("/")
    if last in _COUNTER_NAMES or name == OBJECT_GRAPH:
        return "counts steps or names objects: no weight"
    alike = shapes.get(before, entry.shape) == entry.shape  # without its weight, that one is what is missing
    short = before in shapes and (last in _ADAFACTOR_FACTORED_SLOTS or (last in _ADAFACTOR_SLOTS and alike))
    is_state = short or (last in _OPTIMIZER_SLOTS and alike)
    if is_state or ".OPTIMIZER_SLOT" in name:
        return "a state of the optimizer"
    return NO_HEAD if entry.kind.startswith(("float", "bfloat")) else f"{entry.kind}: no weight"


def _refuse_unknown_encoder_tensors(rows: Iterable[TensorRecord], prefix: str, index: Path) -> None:
    """What stands in the encoder must have a place there, or another model would come out."""
    for row in rows:
        if row.why == NO_HEAD and row.name.startswith(f"{prefix}bert/"):
            raise CheckpointError(f"{index}: an ALBERT has no place for {row.name} of shape {row.shape}, which is part "
                                  "of the encoder; this is another architecture")  # fmt: skip


def _drop_unsupported_heads(folder: Folder) -> Folder:
    """The model with those heads that Google's code takes whole: half a head is no head."""
    heads, names = folder.model.heads, list(name_map(folder.model))
    halved = [
        head
        for head in heads
        if any(ours.startswith(f"heads.{head}.") and to_google(theirs) is None for ours, theirs, _ in names)
    ]
    for head in halved:
        warnings.warn(
            f"Google's code has no whole place for the head {head!r}: it is left out, and its task too; use --to "
            "huggingface to keep them",
            stacklevel=3,
        )
    if not halved:
        return folder
    model = folder.model.with_heads({name: head for name, head in heads.items() if name not in halved})
    lost = folder.task is not None and folder.task.head_name in halved
    return replace(folder, model=model, task=None if lost else folder.task)


def _google_settings(folder: Folder) -> dict[str, Any]:
    """albert_config.json. Google's code takes what it knows; our own keys bring back the rest."""
    config, settings = folder.model.config, config_dict(folder)
    if folder.int8 is not None:
        raise ConfigError("a model in eight bits has no form in Google's code; give the one it was quantized from")
    special = [key for key in ("relative_attention_distance", "depth_embedding", "lora_rank") if getattr(config, key)]
    names = {ours: google for google, ours in ACTIVATIONS.items()} | {"gelu": "gelu"}
    if special or config.hidden_act not in names:
        value = special[0] if special else f"hidden_act={config.hidden_act!r}"
        raise ConfigError(f"{value} has no form in Google's code, which would compute something else; use --to "
                          "huggingface")  # fmt: skip
    groups, layers = settings["num_hidden_groups"], config.num_hidden_layers
    if not _groups_agree(layers, groups):
        raise ConfigError(f"{groups} groups of {layers} layers: Google's division puts some layers into other groups "
                          "than transformers' does; use --to huggingface")  # fmt: skip
    if config.hidden_act == "gelu":
        warnings.warn(
            "hidden_act='gelu' is the exact GELU, and Google's code has the one by tanh: there hidden states differ a "
            "little; litebert reads the model back as it is",
            stacklevel=3,
        )
    settings["litebert"]["hidden_act"] = config.hidden_act
    left_out = ("model_type", "architectures", "dtype")
    settings = {key: value for key, value in settings.items() if key not in left_out}
    return settings | _GOOGLE_DEFAULTS | {"hidden_act": names[config.hidden_act]}


def _groups_agree(layers: int, groups: int) -> bool:
    """Does Google's formula put every layer into the group that transformers' does? Both round."""
    return all(int(layer / layers * groups) == int(layer / (layers / groups)) for layer in range(layers))


def _drop_identity_projection(
    tensors: Iterable[tuple[str, Tensor]], config: AlbertConfig
) -> Iterable[tuple[str, Tensor]]:
    """Where E = H, Google's code has nothing between embeddings and layers."""
    for name, tensor in tensors:
        if not name.startswith(PROJECTION) or config.embedding_size != config.hidden_size:
            yield name, tensor
        elif not torch.equal(tensor, torch.eye(len(tensor)) if tensor.dim() == 2 else torch.zeros_like(tensor)):
            raise ConfigError(
                f"{name} is not an identity, and where embedding_size = hidden_size Google's code has nothing in its "
                "place; use --to huggingface"
            )
