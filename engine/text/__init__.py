"""Everything textual about a model: tokenizer, detokenizer, chat template, tool calls, grammars.

Does not import torch.
"""

from continuo.engine.text.chat_template.message import (
    ChatMessage,
    ChatRole,
    ToolCall,
    ToolDefinition,
)
from continuo.engine.text.chat_template.reasoning_probe import Effort, EffortSetting
from continuo.engine.text.chat_template.template import ChatTemplate, ConversationExtension
from continuo.engine.text.grammar import (
    DraftMask,
    DraftMasks,
    GrammarCompiler,
    GrammarMatcher,
    SchemaError,
    build_joint_grammar,
    build_regex_grammar,
    build_trial_source,
    compute_key,
)
from continuo.engine.text.model_text import ModelText
from continuo.engine.text.output_channels import (
    TEXT,
    ChannelKind,
    DecodedSegment,
    OutputChannel,
    OutputDecoder,
    ReasoningFormat,
)
from continuo.engine.text.stop import StopStringFilter, StopStringMatcher
from continuo.engine.text.tokenizer.detokenizer import Detokenizer
from continuo.engine.text.tool_arguments import find_types
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
    "TEXT",
    "CallableTool",
    "ChannelKind",
    "ChatMessage",
    "ChatRole",
    "ChatTemplate",
    "ConversationExtension",
    "DecodedSegment",
    "Detokenizer",
    "DraftMask",
    "DraftMasks",
    "Effort",
    "EffortSetting",
    "GrammarCompiler",
    "GrammarMatcher",
    "ModelText",
    "OutputChannel",
    "OutputDecoder",
    "ParsedArguments",
    "ParsedCallEnded",
    "ParsedCallStarted",
    "ParsedText",
    "ParsedToolEvent",
    "ReasoningFormat",
    "SchemaError",
    "StopStringFilter",
    "StopStringMatcher",
    "ToolCall",
    "ToolCallRules",
    "ToolDefinition",
    "ToolFormat",
    "ToolParser",
    "build_joint_grammar",
    "build_regex_grammar",
    "build_trial_source",
    "compute_key",
    "find_types",
]
