# pyright: basic
"""Causal LMs that `Decoder` does not run: transformers' own module with our paged
attention.

transformers looks up the attention function by name and passes it only a module and its queries,
keys and values; a context variable passes the current step to our function. At load, a probe run
records the KV shape and window of each layer. Then a self-check runs two rows packed in one batch,
one of them prefilled in two chunks, and compares their logits with those of transformers' own
attention.
"""

from __future__ import annotations

import inspect
from array import array
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from continuo.engine.architectures.refusals import quantized_checkpoint, unsupported_architecture
from continuo.engine.batch import Batch, BatchRow, SampleParams
from continuo.engine.device import step_inputs
from continuo.engine.device.attention.sdpa_backend import ReferenceBackend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import (
    AttentionFn,
    AttentionParams,
    KVShape,
    LayerMemory,
    StepStates,
)
from continuo.engine.device.models import rope
from continuo.engine.errors import ModelError, first_line

ATTENTION_NAME = "continuo_paged"
UNSUPPORTED_ARGUMENTS = {
    "position_bias": "a position bias inside attention",
    "alibi": "a position bias inside attention",
    "indices": "sparse attention",
}
"""Arguments of transformers' attention functions that our attention does not support, and the
feature that each stands for."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Largest relative difference (in the 2-norm of the logits) that the self-check accepts as noise;
wrong attention differs by tens of percent."""


class AttentionProbe:
    """An `AttentionFn` that returns zeros and records the KV shape and window of each layer."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[KVShape, int | None]] = {}

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        params: AttentionParams,
    ) -> Tensor:
        assert key is not None
        assert value is not None
        shape = KVShape(key.shape[1], key.shape[2], value.shape[2])
        self.layers[layer] = (shape, params.window)
        return value.new_zeros(*query.shape[:2], value.shape[2])


@dataclass
class ForwardPass:
    """A forward pass in progress: the attention function of its step, and the layers run so far."""

    attend: AttentionFn
    layer_of_module: dict[int, int]
    """Layer in the KV pool of each attention module, by the module's `id()`; set by the probe."""
    visited_layers: list[int]


_FORWARD_PASS: ContextVar[ForwardPass] = ContextVar("continuo_attention_call")


