"""Text of one model: its tokenizer, its chat template, its detokenizer. Knows no torch."""

from engine.text.calling import Asked, Callee
from engine.text.detokenizer import Detokenizer
from engine.text.grammar import Grammars, Matcher, SchemaError, schema_problem
from engine.text.message import Message, Role, Tool, ToolCall
from engine.text.stop import Holdback, StopWatch
from engine.text.template import ChatTemplate, Extension
from engine.text.text import Text
from engine.text.tools import (
    ArgumentsDelta,
    CallDone,
    CallStarted,
    TextDelta,
    ToolEvent,
    ToolFormat,
    ToolParser,
)

__all__ = [
    "ArgumentsDelta",
    "Asked",
    "CallDone",
    "CallStarted",
    "Callee",
    "ChatTemplate",
    "Detokenizer",
    "Extension",
    "Grammars",
    "Holdback",
    "Matcher",
    "Message",
    "Role",
    "SchemaError",
    "StopWatch",
    "Text",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolEvent",
    "ToolFormat",
    "ToolParser",
    "schema_problem",
]
