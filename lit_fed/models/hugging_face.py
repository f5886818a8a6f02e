"""Classifiers and causal language models of the library transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network, check_dropout
from lit_fed.system.files import given_path
from lit_fed.system.names import check_library_options, did_you_mean, names_in
from lit_fed.system.packages import hub_or_cache, optional_package

__all__ = ["HuggingFaceCausalLM", "HuggingFaceClassifier", "silenced"]

OPTION = "--model.network"
ATTENTION = (None, "eager", "sdpa")
"""Kernels of PyTorch; the library would download others from the hub as code."""

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""A name on the hub; other texts are paths."""

ABOUT_CONFIG = "a folder or file with a config.json, or fields such as {model_type: bert, hidden_size: 64}"


class _HuggingFace(Network):
    """A network of the library, of texts or images.

    Attributes:
        model: as the library makes it.
        weights: folder or hub name of its weights; None: random weights.
        random: names of parameters that the weights lack.
    """

    vmappable = False
    model: nn.Module
    weights: str | None
    random: set[str]

    def _make(
        self, kind: str, input_shape: tuple[int, ...], num_outputs: int, weights: str | None,
        config: str | dict[str, Any] | None, pad_token_id: int | None, dropout: float | None,
        gradient_checkpointing: bool,
    ) -> None:  # fmt: skip
        """Build the library's network."""
        library = optional_package(
            "transformers", "transformers>=5.24,<6", "transformers", f"{OPTION} {type(self).__name__}"
        )
        named = [one for one in (weights, config) if isinstance(one, str)]
        is_here = all(given_path(one, OPTION).exists() for one in named)
        with silenced(library), hub_or_cache(is_here):
            settings = _configuration(library, weights, config)
            _set_dropout(settings, dropout, config)
            _check_kind(library, settings, kind)
            if pad_token_id is not None:
                settings.pad_token_id = pad_token_id
            if kind == "ImageClassification":
                _set_image_size(settings, input_shape, weights)
            else:
                _check_texts(settings, input_shape[0], kind)
            if kind == "CausalLM":
                _check_words(settings, num_outputs)
            else:
                settings.num_labels = num_outputs
            settings.use_cache = False
            self.model, self.random = _build(library, kind, settings, weights)
        self.weights = weights
        if gradient_checkpointing:
            _forget_activations(library, self.model)
        self.reads_images, self.pad_token_id = kind == "ImageClassification", getattr(settings, "pad_token_id", None)
        self.vocab_size: int | None = getattr(settings, "vocab_size", None)
        # makes dropout by function visible to code that searches the modules for dropout
        self.drops = nn.Dropout(max(_dropouts(settings).values(), default=0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of texts [B, L] or images [B, C, H, W]; [B, L, K] of each token.

        Raises:
            ConfigError: if tokens are not integers, or (on a CPU) outside the vocabulary.
        """
        return self._called(self.model, x).logits  # type: ignore[no-any-return]

    def _called(self, part: nn.Module, x: Tensor) -> Any:
        """Result of the network, or of its part without the last layer."""
        if self.reads_images:
            return part(pixel_values=x)
        if x.is_floating_point():
            raise ConfigError(
                f"{type(self).__name__} reads tokens, the samples hold {x.dtype}; store them as int64 (uint8 is taken "
                "for pixels)"
            )
        mask = None
        if self.pad_token_id is not None:
            mask = x != self.pad_token_id
            mask = (mask | ~mask.any(1, keepdim=True)).long()  # attention over no token is undefined
        try:
            return part(input_ids=x, attention_mask=mask)
        except IndexError as error:
            raise ConfigError(
                f"a token is outside the vocabulary of {self.vocab_size}, or a text too long; correct it, or give "
                f"{OPTION}.config.vocab_size"
            ) from error


class HuggingFaceClassifier(_HuggingFace):
    """Classifiers of texts, tokens or images of the library transformers (extra `transformers`), by name.

    Wolf et al. "Transformers: State-of-the-Art Natural Language Processing". EMNLP 2020 (demonstrations).
    https://arxiv.org/abs/1910.03771. Texts are token ids [length], int64; padding tokens are masked in attention.
    Samples [channels, height, width] are images. Parameters that the weights lack, usually the classifier, are random;
    `--model.trainable head` trains these.

    Clients train one after another, since the library's attention masks depend on the samples' values.

    Args:
        input_shape: number of tokens of one text, or channels, height and width of one image.
        num_outputs: K.
        weights: folder of `save_pretrained`, or hub name of a model; null: random weights.
        config: without weights: folder or file with a `config.json`, or its fields including `model_type`; with
            weights: fields to change.
        per_token: one output per token, [length, K], instead of one per text. Next-token prediction needs a causal
            network such as `gpt2`.
        pad_token_id: padding token; null: that of the configuration.
        dropout: dropout of all layers in training, in [0, 1); null: that of the configuration.
        gradient_checkpointing: keep only the inputs of each layer for the gradient and run the layer once more.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        weights: str | None = None,
        config: str | dict[str, Any] | None = None,
        per_token: bool = False,
        pad_token_id: int | None = None,
        dropout: float | None = 0.0,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        kind = _kind(input_shape, per_token)
        self._make(kind, input_shape, num_outputs, weights, config, pad_token_id, dropout, gradient_checkpointing)
        self.scores_tokens = kind == "SequenceClassification" and hasattr(self.model, "score")
        base = f"model.{self.model.base_model_prefix}."
        outside = {name for name, _ in self.named_parameters() if not name.startswith(base)}
        self.head_names = frozenset(outside | {f"model.{name}" for name in self.random})

    def split(self) -> tuple[Callable[[Tensor], Tensor], nn.Module] | None:
        """Features of a text are those of its last token, for decoders whose last layer scores every token.

        The other classifiers give the outputs of their last layer.
        """
        return (self._last_token, self.model.get_submodule("score")) if self.scores_tokens else None

    def _last_token(self, x: Tensor) -> Tensor:
        """Features [B, D]: the library's scores of the last token if its last layer is the identity."""
        handle = self.model.get_submodule("score").register_forward_hook(lambda _, given, scores: given[0])
        try:
            return self(x)  # type: ignore[no-any-return]
        finally:
            handle.remove()


class HuggingFaceCausalLM(_HuggingFace):
    """Causal language models of the library transformers (extra `transformers`) with their own last layer.

    Outputs at a token are the logits of the token that follows; weights that this layer shares with the embedding stay
    shared. Labels are those tokens, -100 where none counts, as `--data.dataset.next_token` of `HuggingFace` makes them.
    Outputs of long texts over many words are made in pieces, so that they are never in memory at once. With
    `--model.lora_rank` adapters alone are trained, unless `--model.trainable` says otherwise.

    Clients train one after another, since the library's attention masks depend on the samples' values.

    Args:
        input_shape: number of tokens of one text.
        num_outputs: K, the words of the vocabulary.
        weights: folder of `save_pretrained`, or hub name of a model; null: random weights.
        config: without weights: folder or file with a `config.json`, or its fields including `model_type`; with
            weights: fields to change.
        pad_token_id: padding token, which is masked in attention; null: that of the configuration.
        dropout: dropout of all layers in training, in [0, 1); null: that of the configuration.
        gradient_checkpointing: keep only the inputs of each layer for the gradient and run the layer once more.
        frozen_dtype: type of the frozen parameters, `float32`, or `bfloat16` beside adapters alone, which stay float32.
    """

    keeps_head = True

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        weights: str | None = None,
        config: str | dict[str, Any] | None = None,
        pad_token_id: int | None = None,
        dropout: float | None = 0.0,
        gradient_checkpointing: bool = False,
        frozen_dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(
                f"HuggingFaceCausalLM reads texts [length], the samples are {list(input_shape)}; choose another "
                f"{OPTION}"
            )
        if frozen_dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"{OPTION}.frozen_dtype is {frozen_dtype}; give float32 or bfloat16")
        self.frozen_dtype = torch.bfloat16 if frozen_dtype == "bfloat16" else None
        self._make("CausalLM", input_shape, num_outputs, weights, config, pad_token_id, dropout, gradient_checkpointing)
        if self.random:
            raise ConfigError(
                f"{OPTION}.weights {weights} lacks the last layer ({', '.join(sorted(self.random))}), and predicts no "
                "words; give weights of a causal language model"
            )
        known = {id(leaf): name for name, leaf in self.named_parameters()}
        self.head_names = frozenset(known[id(leaf)] for leaf in self._words.parameters())

    def split(self) -> tuple[Callable[[Tensor], Tensor], nn.Module] | None:
        """Features of all tokens of a text; None if more than one layer follows them."""
        x = torch.zeros(1, 2, dtype=torch.int64, device=next(self.parameters()).device)
        mode = self.training
        self.eval()
        with torch.no_grad():
            same = torch.equal(self(x), self._words(self._tokens(x)))
        self.train(mode)
        return (self._tokens, self._words) if same else None

    @property
    def _words(self) -> nn.Module:
        """The last layer."""
        words: nn.Module = self.model.get_output_embeddings()  # type: ignore[operator]
        return words

    def _tokens(self, x: Tensor) -> Tensor:
        """Features [B, L, D]."""
        base: Any = self.model.base_model
        return self._called(base, x).last_hidden_state  # type: ignore[no-any-return]


def _kind(input_shape: tuple[int, ...], per_token: bool) -> str:
    """The task's name in transformers."""
    if len(input_shape) not in (1, 3) or (per_token and len(input_shape) != 1):
        wanted = "texts [length]" if per_token else "texts [length] or images [channels, height, width]"
        raise ConfigError(
            f"HuggingFaceClassifier reads {wanted}, the samples are {list(input_shape)}; choose another {OPTION}, such "
            "as MLP"
        )
    return f"{'Image' if len(input_shape) == 3 else 'Token' if per_token else 'Sequence'}Classification"


def _check_kind(library: Any, settings: Any, kind: str) -> None:
    mapping = "CAUSAL_LM" if kind == "CausalLM" else f"{kind.removesuffix('Classification').upper()}_CLASSIFICATION"
    if type(settings) not in getattr(library, f"MODEL_FOR_{mapping}_MAPPING"):
        what = {
            "ImageClassification": "classifier of images", "TokenClassification": "classifier of tokens",
            "SequenceClassification": "classifier of texts", "CausalLM": "causal language model",
        }[kind]  # fmt: skip
        raise ConfigError(
            f"{OPTION}: transformers has no {what} for {type(settings).__name__}; choose "
            "another model_type or other weights, or correct the data"
        )


@contextmanager
def silenced(library: Any) -> Iterator[None]:
    """Silence the library `transformers`: random classifiers are intended, and networks are built several times."""
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
    """Load the configuration of the weights or the given place, with changed fields."""
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
    """Refuse configurations that load code or other libraries' weights."""
    attention = getattr(settings, "_attn_implementation", None)
    if attention not in ATTENTION:
        raise ConfigError(f"{OPTION}.config asks for the attention {attention!r}; give eager or sdpa")
    for name in ("quantization_config", "model_args", "backbone", "detectron2_config_args"):
        if getattr(settings, name, None) is not None:
            raise ConfigError(
                f"{OPTION}.config: {type(settings).__name__} has {name}, which other libraries read; choose "
                "another network"
            )
    if ":" in (architecture := str(getattr(settings, "architecture", ""))):
        raise ConfigError(
            f"{OPTION}.config asks for the architecture {architecture[:60]!r}, which is elsewhere; choose "
            "another network"
        )
    for name in settings.sub_configs:
        if hasattr(part := getattr(settings, name, None), "to_dict"):
            _check_source(part)


def _read(read: Any, place: str, option: str, **options: Any) -> Any:
    path = given_path(place, option.partition(" ")[0])
    if not path.exists() and HUB_NAME.fullmatch(place) is None:
        raise ConfigError(f"{option} does not exist; give a folder of save_pretrained, or a hub name")
    try:
        return read(str(path) if path.exists() else place, trust_remote_code=False, **options)
    except Exception as error:  # network, hub, file or library errors of any type
        fix = (
            "give a folder of save_pretrained"
            if path.exists()
            else "correct the name, or load the model elsewhere, save it by save_pretrained and give the folder"
        )
        raise ConfigError(f"{option} cannot be read ({_said(error)}); {fix}") from error


def _of_type(library: Any, model_type: Any) -> Any:
    known = list(library.CONFIG_MAPPING)
    if model_type not in known:
        meant = did_you_mean(str(model_type), known, "such as bert, distilbert, gpt2, vit")
        raise ConfigError(f"{OPTION}.config.model_type is {model_type}; give a type of transformers, {meant}")
    return library.AutoConfig.for_model(model_type)


def _with_fields(settings: Any, fields: dict[str, Any]) -> Any:
    """The configuration with changed fields, checked by name and by the library."""
    known = {*settings.to_dict(), *settings.attribute_map, "attn_implementation"}
    for name in fields:
        if name not in known:
            meant = did_you_mean(name, known, f"it has {', '.join(sorted(known)[:12])} …")
            raise ConfigError(
                f"{OPTION}.config has {name!r}, which is not a field of {type(settings).__name__}; {meant}"
            )
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
    shares = {name: value for name, value in settings.to_dict().items() if "drop" in name}
    return {name: value or 0.0 for name, value in shares.items() if value is None or type(value) in (int, float)}


def _set_dropout(settings: Any, dropout: float | None, config: str | dict[str, Any] | None) -> None:
    if dropout is None:
        return
    check_dropout(dropout)
    given = config if isinstance(config, dict) else {}
    for name in _dropouts(settings).keys() - given.keys():
        # never drop whole layers or paths: clients with few samples would train different networks
        setattr(settings, name, 0.0 if "layer" in name or "path" in name else dropout)


def _set_image_size(settings: Any, input_shape: tuple[int, ...], weights: str | None) -> None:
    """Set image sizes that the weights do not fix."""
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
            f"{type(settings).__name__} reads at most {longest} tokens, but the texts have {length}; shorten them, "
            f"or with random weights {OPTION}.config.max_position_embeddings"
        )
    if kind == "SequenceClassification" and getattr(settings, "pad_token_id", None) is None:
        raise ConfigError(
            f"{OPTION}.pad_token_id: {type(settings).__name__} has no padding token; give the token, or -1 if "
            "texts are not padded"
        )


