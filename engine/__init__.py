"""The door of the engine: all that anyone outside may import."""

from engine.config import BUNDLED, EngineConfig
from engine.errors import (
    BadRequest,
    Busy,
    EngineError,
    EngineLost,
    ModelError,
    TooLong,
    TurnFailed,
    UnknownSession,
)
from engine.front import Engine
from engine.messages import EngineStats, Ready, Sampling, SessionInfo, TurnEnded
from engine.text import (
    ArgumentsDelta,
    CallDone,
    CallStarted,
    ChatTemplate,
    Detokenizer,
    Extension,
    Message,
    Text,
    TextDelta,
    ToolCall,
    ToolParser,
)
from engine.turn import Piece, Turn

__all__ = [
    "BUNDLED",
    "ArgumentsDelta",
    "BadRequest",
    "Busy",
    "CallDone",
    "CallStarted",
    "ChatTemplate",
    "Detokenizer",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLost",
    "EngineStats",
    "Extension",
    "Message",
    "ModelError",
    "Piece",
    "Ready",
    "Sampling",
    "SessionInfo",
    "Text",
    "TextDelta",
    "TooLong",
    "ToolCall",
    "ToolParser",
    "Turn",
    "TurnEnded",
    "TurnFailed",
    "UnknownSession",
]
