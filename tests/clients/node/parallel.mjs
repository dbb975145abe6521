// Flows with two calls in one response, and their results together;
// tests/clients/test_parallel_calls.py scripts the model that makes the calls.

import assert from 'node:assert/strict';
import { textOf, WEATHER } from './connections.mjs';

const QUESTION = 'What is the weather in Rome and in Oslo?';
const ARGUMENTS = ['{"city": "Rome"}', '{"city": "Oslo"}'];
const RESULTS = ['cloudless', 'foggy'];
const ANSWER = 'It is sunny in Rome.';

/** Checks that each call has an id and an index of its own, and arguments equal to its deltas. */
function check(calls, events) {
  assert.deepEqual(calls.map((call) => call.arguments), ARGUMENTS);
  assert.equal(new Set(calls.flatMap(({ id, call_id }) => [id, call_id])).size, 4);
  for (const [index, call] of calls.entries()) {
    const calling = events.filter(
      ({ type, item_id }) => item_id === call.id && type.includes('function_call_arguments'),
    );
    assert(calling.every((event) => event.output_index === index));
    assert.equal(calling.map(({ delta = '' }) => delta).join(''), call.arguments);
    assert.equal(calling.at(-1).arguments, call.arguments);
  }
}

function results(calls) {
  return calls.map(({ call_id }, n) => ({ type: 'function_call_output', call_id, output: RESULTS[n] }));
}

export const parallel = {
  async two_calls_in_an_answer(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'session.update', session: { type: 'realtime', tools: [WEATHER] } });
    await connection.expect('session.updated');
    await connection.addMessage(QUESTION);
    const events = await connection.createResponse({ tool_choice: 'required' });
    const calls = events.at(-1).response.output;
    check(calls, events);
    for (const item of results(calls)) {
      connection.send({ type: 'conversation.item.create', item });
      await connection.expect('conversation.item.added', 'conversation.item.done');
    }
    assert.equal(textOf((await connection.createResponse()).at(-1).response), ANSWER);
    connection.close();
  },

  async two_calls_in_a_response(client) {
    const connection = client.connectResponses();
    const fields = { tools: [WEATHER] };
    const body = { input: QUESTION, tool_choice: 'required', ...fields };
    const events = await connection.runResponse(body);
    const { id, output } = events.at(-1).response;
    check(output, events);
    const successor = { previous_response_id: id, input: results(output), ...fields };
    assert.equal(textOf((await connection.runResponse(successor)).at(-1).response), ANSWER);
    connection.close();
  },

  async two_calls_in_a_chat(client) {
    const { type, ...shape } = WEATHER;
    const fields = { model: 'demo', tools: [{ type, function: shape }] };
    const { completions } = client.api.chat;
    const messages = [{ role: 'user', content: QUESTION }];
    const pieces = [];
    const runner = completions.stream({ messages, tool_choice: 'required', ...fields });
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
    const outputs = calls.map(({ id }, n) => ({
      role: 'tool',
      tool_call_id: id,
      content: RESULTS[n],
    }));
    const tool_calls = calls.map(({ id, type, function: called }) => ({
      id,
      type,
      function: { name: called.name, arguments: called.arguments },
    }));
    messages.push({ role: 'assistant', content: null, tool_calls }, ...outputs);
    const { choices } = await completions.create({ messages, ...fields });
    assert.equal(choices[0].message.content, ANSWER);
  },
};