def _check_words(settings: Any, num_outputs: int) -> None:
    if settings.vocab_size != num_outputs:
        raise ConfigError(
            f"{OPTION}: {type(settings).__name__} has {settings.vocab_size} words, and labels have {num_outputs} "
            f"values; give --model.target Sequences --model.target.num_classes {settings.vocab_size}, or without "
            f"weights {OPTION}.config.vocab_size {num_outputs}"
        )


# ------------------------------------------------------------------ layers that run twice
def _forget_activations(library: Any, network: nn.Module) -> None:
    """Run the layers of a network once more for their gradient."""
    layers = [one for one in network.modules() if isinstance(one, library.modeling_layers.GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"{OPTION}.gradient_checkpointing: transformers names no layers of {type(network).__name__} that can run "
            "twice; leave it out"
        )
    for layer in layers:
        layer.forward = MethodType(_run_twice, layer)


def _run_twice(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The layer's outputs; the second run takes the leaves of the first.

    With the library's own option it would take the template's, since `functional_call` has ended by then.
    """
    transformed = getattr(torch._C, "_are_functorch_transforms_active", bool)()  # these keep activations
    if transformed or not torch.is_grad_enabled():
        return type(layer).forward(layer, *args, **kwargs)
    leaves = {f"layer.{name}": leaf for name, leaf in (*layer.named_parameters(), *layer.named_buffers())}
    return checkpoint(partial(functional_call, _Once(layer), leaves), args, kwargs, use_reentrant=False)


class _Once(nn.Module):
    """A layer that keeps its activations."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.layer).forward(self.layer, *args, **kwargs)


# ------------------------------------------------------------------ weights
def _build(library: Any, kind: str, settings: Any, weights: str | None) -> tuple[nn.Module, set[str]]:
    """Build the network; also returns names of parameters that the weights lack."""
    factory = getattr(library, f"AutoModelFor{kind}")
    sizes_alone = torch.empty(0).device.type == "meta"  # no weights are read
    if weights is None or sizes_alone:
        try:
            return factory.from_config(settings, trust_remote_code=False, dtype=torch.float32), set()
        except Exception as error:
            raise ConfigError(f"{OPTION}.config cannot be built ({_said(error)}); correct the fields") from error
    option = f"{OPTION}.weights {weights}"
    if _read(lambda place, **_: library.utils.find_adapter_config_file(place), weights, option) is not None:
        raise ConfigError(f"{option} holds peft adapters, which refer to other weights; merge them and give the result")
    network, found = _read(
        factory.from_pretrained, weights, option, config=settings, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True,
    )  # fmt: skip
    unlike = {entry if isinstance(entry, str) else entry[0] for entry in found["mismatched_keys"]}
    random = unlike | set(found["missing_keys"])
    base = network.base_model_prefix + "."
    # a missing pooler is trained with the classifier; other missing parameters mean wrong weights
    foreign = sorted(name for name in random if name.startswith(base) and (name in unlike or "pooler" not in name))
    if foreign:
        raise ConfigError(
            f"{option}: {len(foreign)} parameters of {type(network).__name__} are missing or of another shape there, "
            f"such as {', '.join(foreign[:3])}; give weights of this network, or do not change it by "
            "--model.network.config"
        )
    return network, random


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    said = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {said}"[:300]


# ------------------------------------------------------------------ options
# A checkpoint or a server may bring these options. A name is listed only if the library reads sizes, rates, switches or
# names of layers from it: never a file, an address, a class or code. Later versions' options are not included.
TRANSFORMERS = names_in(
    """
    activation activation_dropout activation_function add_fpn alibi apply_layernorm
    apply_residual_connection_post_layernorm asm aspp_dropout_prob aspp_out_channels atrous_rates attention_bias
    attention_drop_rate attention_dropout attention_layers attention_probs_dropout_prob attention_ratio
    attention_type attention_types attention_window attn_dropout attn_logit_softcapping attn_pdrop attn_type
    auxiliary_channels auxiliary_concat_input auxiliary_loss_weight auxiliary_num_convs base_attn_unit_dims
    batch_norm_eps batch_norm_momentum bi_data bias block_repeats block_size block_sizes bos_index bos_token_id
    causal clamp_len classifier_activation classifier_bias classifier_dropout classifier_dropout_prob
    classifier_pooling clip_qkv cls_token cls_token_id conv_kernel_size d_ff d_head d_inner d_kv d_model
    decoder_attention_heads decoder_bias decoder_depth decoder_ffn_dim decoder_hidden_size decoder_layerdrop
    decoder_layers decoder_num_heads dense_act_fn depth depth_coefficient depth_divisible_by depth_divisor
    depth_multiplier depths depthwise_padding deterministic_flash_attn dff dim do_layer_norm_before down_ops
    down_pad down_patch_size down_stride downsample_in_bottleneck downsample_in_first_stage downsamples
    drop_connect_rate drop_conv_encoder_rate drop_mlp_rate drop_path_rate drop_rate dropout dropout_rate emb_dim
    embd_pdrop embed_dim embed_dim_multiplier embed_dims embed_dropout embed_init_std embedding_dropout
    embedding_dynamic_padding embedding_size enable_bias encoder_attention_heads encoder_ffn_dim
    encoder_layerdrop encoder_layers end_n_top eos_index eos_token_id expand_ratio expand_ratios
    feed_forward_proj ff_activation ffn_dim ffn_dropout ffn_hidden_size ffn_multiplier final_logit_softcapping
    finegrained_output first_layer_is_expansion focal_levels focal_windows gelu_activation global_padding
    groups_width head_dim head_ratio hidden_act hidden_activation hidden_dim hidden_dropout hidden_dropout_prob
    hidden_size hidden_sizes image_size in_channels init_std initializer_cutoff_factor initializer_factor
    initializer_range initializer_std inner_group_num input_embedding_size intermediate_groups intermediate_size
    intra_bottleneck_size inv_coeff_init_option is_encoder is_gated_act k_groups kernel_qkv kernel_size
    kernel_sizes key_dim key_query_shared_bottleneck layer_norm_elementwise_affine layer_norm_eps
    layer_norm_epsilon layer_norm_init layer_scale_init_value layer_type layer_types layerdrop layerscale_value
    legacy linear_attention local_attention mask_index mask_token_id masked_unit_attention masked_unit_size
    max_position_embeddings max_relative_positions max_window_layers mem_len min_depth mlp_bias mlp_dropout
    mlp_ratio mlp_ratios multi_query n_attn_blocks n_embd n_head n_heads n_inner n_langs n_layer n_layers
    n_positions n_token n_words neck_hidden_sizes new_decoder_architecture no_rope_layer_interval no_rope_layers
    norm_bias norm_eps norm_epsilon normalization_type normalize_modulator num_attention_heads num_block_repeats
    num_channels num_decoder_layers num_encoder_blocks num_experts num_experts_per_tok num_feedforward_networks
    num_groups num_heads num_hidden_groups num_hidden_layers num_key_value_heads num_kv_heads num_landmarks
    num_layers num_ln_in_parallel_attn num_local_experts num_query_pool num_random_blocks num_register_tokens
    num_stages original_max_position_embeddings out_channels output_embedding_size output_groups output_stride
    pad_index pad_token_id padding padding_kv padding_q parallel_attn patch_padding patch_size patch_sizes
    patch_stride pool_q_only pool_scales pool_size pooler_act pooler_dropout pooler_hidden_act
    pooler_hidden_size pooler_output_size pooling_type pos_att_type position_biased_input post_attention_groups
    pretrained_window_sizes pretraining_tp q_groups qa_dropout qk_layernorm qkv_bias qkv_projection_method
    query_pre_attn_scalar query_stride relative_attention relative_attention_max_distance
    relative_attention_num_buckets reorder_and_upcast_attn rescale_embeddings reshape_last_stage resid_dropout
    resid_pdrop residual_dropout reuse_len rms_norm_eps rope_parameters rotary_dim rotary_value
    router_aux_loss_coef router_jitter_noise same_length scale_attn_by_inverse_layer_idx scale_attn_weights
    scale_decoder_outputs scale_embedding segment_means_seq_len sep_token_id separate_cls seq_classif_dropout
    sequence_reduction_ratios sinusoidal_embeddings sinusoidal_pos_embds sliding_window slow_but_exact
    sparse_pred_ignore_index sparse_prediction squeeze_expansion_ratio sr_ratios start_n_top stride stride_kv
    stride_q strides summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels
    summary_type summary_use_proj task_type_vocab_size tf_padding tie_word_embeddings tpu_short_seq_length
    trigram_input true_hidden_size truncate_seq type_vocab_size unk_index use_absolute_embeddings
    use_absolute_position_embeddings use_auxiliary_head use_bias use_bidirectional_attention use_bottleneck
    use_bottleneck_attention use_conv_embed use_lang_emb use_layer_scale use_layerscale use_mean_pooling
    use_mems_eval use_mems_train use_parallel_residual use_post_layernorm use_post_layernorm_in_modulation
    use_qkv_bias use_relative_position_bias use_shared_relative_position_bias use_sliding_window use_swiglu_ffn
    use_task_id use_tpu_fourier_optimizations v_groups vocab_size width_coefficient width_factor
    width_multiplier window_size word_embed_proj_dim rope_scaling rope_theta
    """
)
"""Configuration fields of transformers that describe a classifier."""
