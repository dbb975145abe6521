"""What may happen in a session, and when: a table. Decides; does nothing.

    IDLE ──respond──▶ ANSWERING ──cancel──▶ CANCELLING
      ▲                   │                     │
      └─────ended─────────┴────────ended────────┘          any ──close──▶ CLOSED

History may be edited in every state but CLOSED. While an answer is being made the engine's log is
the answer's; the edit is acknowledged at once and reaches the engine when the answer has ended.
"""

from enum import Enum

from continuo.realtime.errors import Refusal


class State(Enum):
    IDLE = "idle"
    ANSWERING = "answering"
    CANCELLING = "cancelling"
    CLOSED = "closed"


class Event(Enum):
    CONFIGURE = "session.update"
    EDIT = "an edit of the conversation"
    LOOK = "conversation.item.retrieve"
    RESPOND = "response.create"
    RESPOND_APART = 'response.create with conversation "none"'
    CANCEL = "response.cancel"
    ENDED = "the end of the answer"
    CLOSE = "the end of the session"


class Action(Enum):
    CHANGE = "change the conversation"
    PUSH = "bring the engine's log up to it"
    SHOW = "show an item"
    START = "start the answer"
    START_APART = "start an answer beside the conversation"
    STOP = "stop the answer"
    SETTLE = "put the answer into the conversation"
    RELEASE = "let go of the engine's sessions"


TABLE: dict[tuple[State, Event], tuple[State, tuple[Action, ...]]] = {
    (State.IDLE, Event.CONFIGURE): (State.IDLE, (Action.PUSH, Action.CHANGE)),
    (State.IDLE, Event.EDIT): (State.IDLE, (Action.PUSH, Action.CHANGE)),
    (State.IDLE, Event.LOOK): (State.IDLE, (Action.SHOW,)),
    (State.IDLE, Event.RESPOND): (State.ANSWERING, (Action.START,)),
    (State.IDLE, Event.RESPOND_APART): (State.IDLE, (Action.START_APART,)),
    (State.IDLE, Event.CLOSE): (State.CLOSED, (Action.RELEASE,)),
    (State.ANSWERING, Event.CONFIGURE): (State.ANSWERING, (Action.CHANGE,)),
    (State.ANSWERING, Event.EDIT): (State.ANSWERING, (Action.CHANGE,)),
    (State.ANSWERING, Event.LOOK): (State.ANSWERING, (Action.SHOW,)),
    (State.ANSWERING, Event.RESPOND_APART): (State.ANSWERING, (Action.START_APART,)),
    (State.ANSWERING, Event.CANCEL): (State.CANCELLING, (Action.STOP,)),
    (State.ANSWERING, Event.ENDED): (State.IDLE, (Action.SETTLE, Action.PUSH)),
    (State.ANSWERING, Event.CLOSE): (State.CLOSED, (Action.STOP, Action.RELEASE)),
    (State.CANCELLING, Event.CONFIGURE): (State.CANCELLING, (Action.CHANGE,)),
    (State.CANCELLING, Event.EDIT): (State.CANCELLING, (Action.CHANGE,)),
    (State.CANCELLING, Event.LOOK): (State.CANCELLING, (Action.SHOW,)),
    (State.CANCELLING, Event.RESPOND_APART): (State.CANCELLING, (Action.START_APART,)),
    (State.CANCELLING, Event.ENDED): (State.IDLE, (Action.SETTLE, Action.PUSH)),
    (State.CANCELLING, Event.CLOSE): (State.CLOSED, (Action.RELEASE,)),
    (State.CLOSED, Event.ENDED): (State.CLOSED, ()),
    (State.CLOSED, Event.CLOSE): (State.CLOSED, ()),
}

_ACTIVE = "conversation_already_has_active_response"
_NONE_ACTIVE = "response_cancel_not_active"
_REFUSALS: dict[tuple[State, Event], tuple[str, str]] = {
    (State.ANSWERING, Event.RESPOND): (
        _ACTIVE,
        "Conversation already has an active response in progress. Wait for its end or cancel it.",
    ),
    (State.CANCELLING, Event.RESPOND): (
        _ACTIVE,
        "Conversation already has an active response in progress: it is being cancelled.",
    ),
    (State.IDLE, Event.CANCEL): (_NONE_ACTIVE, "Cancellation failed: no active response found."),
    (State.CANCELLING, Event.CANCEL): (
        _NONE_ACTIVE,
        "Cancellation failed: the response is being cancelled already.",
    ),
}
"""Where the wire has words of its own for what the table lacks."""


def step(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """Raises Refusal for what the table does not hold; it names both."""
    found = TABLE.get((state, event))
    if found is not None:
        return found
    code, message = _REFUSALS.get(
        (state, event),
        ("invalid_state", f"{event.value} is not possible while the session is {state.value}."),
    )
    raise Refusal(message, code=code)


class Standing:
    """Where one session is in the table."""

    def __init__(self) -> None:
        self.state = State.IDLE

    def may(self, event: Event) -> tuple[Action, ...]:
        """What is to be done about it. Raises Refusal."""
        return step(self.state, event)[1]

    def step(self, event: Event) -> tuple[Action, ...]:
        """The same, and it is where that leads. Raises Refusal."""
        self.state, actions = step(self.state, event)
        return actions
