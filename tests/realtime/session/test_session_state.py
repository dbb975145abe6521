"""The table of a session's states: complete, connected, and strict about what it lacks."""

import itertools

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.session.state import TRANSITIONS, Action, SessionState, Trigger, transition

ALL = list(itertools.product(SessionState, Trigger))


@pytest.mark.parametrize(("state", "event"), ALL, ids=lambda value: value.name)
def test_every_pair_is_in_the_table_or_refused_by_name(state: SessionState, event: Trigger) -> None:
    if (state, event) in TRANSITIONS:
        assert transition(state, event) == TRANSITIONS[state, event]
        return
    with pytest.raises(Refusal) as caught:
        transition(state, event)
    named = {"conversation_already_has_active_response", "response_cancel_not_active"}
    if caught.value.code not in named:
        assert caught.value.code == "invalid_state"
        assert event.value in caught.value.message
        assert state.value in caught.value.message


def test_every_state_is_reached_from_the_first() -> None:
    reached = {SessionState.IDLE}
    for _ in SessionState:
        reached |= {TRANSITIONS[pair][0] for pair in TRANSITIONS if pair[0] in reached}
    assert reached == set(SessionState)


def test_nothing_reaches_the_engine_while_it_answers() -> None:
    for state in (SessionState.RESPONDING, SessionState.CANCELLING):
        for event in (Trigger.CONFIGURE, Trigger.EDIT):
            assert transition(state, event) == (state, (Action.CHANGE,))


def test_an_answer_is_settled_exactly_where_it_ends() -> None:
    settling = [
        pair for pair, (_, actions) in TRANSITIONS.items() if Action.COMMIT_RESPONSE in actions
    ]
    assert settling == [
        (SessionState.RESPONDING, Trigger.RESPONSE_ENDED),
        (SessionState.CANCELLING, Trigger.RESPONSE_ENDED),
    ]


@pytest.mark.parametrize(
    ("state", "event", "code"),
    [
        (
            SessionState.RESPONDING,
            Trigger.CREATE_RESPONSE,
            "conversation_already_has_active_response",
        ),
        (
            SessionState.CANCELLING,
            Trigger.CREATE_RESPONSE,
            "conversation_already_has_active_response",
        ),
        (SessionState.IDLE, Trigger.CANCEL, "response_cancel_not_active"),
        (SessionState.CANCELLING, Trigger.CANCEL, "response_cancel_not_active"),
        (SessionState.CLOSED, Trigger.CREATE_RESPONSE, "invalid_state"),
    ],
)
def test_the_words_of_the_wire(state: SessionState, event: Trigger, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        transition(state, event)
    assert caught.value.code == code
