"""The state machine of a session, as a table. Pure: it decides, and has no side effects.

    IDLE ──respond──▶ RESPONDING ──cancel──▶ CANCELLING
      ▲                   │                      │
      └─────ended─────────┴────────ended─────────┘         any ──close──▶ CLOSED

The conversation may be edited in every state but CLOSED. While a response is active, the token log
of the engine session belongs to it: an edit is acknowledged at once and reaches the engine when the
response has ended.
"""

from enum import Enum

from continuo.realtime.errors import Refusal


class SessionState(Enum):
    """The values are on the wire, in the status of a session."""

    IDLE = "idle"
    RESPONDING = "responding"
    CANCELLING = "cancelling"
    CLOSED = "closed"


class Trigger(Enum):
    CONFIGURE = "session.update"
    EDIT = "an edit of the conversation"
    RETRIEVE_ITEM = "conversation.item.retrieve"
    CREATE_RESPONSE = "response.create"
    CREATE_OUT_OF_BAND_RESPONSE = 'response.create with conversation "none"'
    CANCEL = "response.cancel"
    RESPONSE_ENDED = "the end of the response"
    CLOSE = "the end of the session"


TRANSITIONS: dict[tuple[SessionState, Trigger], SessionState] = {
    (SessionState.IDLE, Trigger.CONFIGURE): SessionState.IDLE,
    (SessionState.IDLE, Trigger.EDIT): SessionState.IDLE,
    (SessionState.IDLE, Trigger.RETRIEVE_ITEM): SessionState.IDLE,
    (SessionState.IDLE, Trigger.CREATE_RESPONSE): SessionState.RESPONDING,
    (SessionState.IDLE, Trigger.CREATE_OUT_OF_BAND_RESPONSE): SessionState.IDLE,
    (SessionState.IDLE, Trigger.CLOSE): SessionState.CLOSED,
    (SessionState.RESPONDING, Trigger.CONFIGURE): SessionState.RESPONDING,
    (SessionState.RESPONDING, Trigger.EDIT): SessionState.RESPONDING,
    (SessionState.RESPONDING, Trigger.RETRIEVE_ITEM): SessionState.RESPONDING,
    (SessionState.RESPONDING, Trigger.CREATE_OUT_OF_BAND_RESPONSE): SessionState.RESPONDING,
    (SessionState.RESPONDING, Trigger.CANCEL): SessionState.CANCELLING,
    (SessionState.RESPONDING, Trigger.RESPONSE_ENDED): SessionState.IDLE,
    (SessionState.RESPONDING, Trigger.CLOSE): SessionState.CLOSED,
    (SessionState.CANCELLING, Trigger.CONFIGURE): SessionState.CANCELLING,
    (SessionState.CANCELLING, Trigger.EDIT): SessionState.CANCELLING,
    (SessionState.CANCELLING, Trigger.RETRIEVE_ITEM): SessionState.CANCELLING,
    (SessionState.CANCELLING, Trigger.CREATE_OUT_OF_BAND_RESPONSE): SessionState.CANCELLING,
    (SessionState.CANCELLING, Trigger.RESPONSE_ENDED): SessionState.IDLE,
    (SessionState.CANCELLING, Trigger.CLOSE): SessionState.CLOSED,
    (SessionState.CLOSED, Trigger.RESPONSE_ENDED): SessionState.CLOSED,
    (SessionState.CLOSED, Trigger.CLOSE): SessionState.CLOSED,
}

_ACTIVE = "conversation_already_has_active_response"
_NONE_ACTIVE = "response_cancel_not_active"
_REFUSALS: dict[tuple[SessionState, Trigger], tuple[str, str]] = {
    (SessionState.RESPONDING, Trigger.CREATE_RESPONSE): (
        _ACTIVE,
        "Conversation already has an active response in progress. Wait for its end or cancel it.",
    ),
    (SessionState.CANCELLING, Trigger.CREATE_RESPONSE): (
        _ACTIVE,
        "Conversation already has an active response in progress: it is being cancelled.",
    ),
    (SessionState.IDLE, Trigger.CANCEL): (
        _NONE_ACTIVE,
        "Cancellation failed: no active response found.",
    ),
    (SessionState.CANCELLING, Trigger.CANCEL): (
        _NONE_ACTIVE,
        "Cancellation failed: the response is being cancelled already.",
    ),
}
"""Error code and message for transitions that are not in the table, if OpenAI's API defines an
error for them."""


def transition(state: SessionState, trigger: Trigger) -> SessionState:
    """Return the next state.

    Raises Refusal if the table has no such transition; its message names state and trigger.
    """
    found = TRANSITIONS.get((state, trigger))
    if found is not None:
        return found
    code, message = _REFUSALS.get(
        (state, trigger),
        ("invalid_state", f"{trigger.value} is not possible while the session is {state.value}."),
    )
    raise Refusal(message, code=code)


class StateMachine:
    """The state of one session."""

    def __init__(self) -> None:
        self.state = SessionState.IDLE

    def check(self, trigger: Trigger) -> None:
        """Check that a trigger is possible now. Raises Refusal."""
        transition(self.state, trigger)

    def advance(self, trigger: Trigger) -> SessionState:
        """Make the transition of a trigger and return the new state. Raises Refusal."""
        self.state = transition(self.state, trigger)
        return self.state
