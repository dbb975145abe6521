"""The table of a session's states: complete, connected, and strict about what it lacks."""

import itertools

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.session.state import TABLE, Action, Event, State, step

ALL = list(itertools.product(State, Event))


@pytest.mark.parametrize(("state", "event"), ALL, ids=lambda value: value.name)
def test_every_pair_is_in_the_table_or_refused_by_name(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        assert step(state, event) == TABLE[state, event]
        return
    with pytest.raises(Refusal) as caught:
        step(state, event)
    named = {"conversation_already_has_active_response", "response_cancel_not_active"}
    if caught.value.code not in named:
        assert caught.value.code == "invalid_state"
        assert event.value in caught.value.message
        assert state.value in caught.value.message


def test_every_state_is_reached_from_the_first() -> None:
    reached = {State.IDLE}
    for _ in State:
        reached |= {TABLE[pair][0] for pair in TABLE if pair[0] in reached}
    assert reached == set(State)


def test_nothing_reaches_the_engine_while_it_answers() -> None:
    for state in (State.ANSWERING, State.CANCELLING):
        for event in (Event.CONFIGURE, Event.EDIT):
            assert step(state, event) == (state, (Action.CHANGE,))


def test_an_answer_is_settled_exactly_where_it_ends() -> None:
    settling = [pair for pair, (_, actions) in TABLE.items() if Action.SETTLE in actions]
    assert settling == [(State.ANSWERING, Event.ENDED), (State.CANCELLING, Event.ENDED)]


@pytest.mark.parametrize(
    ("state", "event", "code"),
    [
        (State.ANSWERING, Event.RESPOND, "conversation_already_has_active_response"),
        (State.CANCELLING, Event.RESPOND, "conversation_already_has_active_response"),
        (State.IDLE, Event.CANCEL, "response_cancel_not_active"),
        (State.CANCELLING, Event.CANCEL, "response_cancel_not_active"),
        (State.CLOSED, Event.RESPOND, "invalid_state"),
    ],
)
def test_the_words_of_the_wire(state: State, event: Event, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        step(state, event)
    assert caught.value.code == code
