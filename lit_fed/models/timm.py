"""Image networks of the library timm."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network, check_dropout, image_shape
from lit_fed.models.pretrained import SUFFIXES, fit_weights, read_weights
from lit_fed.system.names import check_library_options, did_you_mean, names_in
from lit_fed.system.packages import hub_or_cache, optional_package

__all__ = ["Timm"]

FILLED_IN = {"num_classes": "the data set", "in_chans": "the data set", "drop_rate": "--model.network.dropout"}
"""Options of timm that are set otherwise, and how."""

NAME = re.compile(r"\w+(\.\w+)?")
"""Network and version of its weights; `hf-hub:` and `local-dir:`, which load code and files, do not match."""


class Timm(Network):
    """Image networks of the library timm (extra `timm`), by name, with a classifier for K classes.

    Wightman. "PyTorch Image Models". 2019. https://github.com/huggingface/pytorch-image-models. Networks of fixed
    image size are built for the samples' size. Networks with attention train clients one after another.

    Args:
        input_shape: channels, height and width of one image.
        num_outputs: K.
        name: name of the network, see `timm.list_models()`.
        pretrained: start from timm's weights for this name, downloaded when first used.
        weights: path of a file (.pt, .pth) with a state dict of this network to start from; a classifier for another
            number of classes stays random. null: those of `pretrained`.
        dropout: share of units dropped before the classifier in training, in [0, 1).
        options: further arguments of `timm.create_model`, by name: sizes, rates, switches and names of layers.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        name: str = "resnet18",
        pretrained: bool = False,
        weights: str | None = None,
        dropout: float = 0.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        library = optional_package("timm", "timm>=1.0.31,<2", "timm", f"--model.network {type(self).__name__}")
        image = image_shape(f"timm's {name}", input_shape)
        check_dropout(dropout)
        options = dict(options or {})
        _check_names(library, name, pretrained, weights, options)
        if getattr(library.models.get_pretrained_cfg(name), "fixed_input_size", False):
            options.setdefault("img_size", image[1:])
        pretrained = pretrained and torch.empty(0).device.type != "meta"  # only sizes are needed
        given = {"num_classes": num_outputs, "in_chans": image[0], "drop_rate": dropout, **options}
        made = _create(library, name, pretrained, given)
        self.layers, head = made, made.pretrained_cfg.get("classifier") or ()
        prefixes = tuple(f"{one}." for one in ((head,) if isinstance(head, str) else head))
        if weights is not None:
            fit_weights(self.layers, read_weights(weights), weights, f"timm's {name}", prefixes)
        self.head_names = frozenset(
            f"layers.{one}" for one, _ in self.layers.named_parameters() if one.startswith(prefixes)
        )
        # attention kernels do not support vmap
        self.vmappable = not any(getattr(one, "fused_attn", False) for one in self.layers.modules())
        # makes dropout by function visible to code that searches the modules for dropout
        shares = [value for option, value in given.items() if "drop" in option and isinstance(value, float)]
        self.drops = nn.Dropout(max(shares))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of images [B, C, H, W]."""
        return self.layers(x)  # type: ignore[no-any-return]


def _check_names(library: Any, name: str, pretrained: bool, weights: str | None, options: dict[str, Any]) -> None:
    if NAME.fullmatch(name) is None or not library.is_model(name):
        meant = did_you_mean(name, library.list_models(), "timm.list_models() lists them")
        raise ConfigError(f"--model.network.name is {name}; give a network of timm, {meant}")
    for option, instead in FILLED_IN.items():
        if option in options:
            raise ConfigError(f"--model.network.options has {option}, which {instead} sets; leave it out")
    check_library_options(options, TIMM, "--model.network.options", "timm")
    if weights is not None and pretrained:
        raise ConfigError("--model.network.pretrained and --model.network.weights are both given; leave one out")
    if weights is not None and not weights.endswith(SUFFIXES):
        raise ConfigError(
            f"--model.network.weights is {weights}; give the path of a state dict, {' or '.join(SUFFIXES)}"
        )


def _create(library: Any, name: str, pretrained: bool, given: dict[str, Any]) -> Any:
    try:
        with hub_or_cache(is_here=False) if pretrained else nullcontext():
            return library.create_model(name, pretrained=pretrained, **given)
    except Exception as error:  # network, hub or option errors of any type
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        fix = "correct --model.network.name or --model.network.options"
        if pretrained:
            fix = f"without network access give a file by --model.network.weights; else {fix}"
        raise ConfigError(f"timm's {name} cannot be built ({said}); {fix}") from error


# A checkpoint or a server may bring these options. A name is listed only if the library reads sizes, rates, switches or
# names of layers from it: never a file, an address, a class or code. Later versions' options are not included.
TIMM = names_in(
    """
    aa_stem_only abs_win_pos_embed act_layer always_partition attn attn_act_layer attn_drop_rate attn_groups
    attn_head_dim_reduction attn_mlp attn_mlp_ratio attn_only_layer_scale attn_pool_mlp_ratio
    attn_pool_num_heads attn_ratio attn_stage attn_type attn_types attn_upsample avg_down base_dim base_dims
    base_width bias bidirectional block_config block_reduce_first bn_size bottle_ratio bottleneck_width_ratio
    cardinality ch_div channel_attention channel_attn_v2 channel_multiplier channels class_token cls_attn_layers
    cls_ratio conv_bias conv_init conv_mlp conv_ratio cpe_act crop_scale d2_scales deepen_factor depth
    depth_list depth_mult depth_token_only depths dim dim_mul dims down_kernel_size down_op down_pad
    down_patch_size down_stride downsample downsample_block downsample_expand_ratios downsample_kernel_size
    downsample_padding downsample_ratio downsamples drop_block_rate drop_block_size drop_path_rate dw_act_layer
    dynamic_img_pad dynamic_img_size embed_dim embed_dims embed_norm_layer encoder_pool eta expand_groups
    expand_ratio expansion_ratio extra_norm_period extra_norm_stage fc_act_layer fc_norm feature_dim ffn
    ffn_ratio final_chs final_norm first_stride fix_init fix_stem focal_levels focal_windows fused_conv
    fused_downsample global_att_blocks global_attn_indexes global_block_counts global_pool global_pos_size group
    groups growth_rate growth_rates head_bias head_dim head_fn head_hidden_size head_init_scale head_mul
    head_norm head_norm_first head_widths heads hidden_size hidden_sizes img_scale img_size inc_sec
    init_channels init_values initial_chs inner_dim inplanes input_3x3 intermediate_size k_r k_sec kernel_size
    kernel_sizes kernels key_dim layer_scale layer_scale_init_value layer_scale_init_values layers
    layerscale_value lkc_use_act local_conv_size local_mbconv_norm local_up_to_layer locality_strength
    ls_init_value mask_unit_attn mask_unit_size mbconv_expand_ratio merge_size mix_block_ratio mlp_bias
    mlp_ratio mlp_ratio_token_only mlp_ratios msfa_indices msfa_output_resolution multi_conv n_div neck_chans
    nlhb no_embed_class norm_eps norm_layer norm_layer_cl normalize_modulator num_blocks num_blocks_list
    num_features num_heads num_heads_inner num_heads_outer num_init_features num_kv_heads num_levels
    num_reg_tokens num_rnn_layers num_vit outlook_attention output_stride pad_type parallel_depth partial_dim
    patch_drop_rate patch_kernel patch_norm patch_padding patch_size patch_sizes patch_stride pconv_fw_type
    pool_include_prefix pool_size pool_type pooling_kernel_size pooling_scale pos_drop_rate pos_embed
    pos_embed_grid_size position_embedding_size post_layers pre_norm preact pretrained_window_sizes proj_bias
    proj_drop_rate q_pool q_stride qk_dim qk_norm qkv_bias qkv_fused reduction ref_feat_shape reg_tokens
    rel_pos_dim rel_pos_type reparam replace_stem_pool repmixer_kernel_size res_scale_init_values
    rope_grid_indexing rope_grid_offset rope_jitter_coords rope_mrope_section rope_rescale_coords
    rope_rotate_half rope_shift_coords rope_temperature rope_theta rope_type scale scale_attn_inner
    scale_attn_norm scale_mlp scale_mlp_norm se_downsamples se_from_exp se_layer se_ratio sep_pos_embed
    sequential_attn serial_depths shared_rel_pos shortcut_root small_kernels spatial_conv sr_ratios ssd_expand
    stages standardize state_dim stem_bias stem_chs stem_expand_ratio stem_hidden_dim stem_kernel_size
    stem_mid_norm stem_norm stem_size stem_stride stem_type stem_use_scale_branch stem_width strict_img_size
    stride strides swiglu_align_to swiglu_mlp tokens_norm transformer_depths transformer_drop_path
    transition_compression_ratio union use_abs_pos use_abs_pos_emb use_clipped_linears use_conv use_expand_proj
    use_fc_norm use_grn use_lab use_layer_scale use_mix_token use_mlp_head use_msfa use_overlap_down use_pos_emb
    use_pos_embed use_post_norm use_post_norm_in_modulation use_post_transformer_norm use_pre_transformer_norm
    use_rel_pos use_rel_pos_bias use_rope use_rot_pos_emb use_shared_rel_pos_bias v2 vit_stem weight_init
    widen_factor width width_factor width_list width_mult widths window_ratio window_size window_sizes
    window_spec wss zero_init_last
    """
)
"""Arguments of `timm.create_model` that describe a network."""
