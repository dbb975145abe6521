"""The transition table of a session: complete, connected, and strict about unlisted pairs."""

import itertools
from typing import get_args

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import ConversationCommand
from continuo.realtime.session.commands import HANDLERS
from continuo.realtime.session.state import TRANSITIONS, SessionState, Trigger, transition

ALL = list(itertools.product(SessionState, Trigger))


@pytest.mark.parametrize(("state", "event"), ALL, ids=lambda value: value.name)
def test_every_pair_of_state_and_trigger_is_listed_or_refused(
    state: SessionState, event: Trigger
) -> None:
    if (state, event) in TRANSITIONS:
        assert transition(state, event) == TRANSITIONS[state, event]
        return
    with pytest.raises(Refusal) as caught:
        transition(state, event)
    specific = {"conversation_already_has_active_response", "response_cancel_not_active"}
    if caught.value.code not in specific:
        assert caught.value.code == "invalid_state"
        assert event.value in caught.value.message
        assert state.value in caught.value.message


def test_every_state_is_reachable_from_idle() -> None:
    reached = {SessionState.IDLE}
    for _ in SessionState:
        reached |= {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] in reached}
    assert reached == set(SessionState)


def test_edits_leave_an_active_response_active() -> None:
    for state in (SessionState.RESPONDING, SessionState.CANCELLING):
        for event in (Trigger.CONFIGURE, Trigger.EDIT):
            assert transition(state, event) is state


def test_session_becomes_idle_only_when_its_response_ends() -> None:
    ending = [
        pair
        for pair, state in TRANSITIONS.items()
        if state is SessionState.IDLE and pair[0] is not SessionState.IDLE
    ]
    assert ending == [
        (SessionState.RESPONDING, Trigger.RESPONSE_ENDED),
        (SessionState.CANCELLING, Trigger.RESPONSE_ENDED),
    ]


def test_every_command_has_a_handler() -> None:
    assert HANDLERS.keys() == set(get_args(ConversationCommand))


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
def test_refused_transitions_have_the_error_codes_of_the_api(
    state: SessionState, event: Trigger, code: str
) -> None:
    with pytest.raises(Refusal) as caught:
        transition(state, event)
    assert caught.value.code == code
