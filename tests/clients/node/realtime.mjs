// Flows of the Realtime API over a WebSocket.

import assert from 'node:assert/strict';
import { kinds, textOf, user, WEATHER } from './connections.mjs';

async function addItem(connection, item) {
  connection.send({ type: 'conversation.item.create', item });
  const added = await connection.expect('conversation.item.added');
  for (const key of Object.keys(item)) assert.deepEqual(added.item[key], item[key]);
  await connection.expect('conversation.item.done');
}

export const realtime = {
  async text_turn_in_canonical_order(client) {
    const connection = await client.connectRealtime();
    const session = { type: 'realtime', output_modalities: ['text'], instructions: 'Be kind.' };
    connection.send({ type: 'session.update', session });
    const updated = await connection.expect('session.updated');
    assert.equal(updated.session.instructions, 'Be kind.');
    assert.equal(updated.session.audio.input.turn_detection, null);
    await connection.addMessage('hello there');
    const metadata = { topic: 'greeting' };
    const events = await connection.createResponse({ max_output_tokens: 20, metadata });
    assert.deepEqual(kinds(events), [
      'response.created',
      'response.output_item.added',
      'conversation.item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'conversation.item.done',
      'response.done',
    ]);
    const done = events.at(-1).response;
    assert.deepEqual(done.metadata, { topic: 'greeting' });
    assert.equal(events.map(({ delta = '' }) => delta).join(''), textOf(done));
    connection.close();
  },

  async the_second_turn_reuses_the_first(client) {
    const connection = await client.connectRealtime();
    const first = await connection.runTurn('hello', { max_output_tokens: 8 });
    const { total_tokens: spent } = first.usage;
    const { usage } = await connection.runTurn('and now?', { max_output_tokens: 8 });
    assert(usage.input_token_details.cached_tokens >= spent - 1);
    connection.close();
  },

  async cancel_in_the_middle_of_an_answer(client) {
    const connection = await client.connectRealtime();
    await connection.addMessage('tell me a story');
    connection.send({ type: 'response.create', response: { ignore_eos: true } });
    await connection.receiveUntil('response.output_text.delta');
    connection.send({ type: 'response.cancel' });
    const { response } = (await connection.receiveUntil('response.done')).at(-1);
    assert.equal(response.status, 'cancelled');
    assert.deepEqual(response.status_details, { type: 'cancelled', reason: 'client_cancelled' });
    await connection.expect('rate_limits.updated');
    await connection.checkUsable();
    connection.close();
  },

  async cancel_when_nothing_runs(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'response.cancel', event_id: 'c1' });
    const error = await connection.expectError();
    assert.deepEqual([error.code, error.event_id], ['response_cancel_not_active', 'c1']);
    await connection.checkUsable();
    connection.close();
  },

  async barge_in_keeps_what_was_heard(client) {
    const connection = await client.connectRealtime();
    await connection.addMessage('tell me a long story');
    connection.send({ type: 'response.create', response: { ignore_eos: true } });
    const events = await connection.receiveUntil('response.output_text.delta');
    const length = () => events.map(({ delta = '' }) => delta).join('').length;
    while (length() < 40) events.push(await connection.recv());
    const { item_id } = events.at(-1);
    connection.send({ type: 'response.cancel' });
    const range = { content_index: 0, text_end: 17 };
    connection.send({ type: 'conversation.item.truncate', item_id, ...range });
    events.push(...(await connection.receiveUntil('rate_limits.updated')));
    assert.equal((await connection.expect('conversation.item.truncated')).text_end, 17);
    connection.send({ type: 'conversation.item.retrieve', item_id });
    const { item } = await connection.expect('conversation.item.retrieved');
    const text = events.map(({ delta = '' }) => delta).join('');
    assert.deepEqual(item.content, [{ type: 'output_text', text: text.slice(0, 17) }]);
    await connection.checkUsable();
    connection.close();
  },

  async items_keep_their_ids_and_places(client) {
    const connection = await client.connectRealtime();
    assert.equal((await connection.addMessage('two', { id: 'item_two' })).previous_item_id, null);
    for (const [after, id, previous] of [
      ['root', 'item_one', null],
      [undefined, 'item_four', 'item_two'],
      ['item_two', 'item_three', 'item_two'],
    ]) {
      const item = user(id, { id });
      connection.send({ type: 'conversation.item.create', item, previous_item_id: after });
      const added = await connection.expect('conversation.item.added');
      assert.deepEqual([added.item.id, added.previous_item_id], [id, previous]);
      await connection.expect('conversation.item.done');
    }
    connection.send({ type: 'conversation.item.retrieve', item_id: 'item_three' });
    const { item } = await connection.expect('conversation.item.retrieved');
    assert.deepEqual(item.content, [{ type: 'input_text', text: 'item_three' }]);
    connection.send({ type: 'conversation.item.delete', item_id: 'item_one' });
    assert.equal((await connection.expect('conversation.item.deleted')).item_id, 'item_one');
    connection.send({ type: 'conversation.item.retrieve', item_id: 'item_one', event_id: 'r1' });
    const error = await connection.expectError();
    assert.deepEqual([error.code, error.event_id], ['item_retrieve_invalid_item_id', 'r1']);
    await connection.checkUsable();
    connection.close();
  },

  async a_tool_is_called_and_its_result_used(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'session.update', session: { type: 'realtime', tools: [WEATHER] } });
    assert.deepEqual((await connection.expect('session.updated')).session.tools, [WEATHER]);
    await connection.addMessage('What is the weather in Rome?');
    const events = await connection.createResponse();
    const [call] = events.at(-1).response.output;
    const of = (type) => events.filter((event) => event.type === type);
    const deltas = of('response.function_call_arguments.delta').map(({ delta }) => delta);
    assert.equal(call.arguments, deltas.join(''));
    assert.deepEqual(JSON.parse(call.arguments), { city: 'Rome' });
    assert.equal(of('response.function_call_arguments.done')[0].name, 'get_weather');
    const output = JSON.stringify({ condition: 'sunny', temperature: 21 });
    const item = { type: 'function_call_output', call_id: call.call_id, output };
    connection.send({ type: 'conversation.item.create', item });
    await connection.expect('conversation.item.added', 'conversation.item.done');
    const answer = textOf((await connection.createResponse()).at(-1).response);
    assert(answer.includes('21') || answer.includes('sunny'), answer);
    connection.close();
  },

  async a_response_beside_the_conversation(client) {
    const connection = await client.connectRealtime();
    await connection.addMessage('hello');
    const events = await connection.createResponse({
      conversation: 'none',
      input: [user('what is this about?')],
      metadata: { purpose: 'label' },
      max_output_tokens: 4,
    });
    assert(!events.some(({ type }) => type.startsWith('conversation.')));
    const done = events.at(-1).response;
    assert.equal(done.conversation_id, null);
    assert.deepEqual(done.metadata, { purpose: 'label' });
    connection.close();
  },

  async input_text_buffer_becomes_a_message(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'input_text_buffer.append', text: 'wreck a nice' });
    connection.send({ type: 'input_text_buffer.replace', text: 'recognise speech' });
    await connection.expect('input_text_buffer.appended');
    assert.equal((await connection.expect('input_text_buffer.appended')).length, 16);
    connection.send({ type: 'input_text_buffer.commit' });
    const { item_id } = await connection.expect('input_text_buffer.committed');
    const { item } = await connection.expect('conversation.item.added');
    assert.equal(item.id, item_id);
    assert.deepEqual(item.content, [{ type: 'input_text', text: 'recognise speech' }]);
    await connection.expect('conversation.item.done');
    await connection.createResponse({ max_output_tokens: 2 });
    connection.close();
  },

  async audio_events_are_answered(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'input_audio_buffer.append', audio: 'AAAA' });
    assert.equal((await connection.expectError()).code, 'audio_not_supported');
    connection.send({ type: 'input_audio_buffer.append', audio: 'AAAA' });
    connection.send({ type: 'input_audio_buffer.clear' });
    await connection.expect('input_audio_buffer.cleared');
    connection.send({ type: 'input_audio_buffer.commit', event_id: 'a1' });
    const error = await connection.expectError();
    assert.deepEqual([error.code, error.event_id], ['input_audio_buffer_commit_empty', 'a1']);
    connection.send({ type: 'output_audio_buffer.clear' });
    await connection.checkUsable();
    connection.close();
  },

  async bad_input_is_an_error_that_names_the_field(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'response.create', event_id: 'bad', response: { temperature: 2.5 } });
    const error = await connection.expectError();
    assert.deepEqual([error.param, error.event_id], ['response.temperature', 'bad']);
    await connection.checkUsable();
    connection.close();
  },

  async session_close_ends_the_session(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'session.close' });
    assert.equal((await connection.expect('session.closed')).reason, 'client_request');
    assert.equal(await connection.closeCode(), 1000);
  },

  async a_browser_with_a_client_secret(client) {
    const session = { type: 'realtime', instructions: 'Be kind.', max_output_tokens: 3 };
    const secret = await client.api.realtime.clientSecrets.create({ session });
    assert(secret.value.startsWith('ek_'));
    const connection = await client.browse(secret.value);
    assert.equal(connection.sdk.socket.protocol, 'realtime');
    assert((await connection.runTurn('hello')).usage.output_tokens <= 3);
    connection.close();
  },

  async a_wrong_key(client) {
    await assert.rejects(client.as('sk-wrong').connectRealtime(), /401/);
  },

  async an_unknown_model(client) {
    await assert.rejects(client.connectRealtime('gpt-9'), /model_not_found/);
  },

  async what_clients_send_unasked_is_accepted(client) {
    const connection = await client.connectRealtime();
    const session = {
      type: 'realtime',
      model: 'gpt-realtime-2.1',
      output_modalities: ['audio'],
      audio: {
        input: { turn_detection: { type: 'server_vad', interrupt_response: true } },
        output: { voice: 'marin', speed: 1.2 },
      },
      instructions: 'Be kind.',
      tools: [],
      tracing: 'auto',
      truncation: { type: 'retention_ratio', retention_ratio: 0.8 },
      prompt: null,
      include: [],
      reasoning: { effort: 'low' },
      tool_choice: 'auto',
      parallel_tool_calls: false,
      max_output_tokens: 'inf',
      a_key_of_tomorrow: { deep: [1, 2] },
    };
    connection.send({ type: 'session.update', session });
    const updated = (await connection.expect('session.updated')).session;
    assert.equal(updated.audio.input.turn_detection, null);
    assert.equal(updated.audio.output.voice, 'marin');
    assert.deepEqual(updated.output_modalities, ['text']);
    assert.deepEqual(updated.truncation, { type: 'retention_ratio', retention_ratio: 0.8 });
    assert.equal(updated.model, 'demo');
    await connection.checkUsable();
    connection.close();
  },

  async what_clients_wish_of_a_response_is_accepted(client) {
    const connection = await client.connectRealtime();
    await connection.addMessage('hello', { role: 'system' });
    await connection.addMessage('hello');
    const { response } = (
      await connection.createResponse({
        conversation: 'auto',
        instructions: null,
        metadata: { topic: 'greeting' },
        output_modalities: ['audio'],
        tools: [],
        tool_choice: 'none',
        max_output_tokens: 3,
        parallel_tool_calls: true,
        audio: { output: { voice: 'marin' } },
        prompt: null,
        reasoning: { effort: 'low' },
        a_key_of_tomorrow: [1],
      })
    ).at(-1);
    assert.deepEqual(response.metadata, { topic: 'greeting' });
    assert.deepEqual(response.output_modalities, ['text']);
    const content = [{ type: 'output_text', text: 'hello there' }];
    await addItem(connection, { type: 'message', role: 'assistant', content });
    await connection.checkUsable();
    connection.close();
  },

  async a_call_and_its_result_are_history(client) {
    const connection = await client.connectRealtime();
    const call = { call_id: 'call_1', name: 'get_weather', arguments: '{"city": "Rome"}' };
    await connection.addMessage('what is the weather in Rome?');
    await addItem(connection, { type: 'function_call', ...call });
    await addItem(connection, { type: 'function_call_output', call_id: 'call_1', output: 'sun' });
    const done = (await connection.createResponse({ max_output_tokens: 4 })).at(-1).response;
    assert(['completed', 'incomplete'].includes(done.status));
    connection.close();
  },

  async an_item_sent_twice_is_there_once(client) {
    const connection = await client.connectRealtime();
    const first = await connection.addMessage('hello', { id: 'item_a' });
    assert.deepEqual((await connection.addMessage('hello', { id: 'item_a' })).item, first.item);
    const item = user('other', { id: 'item_a' });
    connection.send({ type: 'conversation.item.create', item, event_id: 'e1' });
    const error = await connection.expectError();
    assert.deepEqual([error.code, error.event_id], ['item_create_duplicate_item_id', 'e1']);
    await connection.checkUsable();
    connection.close();
  },

  async a_second_response_is_refused(client) {
    const connection = await client.connectRealtime();
    await connection.addMessage('tell me a story');
    connection.send({ type: 'response.create', response: { ignore_eos: true } });
    await connection.receiveUntil('response.output_text.delta');
    connection.send({ type: 'response.create', event_id: 'second' });
    let event = await connection.recv();
    while (event.type !== 'error') event = await connection.recv();
    assert.equal(event.error.code, 'conversation_already_has_active_response');
    assert.equal(event.error.event_id, 'second');
    connection.send({ type: 'response.cancel' });
    await connection.receiveUntil('rate_limits.updated');
    await connection.checkUsable();
    connection.close();
  },

  async input_text_buffer_is_replaced_and_cleared(client) {
    const connection = await client.connectRealtime();
    connection.send({ type: 'input_text_buffer.append', text: 'wreck a nice' });
    connection.send({ type: 'input_text_buffer.replace', text: 'recognise' });
    await connection.expect('input_text_buffer.appended', 'input_text_buffer.appended');
    connection.send({ type: 'input_text_buffer.clear' });
    await connection.expect('input_text_buffer.cleared');
    connection.send({ type: 'input_text_buffer.commit', event_id: 'c1' });
    const error = await connection.expectError();
    assert.deepEqual([error.code, error.event_id], ['input_text_buffer_commit_empty', 'c1']);
    await connection.checkUsable();
    connection.close();
  },
};
