"""Find out how a chat template switches reasoning, and how it takes the reasoning of earlier
messages, by rendering test conversations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from continuo.engine.text.output_channels import ReasoningFormat

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons, as in OpenAI's API. `none`: not at all."""
EffortSetting = Effort | Literal["default", "off"]
"""An effort; or `default`: whatever the template does by itself; `off`: `none` where the template
can switch reasoning off, else `default`."""
RenderPrompt = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], str | None]
"""Renders a prompt from messages and options of the template. Returns None if it is refused."""
SplitTokens = Callable[[str], Sequence[tuple[str, int | None]]]
"""Splits a text at the added tokens that it spells: `Tokenizer.split_added_tokens`."""
Options = dict[str, Any]

_FLAGS = ("enable_thinking", "thinking")
_BUDGET = "thinking_budget"
_EFFORT = "reasoning_effort"
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_USER = {"role": "user", "content": "zq9user9qz"}
_ANSWER = {"role": "assistant", "content": "zq9answer9qz"}
_REASONING = "zq9reasoning9qz"


class ReasoningSwitch(msgspec.Struct, frozen=True):
    """The options by which one template switches reasoning."""

    on: Options
    """Options that switch reasoning on; empty if the template has no switch."""
    off: Options | None
    """Options that switch reasoning off; None if the template cannot."""
    takes_effort: bool
    """Whether the template has the option `reasoning_effort`."""

    def options_for(self, effort: EffortSetting) -> Options | None:
        """Return the options that set an effort, or None if the template cannot."""
        match effort:
            case "default":
                return {}
            case "off":
                return self.off or {}
            case "none":
                return self.off
            case _:
                return {**self.on, **({_EFFORT: effort} if self.takes_effort else {})}


def probe_switch(render: RenderPrompt) -> ReasoningSwitch:
    """Find the options by which a template switches reasoning."""

    def prompt(options: Options) -> str | None:
        return render([_USER], options)

    low, high = prompt({_EFFORT: "low"}), prompt({_EFFORT: "high"})
    takes_effort = low is not None and low != high
    for flag in _FLAGS:
        on, off = prompt({flag: True}), prompt({flag: False})
        if on is not None and off is not None and on != off:
            return ReasoningSwitch({flag: True}, {flag: False}, takes_effort)
    free, none = prompt({}), prompt({_BUDGET: 0})
    if none is not None and none != free and prompt({_BUDGET: 64}) not in (None, none):
        return ReasoningSwitch({}, {_BUDGET: 0}, takes_effort)
    return ReasoningSwitch({}, None, takes_effort)


def probe_reasoning_key(render: RenderPrompt, call: Mapping[str, Any]) -> str | None:
    """Find the key under which a template takes the reasoning of a message. `call`: a tool call.
    Returns None if it takes none."""
    for key in REASONING_KEYS:
        for message in (
            {**_ANSWER, key: _REASONING},
            {"role": "assistant", "content": "", "tool_calls": [call], key: _REASONING},
        ):
            if _REASONING in (render([_USER, message], {}) or ""):
                return key
    return None


def probe_reasoning_format(
    render: RenderPrompt, key: str, split: SplitTokens
) -> ReasoningFormat | None:
    """Find the tokens that a template writes around the reasoning of a message, which it takes
    under `key`. Returns None if there is not one token on either side that nothing else has."""
    before, _, after = (render([_USER, {**_ANSWER, key: _REASONING}], {}) or "").partition(
        _REASONING
    )
    opening = split(before.partition(_USER["content"])[2])
    closing = split(after.partition(_ANSWER["content"])[0])
    begins = [at for at, (_, id) in enumerate(opening) if id is not None]
    ends = [at for at, (text, id) in enumerate(closing) if id is not None or text.strip()]
    if not begins or not ends or closing[ends[0]][1] is None:
        return None
    begin, end = opening[begins[-1]][0], closing[ends[0]][0]
    label = "".join(text for text, _ in opening[begins[-1] + 1 :]).lstrip()
    plain = split(render([_USER, _ANSWER, _USER], {}) or "")
    if begin == end or any(text in (begin, end) for text, _ in plain):
        return None
    return ReasoningFormat(begin, end, label)
