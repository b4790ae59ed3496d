"""The keys under which config.json files of transformers give the sizes of a model, the most usual first."""

from __future__ import annotations

LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model")
FFN_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
POSITIONS_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
EXPERTS_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
EXPERT_FFN_KEYS = ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size")
ONE_GROUP_KEYS = ("n_group", "topk_group")  # of experts

SIZE_KEYS = (
    *LAYERS_KEYS, *HEADS_KEYS, *KV_HEADS_KEYS, *HIDDEN_KEYS, *FFN_KEYS, *POSITIONS_KEYS, *EXPERTS_KEYS,
    *EXPERTS_PER_TOKEN_KEYS, *EXPERT_FFN_KEYS, *ONE_GROUP_KEYS, "vocab_size", "tie_word_embeddings",
)  # fmt: skip
"""All of them."""
