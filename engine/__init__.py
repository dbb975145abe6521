"""Public interface of the engine package: all that other packages may import."""

from continuo.engine.allocator import give_memory_back
from continuo.engine.architectures.known import KNOWN_ARCHITECTURES, KnownArchitecture
from continuo.engine.architectures.listing import read_model_size, suggest_models
from continuo.engine.architectures.sizes import ModelSize
from continuo.engine.available_memory import available_memory_bytes, cpu_pool_bytes
from continuo.engine.byte_units import format_bytes, parse_bytes
from continuo.engine.client.connection import LinkSecurity
from continuo.engine.client.engine import Chat, Engine, Output
from continuo.engine.client.engine_client import (
    DEFAULT_GROUP,
    EngineClient,
    SessionGroup,
    UnfinishedTurn,
)
from continuo.engine.client.grammar_trials import GrammarTrials
from continuo.engine.client.turn_stream import OutputChunk, TurnStream
from continuo.engine.config import (
    BUNDLED_MODEL,
    PAGE_TOKENS,
    EngineConfig,
    ListenerConfig,
    LogFormat,
    SpeculativeConfig,
)
from continuo.engine.errors import (
    BadRequest,
    Busy,
    EngineError,
    EngineLost,
    LinkRefused,
    ModelError,
    SessionDetached,
    SessionQuarantined,
    StaleEngineFence,
    TooLong,
    TurnFailed,
    UnknownEngineSession,
)
from continuo.engine.event_loop import run_event_loop, run_in_thread
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.garbage_collection import collect_garbage
from continuo.engine.line_limit import LineLimit
from continuo.engine.local_checkpoint import find_local_checkpoint, find_local_text
from continuo.engine.log_format import ConsoleFormatter, JsonFormatter
from continuo.engine.peer_address import address_of
from continuo.engine.resident_cache import CacheSize, ResidentCache, cache_group
from continuo.engine.sampling import Grammar, Sampling, SamplingSettings, StopString
from continuo.engine.terminal_text import escape_commands, print_line
from continuo.engine.text import (
    CallableTool,
    ChatMessage,
    ChatTemplate,
    ConversationExtension,
    Detokenizer,
    Effort,
    EffortSetting,
    ModelText,
    OutputChannel,
    ParsedArguments,
    ParsedCallEnded,
    ParsedCallStarted,
    ParsedText,
    SchemaError,
    ToolCall,
    ToolCallRules,
    ToolParser,
    build_joint_grammar,
    build_regex_grammar,
    find_types,
)
from continuo.engine.trace_export import create_trace_provider, flush_traces
from continuo.engine.wire.handshake import read_secret
from continuo.engine.wire.messages import (
    EngineLoad,
    EngineReady,
    EngineStats,
    SessionInfo,
    TurnEnded,
)

__all__ = [
    "BUNDLED_MODEL",
    "DEFAULT_GROUP",
    "KNOWN_ARCHITECTURES",
    "PAGE_TOKENS",
    "BadRequest",
    "Busy",
    "CacheSize",
    "CallableTool",
    "Chat",
    "ChatMessage",
    "ChatTemplate",
    "ConsoleFormatter",
    "ConversationExtension",
    "Detokenizer",
    "Effort",
    "EffortSetting",
    "Engine",
    "EngineClient",
    "EngineConfig",
    "EngineError",
    "EngineLoad",
    "EngineLost",
    "EngineReady",
    "EngineStats",
    "Grammar",
    "GrammarTrials",
    "JsonFormatter",
    "KnownArchitecture",
    "LineLimit",
    "LinkRefused",
    "LinkSecurity",
    "ListenerConfig",
    "LogFormat",
    "ModelError",
    "ModelSize",
    "ModelText",
    "Output",
    "OutputChannel",
    "OutputChunk",
    "ParsedArguments",
    "ParsedCallEnded",
    "ParsedCallStarted",
    "ParsedText",
    "ResidentCache",
    "Sampling",
    "SamplingSettings",
    "SchemaError",
    "SessionDetached",
    "SessionGroup",
    "SessionInfo",
    "SessionQuarantined",
    "SpeculativeConfig",
    "StaleEngineFence",
    "StopString",
    "TooLong",
    "ToolCall",
    "ToolCallRules",
    "ToolParser",
    "TurnEnded",
    "TurnFailed",
    "TurnStream",
    "UnfinishedTurn",
    "UnknownEngineSession",
    "address_of",
    "available_memory_bytes",
    "build_joint_grammar",
    "build_regex_grammar",
    "cache_group",
    "collect_garbage",
    "compute_fingerprint",
    "cpu_pool_bytes",
    "create_trace_provider",
    "escape_commands",
    "find_local_checkpoint",
    "find_local_text",
    "find_types",
    "flush_traces",
    "format_bytes",
    "give_memory_back",
    "parse_bytes",
    "print_line",
    "read_model_size",
    "read_secret",
    "run_event_loop",
    "run_in_thread",
    "suggest_models",
]
