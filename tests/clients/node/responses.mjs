// Flows of the Responses API over a WebSocket and over HTTP, and of chat completions.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { ENDS, kinds, textOf, WEATHER } from './connections.mjs';

/** Settings of a response that does not end before it is cancelled. */
const LONG = { ignore_eos: true, max_output_tokens: 1000 };

/** A tool whose call takes a while to generate. */
const TAKE_NOTE = {
  type: 'function',
  name: 'take_note',
  parameters: {
    type: 'object',
    properties: { note: { enum: ['all is well '.repeat(250)] } },
    required: ['note'],
    additionalProperties: false,
  },
  strict: true,
};

export const responses = {
  async responses_go_on_from_each_other(client) {
    const connection = client.connectResponses();
    const events = await connection.runResponse({ input: 'hello', model: 'demo' });
    assert.deepEqual(kinds(events), [
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ]);
    const first = events.at(-1).response;
    const body = { input: 'and now?', previous_response_id: first.id, max_output_tokens: 8 };
    const { usage } = (await connection.runResponse(body)).at(-1).response;
    assert(usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
    connection.send({ type: 'response.create', input: 'x', previous_response_id: 'resp_none' });
    const error = await connection.expect('error');
    assert.deepEqual([error.status, error.error.code], [400, 'previous_response_not_found']);
    connection.close();
  },

  async a_response_is_cancelled(client) {
    const connection = client.connectResponses();
    const body = { input: 'tell me a story', instructions: 'Be kind.', ignore_eos: true };
    connection.send({ type: 'response.create', ...body });
    const { response } = (await connection.receiveUntil('response.output_text.delta'))[0];
    connection.send({ type: 'response.cancel', response_id: response.id });
    const ended = (await connection.receiveUntil('response.incomplete')).at(-1).response;
    assert.deepEqual(ended.incomplete_details, { reason: 'cancelled' });
    await connection.runResponse({ input: 'and?', previous_response_id: response.id });
    connection.close();
  },

  async a_response_is_steered(client) {
    const connection = client.connectResponses();
    connection.send({ type: 'response.create', input: 'hello', ...LONG });
    const { id } = (await connection.receiveUntil('response.output_text.delta'))[0].response;
    const input = [{ role: 'user', content: 'Rather say goodbye.' }];
    connection.send({ type: 'response.steer', previous_response_id: id, input });
    const events = await connection.receiveUntil('response.incomplete');
    const accepted = events.find(({ type }) => type === 'response.steer.accepted');
    assert.equal(accepted.steer.previous_response_id, id);
    assert.deepEqual(events.at(-1).response.incomplete_details, { reason: 'steered' });
    const [created] = await connection.receiveUntil('response.output_text.delta');
    assert.equal(created.response.previous_response_id, id);
    connection.send({ type: 'response.cancel' });
    await connection.receiveUntil('response.incomplete');
    connection.send({ type: 'response.steer', previous_response_id: id, input: 'too late' });
    const failed = await connection.expect('response.steer.failed');
    assert.equal(failed.error.code, 'response_already_completed');
    assert.equal(failed.steer.input, 'too late');
    connection.close();
  },

  async lanes_beside_each_other(client) {
    const connection = client.connectResponses();
    const started = await connection.runResponse({ input: 'hello', max_output_tokens: 8 });
    const first = started.at(-1).response;
    const streams = { a: [], b: [], c: [] };
    for (const stream_id of Object.keys(streams)) {
      const body = { input: stream_id, previous_response_id: first.id, max_output_tokens: 12 };
      connection.send({ type: 'response.create', stream_id, ...body });
    }
    while (!Object.values(streams).every((events) => ENDS.includes(events.at(-1)?.type))) {
      const event = await connection.recv();
      streams[event.stream_id].push(event);
    }
    for (const events of Object.values(streams)) {
      assert.deepEqual(
        events.map((event) => event.sequence_number),
        [...events.keys()],
      );
    }
    connection.close();
  },

  async a_warm_up_is_prefilled(client) {
    const connection = client.connectResponses();
    const fields = { instructions: 'Be brief. '.repeat(20), tools: [WEATHER] };
    for (const input of [[], 'Hello there.']) {
      const events = await connection.runResponse({ input, generate: false, ...fields });
      assert.deepEqual(kinds(events), [
        'response.created',
        'response.in_progress',
        'response.completed',
      ]);
      const { id, output, usage } = events.at(-1).response;
      assert.deepEqual(output, []);
      assert(usage.input_tokens > 0, 'instructions and tools at least');
      const body = { input: 'hello', previous_response_id: id, max_output_tokens: 24, ...fields };
      const later = (await connection.runResponse(body)).at(-1).response.usage;
      assert(later.input_tokens > usage.input_tokens);
      const { cached_tokens: cached } = later.input_tokens_details;
      assert(cached >= usage.input_tokens, 'the warm-up was in KV');
    }
    connection.close();
  },

  async a_response_calls_a_tool(client) {
    const connection = client.connectResponses();
    const fields = { tools: [WEATHER, { type: 'web_search' }] };
    const body = { input: 'What is the weather in Rome?', ...fields };
    const events = await connection.runResponse({ ...body, metadata: { turn: '1' } });
    const { id, output } = events.at(-1).response;
    const [call] = output;
    assert.deepEqual([call.name, JSON.parse(call.arguments)], ['get_weather', { city: 'Rome' }]);
    const result = JSON.stringify({ condition: 'sunny', temperature: 21 });
    const outputs = [{ type: 'function_call_output', call_id: call.call_id, output: result }];
    const limits = { previous_response_id: id, max_output_tokens: 60 };
    const successor = { input: outputs, ...limits, ...fields };
    const answer = textOf((await connection.runResponse(successor)).at(-1).response);
    assert(answer.includes('21') || answer.includes('sunny'), answer);
    connection.close();
  },

  async steering_waits_for_what_a_call_gives(client) {
    const fields = { tools: [TAKE_NOTE] };
    const connection = client.connectResponses();
    const body = { input: 'Take a note.', tool_choice: 'required', ...fields };
    connection.send({ type: 'response.create', ...body });
    const [created] = await connection.receiveUntil('response.function_call_arguments.delta');
    const { id } = created.response;
    connection.send({ type: 'response.steer', previous_response_id: id, input: 'In one word.' });
    const events = await connection.receiveUntil('response.completed');
    assert(events.some(({ type }) => type === 'response.steer.accepted'));
    const { required_input } = await connection.expect('response.steer.pending');
    const [owed] = required_input;
    assert.deepEqual([owed.type, owed.name], ['function_call_output', 'take_note']);
    const outputs = [{ ...owed, output: 'taken' }];
    const limits = { previous_response_id: id, max_output_tokens: 24 };
    const successor = { input: outputs, ...limits, ...fields };
    const { response } = (await connection.runResponse(successor)).at(-1);
    assert.equal(response.previous_response_id, id);
    connection.close();
  },

  async what_cannot_steer_comes_back(client) {
    const connection = client.connectResponses();
    const steer = (previous_response_id, input) =>
      connection.send({ type: 'response.steer', previous_response_id, input });
    const failed = async (count = 1) => {
      const codes = [];
      while (codes.length < count) {
        const event = await connection.recv();
        if (event.type === 'response.steer.failed') codes.push(event.error.code);
      }
      return codes;
    };
    connection.send({ type: 'response.create', input: 'hello', ...LONG });
    let { id } = (await connection.receiveUntil('response.output_text.delta'))[0].response;
    steer('resp_no', 'x');
    assert.deepEqual(await failed(), ['response_not_found']);
    const url = 'https://example.org/a.png';
    const content = [{ type: 'input_image', image_url: url, detail: 'auto' }];
    steer(id, [{ type: 'message', role: 'user', content }]);
    assert.deepEqual(await failed(), ['invalid_input']);
    steer(id, 'word '.repeat(5000));
    assert.deepEqual(await failed(), ['successor_creation_failed']);
    steer(id, 'x');
    assert.deepEqual(await failed(), ['response_already_completed']);
    const fields = { tools: [TAKE_NOTE], tool_choice: 'required' };
    connection.send({ type: 'response.create', input: 'Take a note.', ...fields });
    const [created] = await connection.receiveUntil('response.function_call_arguments.delta');
    ({ id } = created.response);
    for (let n = 0; n < 17; n += 1) steer(id, 'In one word.');
    assert.deepEqual(await failed(), ['too_many_pending_steers']);
    connection.send({ type: 'response.cancel', response_id: id });
    assert.deepEqual(await failed(16), Array(16).fill('response_not_active'));
    await connection.runResponse({ input: 'hi', max_output_tokens: 4 });
    connection.close();
  },

  async lanes_have_a_bound(client) {
    const connection = client.connectResponses();
    connection.send({ type: 'response.create', input: 'hello', stream_id: 'lane 0', ...LONG });
    const { id } = (await connection.receiveUntil('response.output_text.delta'))[0].response;
    const fields = { previous_response_id: id, input: 'and?', max_output_tokens: 1 };
    for (let n = 1; n <= 32; n += 1) {
      // Queued behind the first response.
      connection.send({ type: 'response.create', stream_id: `lane ${n}`, ...fields });
    }
    const ended = new Set();
    while (ended.size < 32) {
      const event = await connection.recv();
      if (ENDS.includes(event.type)) ended.add(event.stream_id);
      if (event.type === 'error') {
        assert.equal(event.error.code, 'websocket_stream_limit_reached');
        assert.deepEqual([event.status, event.stream_id], [400, 'lane 32']);
        connection.send({ type: 'response.cancel', response_id: id });
      }
    }
    assert(!ended.has('lane 32'));
    await connection.runResponse({ input: 'hi', max_output_tokens: 4 });
    connection.close();
  },

  async refused_responses_leave_the_connection_good(client) {
    const connection = client.connectResponses();
    for (const [body, code] of [
      [{ input: 'x', previous_response_id: 'resp_no' }, 'previous_response_not_found'],
      [{ input: 'word '.repeat(5000) }, 'context_length_exceeded'],
      [{ input: [{ type: 'computer_call' }] }, 'invalid_value'],
      [{ input: 'x', temperature: 3 }, 'decimal_above_max_value'],
    ]) {
      connection.send({ type: 'response.create', ...body });
      const error = await connection.expect('error');
      assert.deepEqual([error.status, error.error.code], [400, code]);
    }
    connection.send({ type: 'response.cancel', response_id: 'resp_no' });
    assert.equal((await connection.expect('error')).error.code, 'response_not_active');
    await connection.runResponse({ input: 'hi', max_output_tokens: 4 });
    connection.close();
  },

  async what_agents_send_unasked_is_accepted(client) {
    const connection = client.connectResponses();
    const events = await connection.runResponse({
      input: [
        { role: 'developer', content: 'Be brief.' },
        { role: 'user', content: 'hello' },
        { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'AAAA' },
        { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
        { type: 'function_call_output', id: 'fco_1', call_id: 'c', output: '1' },
      ],
      max_output_tokens: 24,
      stream: true,
      background: false,
      store: true,
      include: ['reasoning.encrypted_content'],
      reasoning: { effort: 'low' },
      prompt_cache_key: 'thread',
      service_tier: 'auto',
      text: { verbosity: 'low' },
      parallel_tool_calls: true,
      tool_choice: 'auto',
      temperature: 0,
      top_p: 1,
      truncation: 'auto',
      tools: [
        { type: 'namespace', name: 'n', description: '', tools: [] },
        { type: 'web_search' },
      ],
    });
    const { id, tools } = events.at(-1).response;
    assert.deepEqual(tools, []);
    const input = [
      { type: 'item_reference', id: 'fco_1' },
      { role: 'user', content: 'so?' },
    ];
    const client_metadata = { thread: '1' };
    await connection.runResponse({ input, previous_response_id: id, client_metadata });
    connection.close();
  },

  async a_responses_text_follows_a_schema(client) {
    const schema = {
      type: 'object',
      properties: { city: { enum: ['Rome', 'Paris'] } },
      required: ['city'],
      additionalProperties: false,
    };
    const format = { type: 'json_schema', name: 'city', schema, strict: true };
    const connection = client.connectResponses();
    const body = { input: 'Where is the Colosseum?', text: { format }, max_output_tokens: 60 };
    const { response } = (await connection.runResponse(body)).at(-1);
    assert(['Rome', 'Paris'].includes(JSON.parse(textOf(response)).city));
    assert.equal(response.text.format.name, 'city');
    connection.close();
  },

  async a_response_over_http(client) {
    const { responses } = client.api;
    const first = await responses.create({ model: 'demo', input: 'hello' });
    assert(first.output_text);
    const stream = await responses.create({
      model: 'demo',
      input: 'and now?',
      previous_response_id: first.id,
      stream: true,
    });
    const events = [];
    for await (const event of stream) events.push(event);
    const { id, usage } = events.at(-1).response;
    assert(usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
    const later = [];
    for await (const event of await responses.retrieve(id, { stream: true, starting_after: 5 })) {
      later.push(event);
    }
    assert.deepEqual(later, events.slice(6));
    await responses.delete(id);
    await assert.rejects(responses.retrieve(id), OpenAI.NotFoundError);
  },

  async a_chat_completion(client) {
    const messages = [{ role: 'user', content: 'hello' }];
    const { completions } = client.api.chat;
    const whole = await completions.create({ model: 'demo', messages });
    let text = '';
    for await (const chunk of await completions.create({ model: 'demo', messages, stream: true })) {
      text += chunk.choices[0].delta.content ?? '';
    }
    assert.equal(text, whole.choices[0].message.content);
  },

  async models_are_listed(client) {
    const models = [];
    for await (const model of client.api.models.list()) models.push(model.id);
    assert.deepEqual(models, ['demo']);
    await assert.rejects(client.api.models.retrieve('gpt-9'), OpenAI.NotFoundError);
  },
};
