"""Decoding of the settings of reasoning, shared by the wire protocols. Pure.

An absent field (UNSET) keeps its current value; null resets it to the default.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from continuo.engine import Effort, EffortSetting
from continuo.realtime import limits
from continuo.realtime.protocol.commands import FieldNames
from continuo.realtime.protocol.sampling import resolve_field
from continuo.realtime.protocol.settings import ReasoningSettings
from continuo.realtime.protocol.validation import invalid_parameter

ReasoningTokens = Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)]
ThinkingBudget = Annotated[int, Meta(ge=-1, le=limits.OUTPUT_TOKENS_MAX)]
"""Maximum number of tokens of the reasoning. 0: the model does not reason; -1: no maximum."""
T = TypeVar("T")


class ReasoningIn(msgspec.Struct, frozen=True, kw_only=True):
    """The object `reasoning` of a request. Its other keys are accepted and ignored."""

    effort: Effort | UnsetType | None = UNSET
    max_tokens: ReasoningTokens | UnsetType | None = UNSET
    """Extension: maximum number of tokens of the reasoning."""


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The object `chat_template_kwargs` of a request, as in vLLM. Its other keys are accepted and
    ignored."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    """Another name of `enable_thinking`."""
    reasoning_effort: Effort | None = None
    thinking_budget: ThinkingBudget | None = None


class ReasoningOut(msgspec.Struct, frozen=True, kw_only=True):
    effort: Effort | None = None
    max_tokens: int | UnsetType = UNSET


def merge_reasoning(
    requested: ReasoningIn | UnsetType | None,
    enable_thinking: bool | UnsetType | None,  # noqa: FBT001 - a field of the request
    options: TemplateOptions | UnsetType | None,
    current: ReasoningSettings,
    default: ReasoningSettings,
    names: FieldNames,
) -> ReasoningSettings:
    """Apply the fields `reasoning`, `enable_thinking` and `chat_template_kwargs` to the current
    settings. `names`: their paths, for errors. Raises Refusal if they contradict each other."""
    if requested is None:
        requested = ReasoningIn(effort=None, max_tokens=None)
    elif isinstance(requested, UnsetType):
        requested = ReasoningIn()
    if not isinstance(options, TemplateOptions):
        options = TemplateOptions()
    where, budget = names.template_options, options.thinking_budget
    asked: tuple[str, Effort] | None = _agree(
        (names.reasoning_effort, requested.effort),
        (f"{where}.reasoning_effort", options.reasoning_effort),
    )
    switch = _agree(
        (names.enable_thinking, enable_thinking),
        (f"{where}.enable_thinking", options.enable_thinking),
        (f"{where}.thinking", options.thinking),
        (f"{where}.thinking_budget", False if budget == 0 else None),
    )
    bound = _agree(
        (names.reasoning_tokens, requested.max_tokens),
        (f"{where}.thinking_budget", budget if budget and budget > 0 else None),
    )
    effort: EffortSetting = resolve_field(requested.effort, current.effort, default.effort)
    if asked is not None:
        effort = asked[1]
    if switch is not None:
        if asked is not None and switch[1] == (asked[1] == "none"):
            raise invalid_parameter(
                switch[0], f"it contradicts the reasoning effort {asked[1]!r} of '{asked[0]}'."
            )
        if not switch[1]:
            effort = "none"
        elif asked is None:
            is_on = current.effort not in ("default", "off", "none")
            effort = current.effort if is_on else "medium"  # it says only that the model reasons
    tokens_max = resolve_field(requested.max_tokens, current.tokens_max, default.tokens_max)
    return ReasoningSettings(effort=effort, tokens_max=tokens_max if bound is None else bound[1])


def _agree(*fields: tuple[str, T | UnsetType | None]) -> tuple[str, T] | None:
    """Return the path and the value of the first of several fields of one meaning that is present.
    Raises Refusal if another has a different value."""
    found: tuple[str, T] | None = None
    for path, value in fields:
        if value is None or isinstance(value, UnsetType):
            continue
        if found is not None and found[1] != value:
            raise invalid_parameter(path, f"it contradicts '{found[0]}'.")
        found = found or (path, value)
    return found


def encode_reasoning(settings: ReasoningSettings) -> ReasoningOut | None:
    """Encode the settings of reasoning. Returns None if none was asked for."""
    if settings in (ReasoningSettings(), ReasoningSettings(effort="off")):
        return None
    effort = settings.effort
    return ReasoningOut(
        effort=None if effort in ("default", "off") else effort,
        max_tokens=UNSET if settings.tokens_max is None else settings.tokens_max,
    )
