"""Options that are handed on to timm and transformers: the names in these lists, with numbers and words as values.

A checkpoint or a server may bring them. So a name is listed only if the library makes sizes, rates, switches or the
names of layers of its value: never a file, an address, a class or code. `checkpoint_path`, `pretrained_cfg_overlay`,
`trust_remote_code` and `quantization_config` are not among them, and neither is what a later version adds.
"""

from __future__ import annotations

from lit_fed.system.names import names_in

__all__ = ["TIMM", "TRANSFORMERS"]

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
"""Fields of configurations of transformers that describe a classifier."""
