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
    """Calls must follow the schema; one that cannot be enforced is refused."""


class ToolChoice(msgspec.Struct, frozen=True):
    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a conversation that outgrows the context."""

    mode: Literal["auto", "disabled", "retention_ratio"] = "auto"
    ratio: float = 0.8
    """How much stays when the oldest items are dropped: of the context, or with `retention_ratio`
    of what may follow the instructions."""
    after_instructions: int | None = None
    """Tokens that may follow the instructions; None: up to the context."""


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are made. `extras` is what only the wire vocabulary understands, as JSON."""

    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    """Whether an answer may make more than one call."""
    max_output_tokens: int | None = None
    """None: up to the context."""
    sampling: Sampling = Sampling()
    """`max_tokens` and `stop_ids` are filled in when a turn starts. `grammar` is of what an answer
    says; what calls need is added to it."""
    truncation: Truncation = Truncation()
    extras: str = "{}"
