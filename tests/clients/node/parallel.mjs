// Two calls in one response: what comes back of each, and their results together (see
// tests/clients/test_parallel_calls.py, whose model says them).

import assert from 'node:assert/strict';
import { textOf, WEATHER } from './talk.mjs';

const QUESTION = 'What is the weather in Rome and in Oslo?';
const ARGUMENTS = ['{"city": "Rome"}', '{"city": "Oslo"}'];
const RESULTS = ['cloudless', 'foggy'];
const ANSWER = 'It is sunny in Rome.';

/** Each has an id and a place of its own, and its deltas are what it says. */
function check(calls, events) {
  assert.deepEqual(calls.map((call) => call.arguments), ARGUMENTS);
  assert.equal(new Set(calls.flatMap(({ id, call_id }) => [id, call_id])).size, 4);
  for (const [place, call] of calls.entries()) {
    const calling = events.filter(
      ({ type, item_id }) => item_id === call.id && type.includes('function_call_arguments'),
    );
    assert(calling.every((event) => event.output_index === place));
    assert.equal(calling.map(({ delta = '' }) => delta).join(''), call.arguments);
    assert.equal(calling.at(-1).arguments, call.arguments);
  }
}

function results(calls) {
  return calls.map(({ call_id }, n) => ({ type: 'function_call_output', call_id, output: RESULTS[n] }));
}

export const parallel = {
  async two_calls_in_an_answer(client) {
    const talk = await client.talk();
    talk.send({ type: 'session.update', session: { type: 'realtime', tools: [WEATHER] } });
    await talk.expect('session.updated');
    await talk.say(QUESTION);
    const events = await talk.answer({ tool_choice: 'required' });
    const calls = events.at(-1).response.output;
    check(calls, events);
    for (const item of results(calls)) {
      talk.send({ type: 'conversation.item.create', item });
      await talk.expect('conversation.item.added', 'conversation.item.done');
    }
    assert.equal(textOf((await talk.answer()).at(-1).response), ANSWER);
    talk.close();
  },

  async two_calls_in_a_response(client) {
    const talk = client.call();
    const wish = { tools: [WEATHER] };
    const events = await talk.respond({ input: QUESTION, tool_choice: 'required', ...wish });
    const { id, output } = events.at(-1).response;
    check(output, events);
    const on = { previous_response_id: id, input: results(output), ...wish };
    assert.equal(textOf((await talk.respond(on)).at(-1).response), ANSWER);
    talk.close();
  },

  async two_calls_in_a_chat(client) {
    const { type, ...shape } = WEATHER;
    const wish = { model: 'demo', tools: [{ type, function: shape }] };
    const { completions } = client.api.chat;
    const messages = [{ role: 'user', content: QUESTION }];
    const pieces = [];
    const runner = completions.stream({ messages, tool_choice: 'required', ...wish });
    runner.on('chunk', (chunk) => {
      for (const { index, function: piece } of chunk.choices[0]?.delta.tool_calls ?? []) {
        pieces[index] = (pieces[index] ?? '') + (piece?.arguments ?? '');
      }
    });
    const { finish_reason, message } = (await runner.finalChatCompletion()).choices[0];
    assert.deepEqual(pieces, ARGUMENTS);
    assert.equal(finish_reason, 'tool_calls');
    const calls = message.tool_calls;
    assert.deepEqual(calls.map((call) => call.function.arguments), ARGUMENTS);
    assert.notEqual(calls[0].id, calls[1].id);
    const given = calls.map(({ id }, n) => ({ role: 'tool', tool_call_id: id, content: RESULTS[n] }));
    const tool_calls = calls.map(({ id, type, function: called }) => ({
      id,
      type,
      function: { name: called.name, arguments: called.arguments },
    }));
    messages.push({ role: 'assistant', content: null, tool_calls }, ...given);
    const { choices } = await completions.create({ messages, ...wish });
    assert.equal(choices[0].message.content, ANSWER);
  },
};
