"""F37: the device raises, or computes logits that are not finite, during several responses."""

import itertools
from random import Random

from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import continue_and_close
from tests.faults.deployment import Deployment, ExpectedConversation, running_deployment
from tests.faults.row import FaultRow

RESPONSE_TOKENS = 60
LETTERS = "abcdefghijklmnopqrstuvwxyz"


async def fail_one_row(deployment: Deployment, rng: Random) -> None:
    """Make each step that reads an id of one session fail: its response alone fails."""
    runner = deployment.engine_harness.runner
    conversations = [await open_with_random_message(deployment, rng, n % 2) for n in range(4)]
    prompt_ids = len(conversations[0][1].ids)
    texts = [
        expected.compute_response(RESPONSE_TOKENS, ignore_eos=True) for _, expected in conversations
    ]
    (victim, own), *others = conversations
    known = set(itertools.chain.from_iterable(expected.ids for _, expected in others))
    # Steps read the ids of the response: all but the last, and not the two that end the message.
    # The prompt may have been computed already.
    only_own = [id for id in own.ids[prompt_ids:-3] if id not in known]
    if not only_own:
        await close_all(conversations)
        return await fail_one_row(deployment, rng)
    bad_ids = runner.raising_ids if rng.random() < 0.5 else runner.nan_ids
    bad_ids.add(rng.choice(only_own))
    failed_steps = (await deployment.engine_harness.engine.fleet.stats()).failed_steps
    try:
        settings = {"max_output_tokens": RESPONSE_TOKENS, "ignore_eos": True}
        responses = [await client.start_response(**settings) for client, _ in conversations]
        for (client, _), response, text in list(zip(conversations, responses, texts, strict=True))[
            1:
        ]:
            assert await client.wait_response(response) == text
        while responses[0] not in victim.ended_responses:
            await victim.wait_for("response.done")
    finally:
        bad_ids.clear()
    ended = victim.ended_responses[responses[0]]
    assert ended["status"] == "failed"
    assert ended["status_details"]["error"]["type"] == "server_error"
    assert texts[0].startswith(victim.response_texts.get(responses[0], ""))
    stats = await deployment.engine_harness.engine.fleet.stats()
    assert stats.failed_audits == 0
    assert stats.failed_steps > failed_steps or bad_ids is runner.nan_ids
    await victim.add_message("and now?")
    assert await victim.complete_response(max_output_tokens=6, ignore_eos=True)
    await victim.close_session()
    for client, expected in others:
        await continue_and_close(client, expected)
    return None


async def open_with_random_message(
    deployment: Deployment, rng: Random, first: int
) -> tuple[ReconnectingClient, ExpectedConversation]:
    client, expected = deployment.create_client(first), deployment.expected_conversation()
    await client.connect()
    text = "".join(rng.choices(rng.sample(LETTERS, 4), k=rng.randrange(1, 60)))
    await client.add_message(text)
    expected.add_user_message(text)
    return client, expected


async def close_all(
    conversations: list[tuple[ReconnectingClient, ExpectedConversation]],
) -> None:
    for client, _ in conversations:
        await client.close_session()


ROWS = (
    FaultRow(
        id="F37",
        fault="every step that reads a certain id raises, or its logits are not finite; only one "
        "of four responses has that id",
        expectation="that response alone fails, as retryable; the others and the next ones are "
        "those of a fresh prefill",
        environment=running_deployment,
        trial=fail_one_row,
        full_trials=50,
        quick_trials=3,
    ),
)
