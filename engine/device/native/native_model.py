# pyright: basic
"""The layout of a `Decoder` in the memory of the C code: structs that point to its tensors.

The structs mirror those of decoder.c and its headers field by field.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from ctypes import CDLL, POINTER, Structure, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.architectures.shapes import (
    AttentionShape,
    DecoderShape,
    GatedDeltaNetShape,
    LayerShape,
    MixtureShape,
    MlpShape,
    ShortConvolutionShape,
)
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.models.attention import SelfAttention
from continuo.engine.device.models.decoder import Decoder, DecoderLayer
from continuo.engine.device.models.gated_delta_net import GatedDeltaNet
from continuo.engine.device.models.layers import ACTIVATIONS, GELU_TANH, GatedMlp, Linear
from continuo.engine.device.models.mixture import Mixture
from continuo.engine.device.models.short_convolution import ShortConvolution
from continuo.engine.device.native.quantized_panels import PANEL_ROWS, format_number, pack

SIZE_MULTIPLE = 16
"""Sizes of matrices and heads must be multiples of this for the C code."""
HEAD_DIM_MAX = 256
"""Largest key_dim and value_dim of a delta net."""
ACT_NUMBERS = {F.silu: 0, GELU_TANH: 1}
"""Activation functions of the C code."""
ATTENTION, SHORT_CONVOLUTION, DELTA_NET = range(3)
"""Mixers of the C code."""


def define_struct(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": fields})


def fields_of_type(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


_Linear = define_struct(
    "Linear",
    *fields_of_type("weight bias", c_void_p),
    *fields_of_type("in out", c_int64),
    ("quantized", c_void_p),
)
_QuantizedPanel = define_struct(
    "QuantizedPanel", ("format", c_int64), *fields_of_type("values scales", c_void_p)
)
_LayerKV = define_struct(
    "LayerKV",
    *fields_of_type("keys values", c_void_p),
    *fields_of_type("kv_heads group window page_group", c_int64),
    *fields_of_type("scale softcap", c_float),
    ("sinks", c_void_p),
)
_Attention = define_struct(
    "Attention",
    *fields_of_type("qkv out", _Linear),
    *fields_of_type("qk_norm rope", c_void_p),
    *fields_of_type("rotated has_gate", c_int64),
    ("kv", _LayerKV),
)
_Convolution = define_struct(
    "Convolution",
    *fields_of_type("weight bias past", c_void_p),
    *fields_of_type("kernel channels", c_int64),
)
_ShortConvolution = define_struct(
    "ShortConvolution", *fields_of_type("inputs out", _Linear), ("convolution", _Convolution)
)
_DeltaNet = define_struct(
    "DeltaNet",
    *fields_of_type("inputs out", _Linear),
    ("convolution", _Convolution),
    *fields_of_type("decay_rate decay_bias norm state", c_void_p),
    *fields_of_type("key_heads value_heads key_dim value_dim", c_int64),
)
_Mlp = define_struct("Mlp", *fields_of_type("gate_up down", _Linear))
_Mixture = define_struct(
    "Mixture",
    ("router", _Linear),
    *fields_of_type("gate_up down", c_void_p),
    *fields_of_type("experts inner chosen normalizes", c_int64),
    *fields_of_type("gate_up_bias down_bias", c_void_p),
    *fields_of_type("alpha limit", c_float),
    ("has_shared", c_int64),
    ("shared", _Mlp),
    ("shared_gate", c_void_p),
)
_Layer = define_struct(
    "Layer",
    *fields_of_type("mixer has_mixture", c_int64),
    *fields_of_type("input_norm mlp_norm mixer_output_norm mlp_output_norm", c_void_p),
    ("attention", _Attention),
    ("convolution", _ShortConvolution),
    ("delta_net", _DeltaNet),
    ("mlp", _Mlp),
    ("mixture", _Mixture),
)
_PageGroup = define_struct("PageGroup", *fields_of_type("pages window", c_int64))


@functools.cache
def _model_struct(groups: int) -> Any:
    """Return the struct Model of the C code for a number of page groups."""
    return define_struct(
        "Model",
        *fields_of_type("layers hidden heads kv_heads act mixer_in mixer_out mlp_floats", c_int64),
        ("layer", POINTER(_Layer)),
        ("embedding", c_void_p),
        ("has_tied_head", c_int64),
        ("head", _Linear),
        ("norm", c_void_p),
        *fields_of_type("positions state_slots", c_int64),
        *fields_of_type("eps embedding_scale residual_scale logit_softcap", c_float),
        ("groups", _PageGroup * groups),
    )


class NativeModel:
    """A model as the C code sees it. Keeps alive all tensors that `struct` points to, which must
    not move in memory.

    The weights of all matrices are rearranged in place, and taken from the `Decoder`, which torch
    cannot run any more.
    """

    def __init__(self, model: Decoder, pool: KVPool, library: CDLL) -> None:
        """Raises MemoryError."""
        self._keepalive: list[Any] = [model, pool]
        self._pool, self._model = pool, model
        library.pack_panels.restype = c_int64
        self._pack_panels = library.pack_panels
        attention = find_attention(model.shape)
        self.heads, self.kv_heads = attention.heads, attention.kv_heads
        self.vocab_size, self.page_counts = model.shape.vocab_size, pool.page_counts
        self.positions = min(map(len, model.rope_tables.values()))
        self.state_slots = max((len(t) for layer in pool.states for t in layer), default=0)
        layers = (_Layer * len(model.layers))(*map(self._build_layer, model.layers))
        self._keepalive.append(layers)
        windows = [0, *(group.window for group in pool.windows)]
        groups = [_PageGroup(*each) for each in zip(pool.page_counts, windows, strict=True)]
        shape = model.shape
        sizes = [_count_floats(layer, shape.hidden) for layer in model.layers]
        mixer_in, mixer_out, mlp = (max(each) for each in zip(*sizes, strict=True))
        self.scratch_floats_per_token = 3 * shape.hidden + mixer_in + mixer_out + mlp
        experts = (x.mlp.experts for x in shape.layers if isinstance(x.mlp, MixtureShape))
        self.scratch_floats = max(experts, default=0) + 1
        """Floats that a step needs besides those for each token."""
        self.struct = _model_struct(len(groups))(
            len(model.layers),
            shape.hidden,
            self.heads,
            self.kv_heads,
            next(filter(None, (_act_number(layer.mlp) for layer in shape.layers)), 0),
            mixer_in,
            mixer_out,
            mlp,
            layers,
            *self._embedding_and_head(model),
            self._fp32_address(model.norm.weight.float() * shape.logit_scale),
            self.positions,
            self.state_slots,
            shape.eps,
            model.embedding_scale.item(),
            shape.residual_scale,
            shape.logit_softcap or 0.0,
            (_PageGroup * len(groups))(*groups),
        )

    def _embedding_and_head(self, model: Decoder) -> tuple[int, bool, Structure]:
        """Return the fields of the struct Model from `embedding` to `head`."""
        embedding = model.embedding
        self._keepalive.append(embedding)
        is_packed = model.head.is_tied and not model.head.quantized
        head = self._build_linear(model.head)
        model.embedding = embedding.new_empty(0)
        return embedding.data_ptr(), is_packed, head

    def _pack(self, weight: Tensor) -> int:
        """Rearrange a weight [..., out, in] into the panels of matmul.h. Returns its address."""
        self._keepalive.append(weight)
        size_in = weight.shape[-1]
        if not self._pack_panels(
            c_void_p(weight.data_ptr()), c_int64(weight.numel() // size_in), c_int64(size_in)
        ):
            raise MemoryError("no memory to rearrange a weight")
        return weight.data_ptr()

    def _build_layer(self, layer: DecoderLayer) -> Structure:
        norms = (
            layer.input_norm,
            layer.mlp_norm,
            layer.mixer_output_norm,
            layer.mlp_output_norm,
        )
        struct = _Layer(0, 0, *(self._fp32_address(x.weight if x else None) for x in norms))
        match layer.mixer:
            case SelfAttention():
                struct.mixer, struct.attention = ATTENTION, self._build_attention(layer.mixer)
            case ShortConvolution():
                mixer = layer.mixer
                struct.mixer = SHORT_CONVOLUTION
                struct.convolution = _ShortConvolution(
                    *map(self._build_linear, (mixer.inputs, mixer.out)),
                    self._build_convolution(mixer.layer, mixer.weight, mixer.bias),
                )
            case GatedDeltaNet():
                struct.mixer, struct.delta_net = DELTA_NET, self._build_delta_net(layer.mixer)
        if isinstance(layer.mlp, Mixture):
            struct.has_mixture, struct.mixture = 1, self._build_mixture(layer.mlp)
        else:
            struct.mlp = self._build_mlp(layer.mlp)
        return struct

    def _build_attention(self, attention: SelfAttention) -> Structure:
        shape, params, layer = attention.shape, attention.params, attention.kv_layer
        table = None if shape.rope is None else self._model.rope_tables[shape.rope]
        norm = attention.qk_norm
        return _Attention(
            *map(self._build_linear, (attention.qkv, attention.out)),
            self._fp32_address(norm.weight if norm else None),
            None if table is None else table.data_ptr(),
            0 if table is None else table.shape[-1],
            shape.has_gate,
            _LayerKV(
                self._pool.keys[layer].data_ptr(),
                self._pool.values[layer].data_ptr(),
                shape.kv_heads,
                shape.heads // shape.kv_heads,
                params.window or 0,
                self._pool.groups[layer],
                params.scale,
                params.softcap or 0.0,
                self._fp32_address(params.sinks),
            ),
        )

    def _build_convolution(self, layer: int, weight: Tensor, bias: Tensor | None) -> Structure:
        return _Convolution(
            self._fp32_address(weight),
            self._fp32_address(bias),
            self._pool.states[layer][0].data_ptr(),
            *weight.shape,
        )

    def _build_delta_net(self, net: GatedDeltaNet) -> Structure:
        vectors = (net.decay_rate, net.decay_bias, net.norm_weight)
        shape = net.shape
        return _DeltaNet(
            *map(self._build_linear, (net.inputs, net.out)),
            self._build_convolution(net.layer, net.weight, None),
            *map(self._fp32_address, vectors),
            self._pool.states[net.layer][1].data_ptr(),
            *(shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim),
        )

    def _build_mixture(self, mixture: Mixture) -> Structure:
        weight, shape = mixture.router.weight, mixture.shape
        padded = weight.new_zeros(_round_up(shape.experts), weight.shape[1])
        padded[: shape.experts] = weight
        bias = mixture.router.bias
        if bias is not None:
            bias = F.pad(bias, (0, len(padded) - shape.experts))
        no_linear = _Linear()
        shared, gate = mixture.shared, mixture.shared_gate
        return _Mixture(
            _Linear(self._pack(padded), self._fp32_address(bias), *padded.shape[::-1], None),
            self._pack(mixture.gate_up),
            self._pack(mixture.down),
            shape.experts,
            shape.intermediate,
            shape.chosen,
            shape.normalizes or shape.router == "softmax of chosen",
            self._fp32_address(mixture.gate_up_bias),
            self._fp32_address(mixture.down_bias),
            *(shape.clamp or (0.0, 0.0)),
            shared is not None,
            self._build_mlp(shared) if shared else _Mlp(no_linear, no_linear),
            self._fp32_address(gate.weight[0] if gate else None),
        )

    def _build_mlp(self, mlp: object) -> Structure:
        assert isinstance(mlp, GatedMlp), "the C code lacks this MLP"
        return _Mlp(*map(self._build_linear, (mlp.gate_up, mlp.down)))

    def _build_linear(self, linear: Linear) -> Structure:
        if any(len(matrix.data) % PANEL_ROWS for matrix in linear.quantized.values()):
            linear.dequantize()
        if linear.quantized:
            return build_quantized(linear, self._keepalive)
        address = self._pack(linear.weight)
        linear.weight = linear.weight.to("meta")
        bias = self._fp32_address(linear.bias)
        return _Linear(address, bias, linear.size_in, linear.size_out, None)

    def _fp32_address(self, weight: Tensor | None) -> int | None:
        """Copy a weight to fp32 and return the address of the copy; None if there is no weight."""
        return None if weight is None else fp32_address(weight, self._keepalive)


def build_quantized(linear: Linear, keepalive: list[Any]) -> Structure:
    """Return a quantized layer as the C code sees it, and take its rows from it. What the struct
    points to is added to `keepalive`."""
    panels = (_QuantizedPanel * (linear.size_out // PANEL_ROWS))()
    for top, matrix in linear.take_quantized():
        values, scales = pack(matrix)
        keepalive += (values, scales)
        addresses = zip(_row_addresses(values), _row_addresses(scales), strict=True)
        for number, (value, scale) in enumerate(addresses, top // PANEL_ROWS):
            panels[number] = _QuantizedPanel(format_number(matrix), value, scale)
    keepalive.append(panels)
    bias = None if linear.bias is None else fp32_address(linear.bias, keepalive)
    return _Linear(None, bias, linear.size_in, linear.size_out, ctypes.addressof(panels))


def fp32_address(weight: Tensor, keepalive: list[Any]) -> int:
    """Copy a weight to fp32 and return the address of the copy, which is added to `keepalive`."""
    keepalive.append(weight.float().contiguous())
    return keepalive[-1].data_ptr()


def find_attention(shape: DecoderShape) -> AttentionShape:
    """Return the shape of a layer with attention."""
    return next(x.mixer for x in shape.layers if isinstance(x.mixer, AttentionShape))


def is_supported(model: object, pool: KVPool) -> bool:
    """Return whether the C code runs the model."""
    if not isinstance(model, Decoder) or pool.keys[0].device.type != "cpu":
        return False
    shape = model.shape
    attentions = [x.mixer for x in shape.layers if isinstance(x.mixer, AttentionShape)]
    heads = {(x.heads, x.kv_heads, x.head_dim) for x in attentions}
    acts = {_act_number(layer.mlp) for layer in shape.layers}
    rotated = [table.shape[-1] for table in model.rope_tables.values()]
    return (
        pool.keys[0].dtype in (torch.float32, torch.bfloat16)
        and len(heads) == 1
        and len(rotated) > 0
        and len(acts) == 1
        and None not in acts
        and shape.layer_inputs is None
        and not shape.has_layer_scalars
        and all(size % SIZE_MULTIPLE == 0 for size in (shape.hidden, shape.vocab_size, *rotated))
        and all(
            size is not None and size % SIZE_MULTIPLE == 0
            for layer in shape.layers
            for size in _iter_sizes(layer)
        )
    )


def _iter_sizes(layer: LayerShape) -> Iterator[int | None]:
    """Yield the sizes that must be multiples of SIZE_MULTIPLE, and None for each feature that the C
    code lacks."""
    match layer.mixer:
        case AttentionShape() as attention:
            yield attention.head_dim
            lacks = attention.v_norm or attention.key_is_value or attention.kv_layer is not None
            yield None if lacks or attention.norms_all_heads else 0
        case ShortConvolutionShape():
            pass
        case GatedDeltaNetShape() as net:
            yield from (net.key_dim, net.value_dim, 2 * net.value_heads)
            is_small = max(net.key_dim, net.value_dim) <= HEAD_DIM_MAX
            yield 0 if is_small and ACTIVATIONS.get(net.act) is F.silu else None
            yield 0 if (net.rate_scale, net.norm_eps) == (1.0, None) else None
        case _:
            yield None
    if isinstance(layer.mlp, MixtureShape):
        mixture = layer.mlp
        yield mixture.intermediate
        yield None if mixture.router == "sigmoid" or mixture.has_choice_bias else 0
        yield None if mixture.has_fp32_router or not mixture.is_gated else 0
        yield 0 if mixture.weight_scale == 1.0 else None
        if mixture.shared is not None:
            yield mixture.shared.intermediate
            yield 0 if mixture.shared.is_gated and mixture.shared.act == mixture.act else None
    elif layer.mlp is not None:
        mlp = layer.mlp
        yield mlp.intermediate
        yield 0 if mlp.is_gated and (mlp.gate_scale, mlp.output_scale) == (1.0, 1.0) else None
    yield None if layer.mixture_beside or not layer.has_input_norms else 0


def _act_number(mlp: MlpShape | MixtureShape | None) -> int | None:
    act = None if mlp is None else ACTIVATIONS.get(mlp.act)
    return None if act is None else ACT_NUMBERS.get(act)


def _count_floats(layer: DecoderLayer, hidden: int) -> tuple[int, int, int]:
    """Count the floats of scratch memory for each token: those that the mixer takes and yields, and
    those that the MLP needs."""
    match layer.mixer:
        case SelfAttention() as mixer:
            mixer_sizes = mixer.qkv.size_out, mixer.out.size_in
        case ShortConvolution() | GatedDeltaNet() as mixer:
            mixer_sizes = mixer.inputs.size_out, mixer.out.size_in
        case _:
            raise AssertionError("the C code lacks this mixer")
    if isinstance(layer.mlp, GatedMlp):
        return *mixer_sizes, 3 * layer.mlp.intermediate
    assert isinstance(layer.mlp, Mixture), "the C code lacks this MLP"
    shape = layer.mlp.shape
    pair = 2 * hidden + 3 * shape.intermediate + 4
    shared = 0 if shape.shared is None else 3 * shape.shared.intermediate + hidden
    return *mixer_sizes, _round_up(shape.experts) + shape.chosen * pair + shared


def _row_addresses(matrix: Tensor) -> range:
    """Return the addresses of the rows of a uint8 matrix."""
    start, size = matrix.data_ptr(), matrix.shape[1]
    return range(start, start + len(matrix) * size, size)


def _round_up(size: int) -> int:
    return -(-size // SIZE_MULTIPLE) * SIZE_MULTIPLE
