"""The door of the engine: all that anyone outside may import."""

from continuo.engine.config import BUNDLED, EngineConfig, Listening
from continuo.engine.errors import BadRequest, Busy, EngineError, EngineLost, LinkRefused, ModelError, SessionQuarantined, StaleFence, TooLong, TurnFailed, UnknownSession
from continuo.engine.client.engine_client import Engine, Unfinished
from continuo.engine.wire.handshake import read_secret
from continuo.engine.wire.messages import EngineStats, Grammar, Load, Ready, Sampling, SessionInfo, TurnEnded
from continuo.engine.client.connection import Security
from continuo.engine.text import ArgumentsDelta, Asked, CallDone, Callee, CallStarted, ChatTemplate, Detokenizer, Extension, Message, Text, TextDelta, ToolCall, ToolParser, schema_problem
from continuo.engine.client.turn_stream import Piece, Turn

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
    "SessionQuarantined",
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
