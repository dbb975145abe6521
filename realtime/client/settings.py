"""Settings of sessions and responses, as keyword arguments. docs/protocol.md describes each."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from continuo.realtime.client.events import JsonObject
from continuo.realtime.client.tools import Tool, ToolFunction, make_tool

ToolSetting = Tool | ToolFunction | JsonObject
"""A function that the client calls when the model requests it; or the declaration, as the wire has
it, of a tool whose calls the program answers itself."""


class SamplingSettings(TypedDict, total=False):
    """Sampling parameters. None restores the server's default."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | list[str] | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    ignore_eos: bool | None
    priority: int | None
    deadline_ms: int | None


class CommonSettings(SamplingSettings, total=False):
    instructions: str | None
    tools: Sequence[ToolSetting] | None
    tool_choice: Literal["auto", "none", "required"] | JsonObject | None
    parallel_tool_calls: bool | None
    max_output_tokens: int | Literal["inf"] | None
    reasoning: JsonObject | None


class SessionSettings(CommonSettings, total=False):
    truncation: Literal["auto", "disabled"] | JsonObject
    include: list[str] | None


class ResponseSettings(CommonSettings, total=False):
    conversation: Literal["auto", "none"]
    """`none`: an out-of-band response, which leaves the conversation unchanged."""
    input: list[JsonObject] | None
    metadata: dict[str, str] | None


def list_tools(tools: Sequence[ToolSetting] | None) -> list[Tool]:
    """List the tools of a setting that have functions."""
    return [make_tool(tool) for tool in tools or () if not isinstance(tool, dict)]


def encode_settings(settings: SessionSettings | ResponseSettings) -> dict[str, Any]:
    """Encode settings as the wire has them: functions become declarations of tools."""
    encoded: dict[str, Any] = dict(settings)
    tools = settings.get("tools")
    if tools is not None:
        encoded["tools"] = [
            tool if isinstance(tool, dict) else make_tool(tool).declaration for tool in tools
        ]
    return encoded
