"""The metadata keys of a GGUF file in our engine: each is applied, has no effect, or is refused.

llama.cpp is the reference. A key of the architecture that is in no table here is named in a
warning: llama.cpp ignores it in these architectures, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from continuo.engine.errors import ModelError

log = logging.getLogger(__name__)


def _names(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


APPLIED = _names(
    """attention.head_count attention.head_count_kv attention.key_length
    attention.layer_norm_rms_epsilon attention.value_length block_count context_length
    embedding_length feed_forward_length rope.dimension_count rope.freq_base rope.scale_linear
    rope.scaling.factor rope.scaling.original_context_length rope.scaling.type"""
)
"""Keys of every architecture that decide the output, without its name."""
APPLIED_BY_ARCHITECTURE = {
    "gemma3": """attention.sliding_window attention.sliding_window_pattern final_logit_softcapping
        rope.freq_base_swa"""
}
"""Further keys that decide the output, in one string."""
WITHOUT_EFFECT = _names(
    """attention.scale attention.sliding_window attention.sliding_window_pattern
    expert_used_count final_logit_softcapping pooling_type rope.freq_base_swa rope.scaling.alpha
    rope.scaling.finetuned rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast
    rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor rope.scaling.yarn_log_multiplier
    tensor_data_layout vocab_size"""
)
"""Keys that converters write, and that have no effect where they are not applied."""
REFUSED: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "nextn_predict_layers": (0,),
    "rope.scaling.attn_factor": (1.0,),
}
"""Keys that llama.cpp applies and our engine does not, and the values that change nothing."""
REFUSED_SIZES = (
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count_swa",
)
"""Keys that are refused unless they are the length of a head."""
NAMED_MAX = 8
"""How many unknown keys a warning names."""


def known_keys(architecture: str) -> frozenset[str]:
    """Return the keys that a file of this architecture may have, without its name."""
    more = _names(APPLIED_BY_ARCHITECTURE.get(architecture, ""))
    return APPLIED | WITHOUT_EFFECT | more | REFUSED.keys() | set(REFUSED_SIZES)


def check_keys(path: Path, architecture: str, metadata: Mapping[str, object]) -> None:
    """Warn of the keys of an architecture that are unknown. Raises ModelError for a key that would
    have to be applied and is not."""
    prefix = f"{architecture}."
    for key, accepted in REFUSED.items():
        if (value := metadata.get(prefix + key, accepted[0])) not in accepted:
            raise ModelError(
                f"{path}: metadata {prefix}{key} is {value!r}, which is not supported; a GGUF file "
                f"runs here with {accepted[0]!r}"
            )
    known = known_keys(architecture)
    names = (key.removeprefix(prefix) for key in metadata if key.startswith(prefix))
    if unknown := sorted(name for name in names if name not in known):
        more = len(unknown) - NAMED_MAX
        log.warning(
            "%s: no %s in GGUF has the metadata %s%s; they have no effect",
            path,
            architecture,
            ", ".join(unknown[:NAMED_MAX]),
            f" and {more} more" if more > 0 else "",
        )
