"""Decoding of the settings of reasoning, shared by the wire protocols. Pure.

An absent field (UNSET) keeps its current value; null resets it to the default.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from continuo.engine import Effort, EffortSetting
from continuo.realtime import limits
from continuo.realtime.protocol.sampling import resolve_field
from continuo.realtime.protocol.settings import ReasoningSettings
from continuo.realtime.protocol.validation import invalid_parameter

ReasoningTokens = Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)]


class ReasoningIn(msgspec.Struct, frozen=True, kw_only=True):
    """The object `reasoning` of a request. Its other keys are accepted and ignored."""

    effort: Effort | UnsetType | None = UNSET
    max_tokens: ReasoningTokens | UnsetType | None = UNSET
    """Extension: maximum number of tokens of the reasoning."""


class ReasoningOut(msgspec.Struct, frozen=True, kw_only=True):
    effort: Effort | None = None
    max_tokens: int | UnsetType = UNSET


def merge_reasoning(
    requested: ReasoningIn | UnsetType | None,
    enable_thinking: bool | UnsetType | None,  # noqa: FBT001 - a field of the request
    current: ReasoningSettings,
    default: ReasoningSettings,
    param: str,
) -> ReasoningSettings:
    """Apply the fields `reasoning` and `enable_thinking` to the current settings. `param`: path of
    `enable_thinking`, for errors. Raises Refusal if they contradict each other."""
    if requested is None:
        requested = ReasoningIn(effort=None, max_tokens=None)
    elif isinstance(requested, UnsetType):
        requested = ReasoningIn()
    effort: EffortSetting = resolve_field(requested.effort, current.effort, default.effort)
    if isinstance(enable_thinking, bool):
        if isinstance(requested.effort, str) and enable_thinking == (requested.effort == "none"):
            raise invalid_parameter(
                param, f"it contradicts the reasoning effort {requested.effort!r}."
            )
        if not enable_thinking:
            effort = "none"
        elif not isinstance(requested.effort, str):
            is_on = current.effort not in ("default", "off", "none")
            effort = current.effort if is_on else "medium"  # it says only that the model reasons
    return ReasoningSettings(
        effort=effort,
        tokens_max=resolve_field(requested.max_tokens, current.tokens_max, default.tokens_max),
    )


def encode_reasoning(settings: ReasoningSettings) -> ReasoningOut | None:
    """Encode the settings of reasoning. Returns None if none was asked for."""
    if settings in (ReasoningSettings(), ReasoningSettings(effort="off")):
        return None
    effort = settings.effort
    return ReasoningOut(
        effort=None if effort in ("default", "off") else effort,
        max_tokens=UNSET if settings.tokens_max is None else settings.tokens_max,
    )
