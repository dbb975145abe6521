"""Decoder for training: the computation of Qwen3, with the parameter names of Qwen3."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 5,
}
HIDDEN: int = 192
LAYERS: int = 5
HEADS: int = 6
KV_HEADS: int = 2
HEAD_DIM: int = 32
INNER: int = 512
SHORT = 160
"""Maximum number of ids of a row whose attention is computed by `_attend_short`."""


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-6)


def rope(length: int) -> tuple[Tensor, Tensor]:
    """Compute the cosines and sines of rotary position embeddings, each [length, head_dim]."""
    rates = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = torch.outer(torch.arange(length).float(), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention. `q` is [rows, HEADS, length, head_dim]; `k` and `v` have KV_HEADS
    heads."""
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attend_short(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the same as `_attend` with an explicit matrix of scores, which on a CPU is four times
    as fast for short rows."""
    rows, heads, length, size = q.shape
    folded = q.reshape(rows, KV_HEADS, heads // KV_HEADS * length, size)
    scores = (folded @ k.mT).view(rows, KV_HEADS, -1, length, length) * size**-0.5
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(later, float("-inf")).softmax(-1).to(v.dtype)
    return (shares.view(rows, KV_HEADS, -1, length) @ v).view(rows, heads, length, size)


class Attention(nn.Module):
    """Causal grouped-query attention with QK-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.q_norm = Norm(HEAD_DIM)
        self.k_norm = Norm(HEAD_DIM)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        shape = (rows, length, -1, HEAD_DIM)
        q = _turn(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2), cos, sin)
        k = _turn(self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        y = _attend_short(q, k, v) if length <= SHORT else _attend(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """Gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the feed-forward network, each added to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = Mlp()
        self.input_layernorm = Norm(HIDDEN)
        self.post_attention_layernorm = Norm(HIDDEN)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Decoder that computes from token ids [rows, length] the loss at chosen positions."""

    def __init__(self, vocabulary: int, length_max: int = 2048) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm(HIDDEN)
        cos, sin = rope(length_max)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Initialize weights from small normal distributions, and each query head as a copy of the
        key head that it uses.

        Equal tokens then attend to each other from the first step, so that the model learns early
        to copy.
        """
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        for name, weight in self.named_parameters():
            if weight.ndim < 2 or "embed" in name:
                continue
            residual = "o_proj" in name or "down_proj" in name
            scale = 0.5 if residual else 1.0
            nn.init.normal_(weight, std=scale * 0.6 / weight.shape[1] ** 0.5)
        for layer in self.layers:
            attention = layer.self_attn
            assert isinstance(attention, Attention)
            key = attention.k_proj.weight.data.view(KV_HEADS, HEAD_DIM, HIDDEN)
            copied = key.repeat_interleave(HEADS // KV_HEADS, dim=0)
            attention.q_proj.weight.data.copy_(copied.reshape(HEADS * HEAD_DIM, HIDDEN))

    def hidden(self, ids: Tensor) -> Tensor:
        """Compute the last hidden states [rows, length, hidden]."""
        x = self.embed_tokens(ids).to(torch.bfloat16)
        cos, sin = (t[: ids.shape[1]].to(x.dtype) for t in (self.cos, self.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def forward(self, ids: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        """Compute the sum of the cross-entropy losses at ``places``.

        ``places`` are indices into the flattened ids; ``targets`` are the ids that follow there.
        """
        x = self.hidden(ids).flatten(0, 1).index_select(0, places)
        logits = F.linear(x, self.embed_tokens.weight.to(x.dtype))
        return F.cross_entropy(logits.float(), targets, reduction="sum")
