"""Generation settings of sessions and responses: instructions, tools, sampling, truncation."""

from typing import Literal

import msgspec

from continuo.engine import EffortSetting, Sampling


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: str = "{}"
    """JSON schema of the arguments, as text."""
    strict: bool = False
    """Whether calls must follow the schema; a schema that cannot be enforced is refused."""


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None


class Truncation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rule by which the oldest items are removed from a conversation that outgrows the context."""

    mode: Literal["auto", "disabled", "retention_ratio"] = "auto"
    ratio: float = 0.8
    """Target length when items are removed: a share of the context (`auto`), or of the tokens
    allowed after the instructions (`retention_ratio`)."""
    after_instructions: int | None = None
    """Maximum number of tokens after instructions and tools; None means up to the context."""


class ReasoningSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    effort: EffortSetting = "default"
    tokens_max: int | None = None
    """Maximum number of tokens of the reasoning; then its end is forced. None: no bound."""


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a session or response. `extras` is JSON that only its wire protocol reads."""

    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    """Whether a response may make more than one tool call."""
    max_output_tokens: int | None = None
    """Maximum number of output tokens of a response; None means up to the context."""
    sampling: Sampling = Sampling()
    """`max_tokens` and `stop_ids` are not set here, but when a turn starts. `grammar` constrains
    the text of a response; when a turn starts, the rules for tool calls are added to it."""
    truncation: Truncation = Truncation()
    reasoning: ReasoningSettings = ReasoningSettings()
    extras: str = "{}"
