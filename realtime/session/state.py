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
    RESPONDING = "answering"
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


class Action(Enum):
    CHANGE = "change the conversation"
    SYNC_ENGINE = "sync the engine session with it"
    SHOW_ITEM = "show an item"
    START_RESPONSE = "start the response"
    START_OUT_OF_BAND_RESPONSE = "start an out-of-band response"
    STOP_RESPONSE = "cancel the response"
    COMMIT_RESPONSE = "commit the response to the conversation"
    RELEASE = "release the engine sessions"


TRANSITIONS: dict[tuple[SessionState, Trigger], tuple[SessionState, tuple[Action, ...]]] = {
    (SessionState.IDLE, Trigger.CONFIGURE): (
        SessionState.IDLE,
        (Action.SYNC_ENGINE, Action.CHANGE),
    ),
    (SessionState.IDLE, Trigger.EDIT): (SessionState.IDLE, (Action.SYNC_ENGINE, Action.CHANGE)),
    (SessionState.IDLE, Trigger.RETRIEVE_ITEM): (SessionState.IDLE, (Action.SHOW_ITEM,)),
    (SessionState.IDLE, Trigger.CREATE_RESPONSE): (
        SessionState.RESPONDING,
        (Action.START_RESPONSE,),
    ),
    (SessionState.IDLE, Trigger.CREATE_OUT_OF_BAND_RESPONSE): (
        SessionState.IDLE,
        (Action.START_OUT_OF_BAND_RESPONSE,),
    ),
    (SessionState.IDLE, Trigger.CLOSE): (SessionState.CLOSED, (Action.RELEASE,)),
    (SessionState.RESPONDING, Trigger.CONFIGURE): (SessionState.RESPONDING, (Action.CHANGE,)),
    (SessionState.RESPONDING, Trigger.EDIT): (SessionState.RESPONDING, (Action.CHANGE,)),
    (SessionState.RESPONDING, Trigger.RETRIEVE_ITEM): (
        SessionState.RESPONDING,
        (Action.SHOW_ITEM,),
    ),
    (SessionState.RESPONDING, Trigger.CREATE_OUT_OF_BAND_RESPONSE): (
        SessionState.RESPONDING,
        (Action.START_OUT_OF_BAND_RESPONSE,),
    ),
    (SessionState.RESPONDING, Trigger.CANCEL): (SessionState.CANCELLING, (Action.STOP_RESPONSE,)),
    (SessionState.RESPONDING, Trigger.RESPONSE_ENDED): (
        SessionState.IDLE,
        (Action.COMMIT_RESPONSE, Action.SYNC_ENGINE),
    ),
    (SessionState.RESPONDING, Trigger.CLOSE): (
        SessionState.CLOSED,
        (Action.STOP_RESPONSE, Action.RELEASE),
    ),
    (SessionState.CANCELLING, Trigger.CONFIGURE): (SessionState.CANCELLING, (Action.CHANGE,)),
    (SessionState.CANCELLING, Trigger.EDIT): (SessionState.CANCELLING, (Action.CHANGE,)),
    (SessionState.CANCELLING, Trigger.RETRIEVE_ITEM): (
        SessionState.CANCELLING,
        (Action.SHOW_ITEM,),
    ),
    (SessionState.CANCELLING, Trigger.CREATE_OUT_OF_BAND_RESPONSE): (
        SessionState.CANCELLING,
        (Action.START_OUT_OF_BAND_RESPONSE,),
    ),
    (SessionState.CANCELLING, Trigger.RESPONSE_ENDED): (
        SessionState.IDLE,
        (Action.COMMIT_RESPONSE, Action.SYNC_ENGINE),
    ),
    (SessionState.CANCELLING, Trigger.CLOSE): (SessionState.CLOSED, (Action.RELEASE,)),
    (SessionState.CLOSED, Trigger.RESPONSE_ENDED): (SessionState.CLOSED, ()),
    (SessionState.CLOSED, Trigger.CLOSE): (SessionState.CLOSED, ()),
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


def transition(state: SessionState, trigger: Trigger) -> tuple[SessionState, tuple[Action, ...]]:
    """Return the next state and the actions.

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

    def check(self, trigger: Trigger) -> tuple[Action, ...]:
        """Return the actions of a trigger, without the transition. Raises Refusal."""
        return transition(self.state, trigger)[1]

    def advance(self, trigger: Trigger) -> tuple[Action, ...]:
        """Make the transition of a trigger and return its actions. Raises Refusal."""
        self.state, actions = transition(self.state, trigger)
        return actions
