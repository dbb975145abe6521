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
from engine.text import ChatTemplate, Detokenizer, Message, Text, ToolCall
from engine.turn import Piece, Turn

__all__ = [
    "BUNDLED",
    "BadRequest",
    "Busy",
    "ChatTemplate",
    "Detokenizer",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLost",
    "EngineStats",
    "Message",
    "ModelError",
    "Piece",
    "Ready",
    "Sampling",
    "SessionInfo",
    "Text",
    "TooLong",
    "ToolCall",
    "Turn",
    "TurnEnded",
    "TurnFailed",
    "UnknownSession",
]