def _paged_attention(  # noqa: PLR0913 - the arguments of transformers' attention functions
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - as in all attention functions
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers to call: query [1, heads, T, dim] -> [1, T, heads,
    dim]."""
    call = _FORWARD_PASS.get()
    if isinstance(call.attend, AttentionProbe):
        _check_supported(query, key, attention_mask, others)
        call.layer_of_module.setdefault(id(module), len(call.layer_of_module))
    layer = call.layer_of_module[id(module)]
    call.visited_layers.append(layer)
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    params = AttentionParams(scale, sliding_window, softcap, s_aux)
    return call.attend(layer, query, key, value, params).contiguous()[None], None


def _check_supported(
    query: Tensor, key: Tensor, mask: Tensor | None, others: dict[str, Any]
) -> None:
    for name, meaning in UNSUPPORTED_ARGUMENTS.items():
        if others.get(name) is not None:
            raise ModelError(meaning)
    if others.get("is_causal") is False:
        raise ModelError("attention that is not causal")
    if mask is not None:
        raise ModelError("an attention mask of its own")
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise ModelError("attention to something other than its own tokens")


class TransformersModel:
    """A transformers model as a `CausalLM`."""

    def __init__(self, module: Any, folder: Path, architecture: str) -> None:
        """Probe the model. Raises ModelError if paged attention does not support it."""
        self.module, self.config = module, module.config.get_text_config()
        self.architecture = architecture
        self.folder = folder
        self.has_logits_to_keep = "logits_to_keep" in inspect.signature(module.forward).parameters
        self.layer_of_module: dict[int, int] = {}
        self.memory, self.vocab_size = self._probe()

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: AttentionFn,
        logit_indices: Tensor | None,
        states: StepStates | None = None,  # noqa: ARG002 - there are no recurrent layers
    ) -> Tensor:
        """Run a forward pass: tokens, positions [T] -> logits [S, vocab].

        `logit_indices` [S]: indices of the tokens whose logits are returned; None: all T, in order.
        """
        call = ForwardPass(attend, self.layer_of_module, [])
        token = _FORWARD_PASS.set(call)
        try:
            keep = (
                {}
                if logit_indices is None or not self.has_logits_to_keep
                else {"logits_to_keep": logit_indices}
            )
            logits = self.module(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, **keep
            ).logits[0]
        finally:
            _FORWARD_PASS.reset(token)
        if sorted(call.visited_layers) != list(range(len(self.layer_of_module))):
            raise ModelError("an attention layer does not run exactly once per step")
        return logits if logit_indices is None or keep else logits[logit_indices]

    def context_limit(self) -> int | None:
        """Return the longest context in tokens, or None if the config does not state it.

        Rotary scalings whose frequencies depend on the longest row of a step are supported only up
        to the length from which the frequencies change.
        """
        positions: int | None = getattr(self.config, "max_position_embeddings", None)
        for parameters in rope.read_all_parameters(self.config):
            if parameters.get("rope_type") in ("dynamic", "longrope"):
                original: int | None = parameters.get("original_max_position_embeddings")
                if original is not None:
                    positions = min(positions or original, original)
        return positions

    def _probe(self) -> tuple[list[LayerMemory], int]:
        """Run the model on three tokens. Returns the memory of each layer, and the vocabulary
        size."""
        probe = AttentionProbe()
        device = self.module.device
        tokens = torch.arange(3, device=device)
        try:
            logits = self(tokens, tokens, probe, None)
        except ModelError as error:
            raise self._unsupported(error.message) from error
        except Exception as error:
            raise self._unsupported(f"{type(error).__name__}: {error}") from error
        layers = [probe.layers[layer] for layer in range(len(probe.layers))]
        expected = self.config.num_hidden_layers
        if len(layers) != expected:
            raise self._unsupported(f"{len(layers)} of {expected} layers use softmax attention")
        windows = [window for _, window in layers]
        self._check_windows(windows)
        return [LayerMemory(shape, window) for shape, window in layers], logits.shape[-1]

    def _check_windows(self, windows: list[int | None]) -> None:
        """Raise ModelError if the config states an unknown layer type, or a sliding window that the
        model does not pass to our attention function.

        `windows`: window by layer, as recorded by the probe.
        """
        config = self.config
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(windows)
        for kind, window in zip(kinds, windows, strict=False):
            if kind not in ("full_attention", "sliding_attention"):
                raise self._unsupported(f"layers of type {kind}")
            if kind == "sliding_attention" and window is None:
                raise self._unsupported("a sliding window that its code applies by a mask")
        if getattr(config, "layer_types", None):
            return
        expected = getattr(config, "sliding_window", None)
        if expected and getattr(config, "use_sliding_window", True) and not any(windows):
            raise self._unsupported("a sliding window that its code applies by a mask")

    def self_check(self) -> None:
        """Compare logits with those of transformers' own attention, for rows of 7 and 5 tokens: the
        second row and the last chunk of the first are packed in one batch.

        Raises ModelError if the logits differ by more than noise.
        """
        tokens = [[(7 * n + 3) % self.vocab_size for n in range(count)] for count in (7, 5)]
        first, second = (array("i", ids) for ids in tokens)
        pages, other = array("i", [3, 1]), array("i", [0, 2])
        sample = SampleParams()
        pool = KVPool(self.memory, 4, 4, self.module.get_input_embeddings().weight[:0])
        self._paged_logits(pool, BatchRow(first[:4], -1, 0, pages[:1], sample))
        paged = self._paged_logits(
            pool, BatchRow(second, -1, 0, other, sample), BatchRow(first[4:], -1, 4, pages, sample)
        )
        self.module.set_attn_implementation("eager")
        expected = torch.stack([self._eager_logits(ids) for ids in (tokens[1], tokens[0])]).float()
        self.module.set_attn_implementation(ATTENTION_NAME)
        error = ((paged.float() - expected).norm() / expected.norm()).item()
        if not error <= TOLERANCE.get(self.module.dtype, 1e-3):
            raise self._unsupported(
                f"with paged attention its logits differ by {error:.1%} from transformers' own"
            )

    def _paged_logits(self, pool: KVPool, *rows: BatchRow) -> Tensor:
        step = step_inputs.build_inputs(Batch(0, list(rows)), pool.page_size, self.module.device)
        attend = ReferenceBackend().bind(step, pool)
        return self(step.tokens, step.positions, attend, step.logit_indices)

    def _eager_logits(self, ids: list[int]) -> Tensor:
        tokens = torch.tensor([ids], device=self.module.device)
        return self.module(input_ids=tokens, use_cache=False).logits[0, -1]

    def _unsupported(self, reason: str) -> ModelError:
        return unsupported_architecture(self.folder, self.architecture, reason)


def load(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> TransformersModel:
    """Load a checkpoint with transformers.

    Raises ModelError, naming the architecture, if paged attention does not support it.
    """
    architecture = (config.architectures or [config.model_type])[0]
    refuse = partial(unsupported_architecture, folder, architecture)
    if quantization := getattr(config, "quantization_config", None):
        raise quantized_checkpoint(folder, quantization.get("quant_method"))
    if config.is_encoder_decoder:
        raise refuse("it has an encoder")
    AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    try:
        loaded: Any = _auto_class(config).from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise refuse(first_line(error)) from error
    module, report = loaded
    if report["missing_keys"]:
        raise ModelError(f"{folder}: tensor {min(report['missing_keys'])} is missing")
    module.to(device).eval().requires_grad_(False)
    module.set_attn_implementation(ATTENTION_NAME)
    # transformers has a public setter of the attention, but no getter.
    if module.config.get_text_config()._attn_implementation != ATTENTION_NAME:  # noqa: SLF001
        raise refuse("its attention cannot be replaced")
    model = TransformersModel(module, folder, architecture)
    try:
        model.self_check()
    except ModelError:
        raise
    except Exception as error:
        raise refuse(first_line(error)) from error
    return model


def _auto_class(config: Any) -> Any:
    """Return the class that loads the model: that of causal LMs, or that of models of images and
    text, of which only the text part runs."""
    is_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if is_causal else AutoModelForImageTextToText
