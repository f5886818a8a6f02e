"""Classifiers of the library transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network, check_dropout
from lit_fed.models.library_options import TRANSFORMERS
from lit_fed.system.given_paths import given_path
from lit_fed.system.names import check_library_options, did_you_mean
from lit_fed.system.packages import optional_package

__all__ = ["HuggingFaceClassifier"]

OPTION = "--model.network"
ATTENTION = (None, "eager", "sdpa")
"""Kernels that are part of PyTorch; the library would fetch others from the hub, which are code."""

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""A name on the hub; other texts are paths."""

ABOUT_CONFIG = "a folder or file with a config.json, or fields such as {model_type: bert, hidden_size: 64}"


class HuggingFaceClassifier(Network):
    """Any classifier of texts, tokens or images of the library transformers (extra `transformers`), by name.

    Wolf et al. "Transformers: State-of-the-Art Natural Language Processing". EMNLP 2020 (demonstrations).
    https://arxiv.org/abs/1910.03771. Texts are token ids [length], int64; positions that hold the padding token take no
    part in attention. Samples [channels, height, width] are images. What the given weights do not hold, the classifier
    as a rule, stays random, and is what `--model.trainable head` trains.

    Clients are trained one after another, since the library's attention masks depend on the samples' values.

    Args:
        input_shape: number of tokens of one text, or channels, height and width of one image.
        num_outputs: K.
        weights: folder that `save_pretrained` wrote, or name of a model on the hub; null: random weights.
        config: with random weights the network, a folder or file with a `config.json`, or its fields with `model_type`
            among them; with weights fields that differ from theirs.
        per_token: an output for each token, [length, K], instead of one for each text. For next tokens the network has
            to be causal, as `gpt2` is.
        pad_token_id: token of what follows behind a text's end; null: that of the configuration.
        dropout: share dropped in training wherever the network has dropout, in [0, 1); null: as the configuration says.
    """

    vmappable = False

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        weights: str | None = None,
        config: str | dict[str, Any] | None = None,
        per_token: bool = False,
        pad_token_id: int | None = None,
        dropout: float | None = 0.0,
    ) -> None:
        super().__init__()
        library = optional_package(
            "transformers", "transformers>=5.24", "transformers", f"{OPTION} {type(self).__name__}"
        )
        kind = _kind(input_shape, per_token)
        with _silent(library):
            settings = _configuration(library, weights, config)
            _set_dropout(settings, dropout, config)
            _check_kind(library, settings, kind)
            if pad_token_id is not None:
                settings.pad_token_id = pad_token_id
            if kind == "Image":
                _set_image_size(settings, input_shape, weights)
            else:
                _check_texts(settings, input_shape[0], kind)
            settings.num_labels, settings.use_cache = num_outputs, False
            self.model, random = _build(library, kind, settings, weights)
        self.reads_images, self.pad_token_id = kind == "Image", getattr(settings, "pad_token_id", None)
        self.vocab_size: int | None = getattr(settings, "vocab_size", None)
        base = f"model.{self.model.base_model_prefix}."
        outside = {name for name, _ in self.named_parameters() if not name.startswith(base)}
        self.head_names = frozenset(outside | {f"model.{name}" for name in random})
        # some layers drop by function: this one says so to whoever looks for dropout among the modules
        self.drops = nn.Dropout(max(_dropouts(settings).values(), default=0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of texts [B, L] or images [B, C, H, W]; [B, L, K] per token.

        Raises:
            ConfigError: if the tokens are no whole numbers, or (on a CPU) not in the vocabulary.
        """
        if self.reads_images:
            return self.model(pixel_values=x).logits  # type: ignore[no-any-return]
        if x.is_floating_point():
            raise ConfigError(
                f"{type(self).__name__} reads tokens, the samples hold {x.dtype}; store them as int64 (uint8 is taken "
                "for pixels)"
            )
        mask = None
        if self.pad_token_id is not None:
            mask = x != self.pad_token_id
            mask = (mask | ~mask.any(1, keepdim=True)).long()  # attention over nothing has no value
        try:
            return self.model(input_ids=x, attention_mask=mask).logits  # type: ignore[no-any-return]
        except IndexError as error:
            raise ConfigError(
                f"a token is outside the vocabulary of {self.vocab_size}, or a text too long; correct it, or give "
                f"{OPTION}.config.vocab_size"
            ) from error


def _kind(input_shape: tuple[int, ...], per_token: bool) -> str:
    """What transformers call such a task."""
    if len(input_shape) not in (1, 3) or (per_token and len(input_shape) != 1):
        wanted = "texts [length]" if per_token else "texts [length] or images [channels, height, width]"
        raise ConfigError(
            f"HuggingFaceClassifier reads {wanted}, the samples are {list(input_shape)}; choose another {OPTION}, such "
            "as MLP"
        )
    return "Image" if len(input_shape) == 3 else "Token" if per_token else "Sequence"


def _check_kind(library: Any, settings: Any, kind: str) -> None:
    if type(settings) not in getattr(library, f"MODEL_FOR_{kind.upper()}_CLASSIFICATION_MAPPING"):
        what = {"Image": "images", "Token": "tokens", "Sequence": "texts"}[kind]
        raise ConfigError(
            f"HuggingFaceClassifier: transformers have no classifier of {what} for {type(settings).__name__}; choose "
            "another model_type or other weights, or correct the data"
        )


@contextmanager
def _silent(library: Any) -> Iterator[None]:
    """Without the library's bars and remarks: a random classifier is meant, and a network is built several times."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# ------------------------------------------------------------------ configuration
def _configuration(library: Any, weights: str | None, config: str | dict[str, Any] | None) -> Any:
    """The configuration: of the weights or of the given place, with the given fields."""
    if weights is None and not config:
        raise ConfigError(f"{OPTION} has no weights and no config; give weights, or as a config {ABOUT_CONFIG}")
    fields = dict(config) if isinstance(config, dict) else {}
    place = config if isinstance(config, str) else weights
    if place is not None:
        option = f"{OPTION}.{'config' if isinstance(config, str) else 'weights'} {place}"
        settings = _read(library.AutoConfig.from_pretrained, place, option)
        if fields.pop("model_type", settings.model_type) != settings.model_type:
            raise ConfigError(f"{option} is of the type {settings.model_type}; leave model_type out of the config")
    else:
        if "model_type" not in fields:
            raise ConfigError(f"{OPTION}.config has no model_type; give {ABOUT_CONFIG}")
        settings = _of_type(library, fields.pop("model_type"))
    _check_source(settings)
    return _with_fields(settings, fields)


def _check_source(settings: Any) -> None:
    """Refuse a configuration by which the library would load code, or another library's weights."""
    attention = getattr(settings, "_attn_implementation", None)
    if attention not in ATTENTION:
        raise ConfigError(f"{OPTION}.config asks for the attention {attention!r}; give eager or sdpa")
    for name in ("quantization_config", "model_args", "backbone", "detectron2_config_args"):
        if getattr(settings, name, None) is not None:
            raise ConfigError(
                f"{OPTION}.config: {type(settings).__name__} has {name}, which another library would read; choose "
                "another network"
            )
    for name in settings.sub_configs:
        if hasattr(part := getattr(settings, name, None), "to_dict"):
            _check_source(part)


def _read(read: Any, place: str, option: str, **options: Any) -> Any:
    """What the library reads from a folder, a file or the hub."""
    path = given_path(place, option.partition(" ")[0])
    if not path.exists() and HUB_NAME.fullmatch(place) is None:
        raise ConfigError(f"{option} does not exist; give a folder that save_pretrained wrote, or a name of the hub")
    try:
        return read(str(path) if path.exists() else place, trust_remote_code=False, **options)
    except Exception as error:  # of the network, the hub, the files, or the library's checks
        fix = (
            "give a folder that save_pretrained wrote"
            if path.exists()
            else "correct the name, or load the model elsewhere, save it by save_pretrained and give the folder"
        )
        raise ConfigError(f"{option} cannot be read ({_said(error)}); {fix}") from error


def _of_type(library: Any, model_type: Any) -> Any:
    known = list(library.CONFIG_MAPPING)
    if model_type not in known:
        meant = did_you_mean(str(model_type), known, "such as bert, distilbert, gpt2, vit")
        raise ConfigError(f"{OPTION}.config.model_type is {model_type}; give a type that transformers know, {meant}")
    return library.AutoConfig.for_model(model_type)


def _with_fields(settings: Any, fields: dict[str, Any]) -> Any:
    """The configuration with some other fields, checked against the library's own."""
    known = {*settings.to_dict(), *settings.attribute_map, "attn_implementation"}
    for name in fields:
        if name not in known:
            meant = did_you_mean(name, known, f"it has {', '.join(sorted(known)[:12])} …")
            raise ConfigError(f"{OPTION}.config has {name!r}, which is no field of {type(settings).__name__}; {meant}")
    attention = fields.pop("attn_implementation", None)
    if attention not in ATTENTION:
        raise ConfigError(f"{OPTION}.config.attn_implementation is {str(attention)[:60]!r}; give eager or sdpa")
    check_library_options(fields, TRANSFORMERS, f"{OPTION}.config", "transformers")
    given = settings.to_dict() | {settings.attribute_map.get(name, name): value for name, value in fields.items()}
    try:
        made = type(settings).from_dict(given)
        made.validate() if hasattr(made, "validate") else None
    except Exception as error:
        raise ConfigError(f"{OPTION}.config: {_said(error)}; correct the field") from error
    if attention is not None:
        made._attn_implementation = attention
    return made


def _dropouts(settings: Any) -> dict[str, float]:
    """All shares of a configuration by which something is dropped."""
    shares = {name: value for name, value in settings.to_dict().items() if "drop" in name}
    return {name: value or 0.0 for name, value in shares.items() if value is None or type(value) in (int, float)}


def _set_dropout(settings: Any, dropout: float | None, config: str | dict[str, Any] | None) -> None:
    if dropout is None:
        return
    check_dropout(dropout)
    given = config if isinstance(config, dict) else {}
    for name in _dropouts(settings).keys() - given.keys():
        # whole layers and paths are never dropped: clients of few samples would train other networks
        setattr(settings, name, 0.0 if "layer" in name or "path" in name else dropout)


def _set_image_size(settings: Any, input_shape: tuple[int, ...], weights: str | None) -> None:
    """Sizes of the images where the weights leave them open."""
    channels, height, width = input_shape
    for name, value in {"num_channels": channels, "image_size": height if height == width else (height, width)}.items():
        before = getattr(settings, name, None)
        if before is None or before == value:
            continue
        if weights is not None and name == "num_channels":
            raise ConfigError(
                f"{OPTION}.weights {weights} reads {before} channels, the samples are {list(input_shape)}; store them "
                f"with {before} channels"
            )
        if weights is None:
            setattr(settings, name, value)


def _check_texts(settings: Any, length: int, kind: str) -> None:
    longest = getattr(settings, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise ConfigError(
            f"HuggingFaceClassifier reads at most {longest} tokens, and the texts have {length}; give shorter ones, or "
            f"with random weights {OPTION}.config.max_position_embeddings"
        )
    if kind == "Sequence" and getattr(settings, "pad_token_id", None) is None:
        raise ConfigError(
            f"{OPTION}.pad_token_id: {type(settings).__name__} names no padding token; give the token that follows "
            "behind a text's end, -1 if there is none"
        )


# ------------------------------------------------------------------ weights
def _build(library: Any, kind: str, settings: Any, weights: str | None) -> tuple[nn.Module, set[str]]:
    """The network, and the names of its parameters that the weights do not hold."""
    factory = getattr(library, f"AutoModelFor{kind}Classification")
    sizes_alone = torch.empty(0).device.type == "meta"  # nothing is read for them
    if weights is None or sizes_alone:
        try:
            return factory.from_config(settings, trust_remote_code=False, dtype=torch.float32), set()
        except Exception as error:
            raise ConfigError(f"{OPTION}.config cannot be built ({_said(error)}); correct the fields") from error
    option = f"{OPTION}.weights {weights}"
    if _read(lambda place, **_: library.utils.find_adapter_config_file(place), weights, option) is not None:
        raise ConfigError(f"{option} holds adapters of peft, which name other weights; merge them and give the result")
    network, found = _read(
        factory.from_pretrained, weights, option, config=settings, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True,
    )  # fmt: skip
    unlike = {entry if isinstance(entry, str) else entry[0] for entry in found["mismatched_keys"]}
    random = unlike | set(found["missing_keys"])
    base = network.base_model_prefix + "."
    # a pooler is trained with the classifier; without the rest these would be other weights
    foreign = sorted(name for name in random if name.startswith(base) and (name in unlike or "pooler" not in name))
    if foreign:
        raise ConfigError(
            f"{option}: {len(foreign)} parameters of {type(network).__name__} are missing or of another shape there, "
            f"such as {', '.join(foreign[:3])}; give weights of this network, or leave out what --model.network.config "
            "changes of it"
        )
    return network, random


def _said(error: Exception) -> str:
    """What was raised, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    said = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {said}"[:300]
