"""How responses are generated: instructions, tools, sampling, truncation."""

from typing import Literal

import msgspec

from continuo.engine import Sampling


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    parameters: str = "{}"
    """JSON schema, as text."""
    strict: bool = False
    """Whether calls must follow the schema; a schema that cannot be enforced is refused."""


class ToolChoice(msgspec.Struct, frozen=True):
    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation that outgrows the context is shortened."""

    mode: Literal["auto", "disabled", "retention_ratio"] = "auto"
    ratio: float = 0.8
    """Share that stays when the oldest items are removed: of the context, or with `retention_ratio`
    of the tokens that may follow the instructions."""
    after_instructions: int | None = None
    """Tokens that may follow the instructions; None means up to the context."""


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a session or response. `extras` is JSON that only its wire protocol reads."""

    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    """Whether a response may make more than one call."""
    max_output_tokens: int | None = None
    """Limit of one response; None means up to the context."""
    sampling: Sampling = Sampling()
    """`max_tokens` and `stop_ids` are set when a turn starts. `grammar` constrains the text of a
    response; the rules for tool calls are added to it."""
    truncation: Truncation = Truncation()
    extras: str = "{}"
