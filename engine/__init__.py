"""The door of the engine: all that anyone outside may import."""

from engine.config import BUNDLED, EngineConfig, Listening
from engine.errors import (
    BadRequest,
    Busy,
    EngineError,
    EngineLost,
    LinkRefused,
    ModelError,
    StaleFence,
    TooLong,
    TurnFailed,
    UnknownSession,
)
from engine.front import Engine, Unfinished
from engine.greeting import read_secret
from engine.messages import EngineStats, Grammar, Load, Ready, Sampling, SessionInfo, TurnEnded
from engine.peer import Security
from engine.text import (
    ArgumentsDelta,
    Asked,
    CallDone,
    Callee,
    CallStarted,
    ChatTemplate,
    Detokenizer,
    Extension,
    Message,
    Text,
    TextDelta,
    ToolCall,
    ToolParser,
    schema_problem,
)
from engine.turn import Piece, Turn

__all__ = [
    "BUNDLED",
    "ArgumentsDelta",
    "Asked",
    "BadRequest",
    "Busy",
    "CallDone",
    "CallStarted",
    "Callee",
    "ChatTemplate",
    "Detokenizer",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLost",
    "EngineStats",
    "Extension",
    "Grammar",
    "LinkRefused",
    "Listening",
    "Load",
    "Message",
    "ModelError",
    "Piece",
    "Ready",
    "Sampling",
    "Security",
    "SessionInfo",
    "StaleFence",
    "Text",
    "TextDelta",
    "TooLong",
    "ToolCall",
    "ToolParser",
    "Turn",
    "TurnEnded",
    "TurnFailed",
    "Unfinished",
    "UnknownSession",
    "read_secret",
    "schema_problem",
]
