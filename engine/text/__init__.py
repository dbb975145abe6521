"""Everything textual about a model: tokenizer, detokenizer, chat template, tool calls, grammars.

Does not import torch.
"""

from continuo.engine.text.chat_template.message import (
    ChatMessage,
    ChatRole,
    ToolCall,
    ToolDefinition,
)
from continuo.engine.text.chat_template.template import ChatTemplate, ConversationExtension
from continuo.engine.text.grammar import (
    GrammarCompiler,
    GrammarMatcher,
    SchemaError,
    find_schema_problem,
)
from continuo.engine.text.model_text import ModelText
from continuo.engine.text.stop import StopStringFilter, StopStringMatcher
from continuo.engine.text.tokenizer.detokenizer import Detokenizer
from continuo.engine.text.tool_format import ToolFormat
from continuo.engine.text.tool_grammar import CallableTool, ToolCallRules
from continuo.engine.text.tool_parser import (
    ParsedArguments,
    ParsedCallEnded,
    ParsedCallStarted,
    ParsedText,
    ParsedToolEvent,
    ToolParser,
)

__all__ = [
    "CallableTool",
    "ChatMessage",
    "ChatRole",
    "ChatTemplate",
    "ConversationExtension",
    "Detokenizer",
    "GrammarCompiler",
    "GrammarMatcher",
    "ModelText",
    "ParsedArguments",
    "ParsedCallEnded",
    "ParsedCallStarted",
    "ParsedText",
    "ParsedToolEvent",
    "SchemaError",
    "StopStringFilter",
    "StopStringMatcher",
    "ToolCall",
    "ToolCallRules",
    "ToolDefinition",
    "ToolFormat",
    "ToolParser",
    "find_schema_problem",
]
