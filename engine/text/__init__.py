"""Text of one model: its tokenizer, its chat template, its detokenizer. Knows no torch."""

from continuo.engine.text.chat_template.message import Message, Role, Tool, ToolCall
from continuo.engine.text.chat_template.template import ChatTemplate, Extension
from continuo.engine.text.grammar import Grammars, Matcher, SchemaError, schema_problem
from continuo.engine.text.model_text import Text
from continuo.engine.text.stop import Holdback, StopWatch
from continuo.engine.text.tokenizer.detokenizer import Detokenizer
from continuo.engine.text.tool_format import ToolFormat
from continuo.engine.text.tool_grammar import Asked, Callee
from continuo.engine.text.tool_parser import (
    ArgumentsDelta,
    CallDone,
    CallStarted,
    TextDelta,
    ToolEvent,
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
