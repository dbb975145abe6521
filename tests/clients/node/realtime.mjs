// The Realtime API: a conversation over a WebSocket.

import assert from 'node:assert/strict';
import { kinds, textOf, user, WEATHER } from './talk.mjs';

async function put(talk, item) {
  talk.send({ type: 'conversation.item.create', item });
  const added = await talk.expect('conversation.item.added');
  for (const key of Object.keys(item)) assert.deepEqual(added.item[key], item[key]);
  await talk.expect('conversation.item.done');
}

export const realtime = {
  async text_turn_in_canonical_order(client) {
    const talk = await client.talk();
    const session = { type: 'realtime', output_modalities: ['text'], instructions: 'Be kind.' };
    talk.send({ type: 'session.update', session });
    const updated = await talk.expect('session.updated');
    assert.equal(updated.session.instructions, 'Be kind.');
    assert.equal(updated.session.audio.input.turn_detection, null);
    await talk.say('hello there');
    const events = await talk.answer({ max_output_tokens: 20, metadata: { topic: 'greeting' } });
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
    talk.close();
  },

  async the_second_turn_reuses_the_first(client) {
    const talk = await client.talk();
    const { total_tokens: spent } = (await talk.ask('hello', { max_output_tokens: 8 })).usage;
    const { usage } = await talk.ask('and now?', { max_output_tokens: 8 });
    assert(usage.input_token_details.cached_tokens >= spent - 1);
    talk.close();
  },

  async cancel_in_the_middle_of_an_answer(client) {
    const talk = await client.talk();
    await talk.say('tell me a story');
    talk.send({ type: 'response.create', response: { ignore_eos: true } });
    await talk.until('response.output_text.delta');
    talk.send({ type: 'response.cancel' });
    const { response } = (await talk.until('response.done')).at(-1);
    assert.equal(response.status, 'cancelled');
    assert.deepEqual(response.status_details, { type: 'cancelled', reason: 'client_cancelled' });
    await talk.expect('rate_limits.updated');
    await talk.usable();
    talk.close();
  },

  async cancel_when_nothing_runs(client) {
    const talk = await client.talk();
    talk.send({ type: 'response.cancel', event_id: 'c1' });
    const error = await talk.error();
    assert.deepEqual([error.code, error.event_id], ['response_cancel_not_active', 'c1']);
    await talk.usable();
    talk.close();
  },

  async barge_in_keeps_what_was_heard(client) {
    const talk = await client.talk();
    await talk.say('tell me a long story');
    talk.send({ type: 'response.create', response: { ignore_eos: true } });
    const events = await talk.until('response.output_text.delta');
    const length = () => events.map(({ delta = '' }) => delta).join('').length;
    while (length() < 40) events.push(await talk.recv());
    const { item_id } = events.at(-1);
    talk.send({ type: 'response.cancel' });
    talk.send({ type: 'conversation.item.truncate', item_id, content_index: 0, text_end: 17 });
    events.push(...(await talk.until('rate_limits.updated')));
    assert.equal((await talk.expect('conversation.item.truncated')).text_end, 17);
    talk.send({ type: 'conversation.item.retrieve', item_id });
    const { item } = await talk.expect('conversation.item.retrieved');
    const said = events.map(({ delta = '' }) => delta).join('');
    assert.deepEqual(item.content, [{ type: 'output_text', text: said.slice(0, 17) }]);
    await talk.usable();
    talk.close();
  },

  async items_keep_their_ids_and_places(client) {
    const talk = await client.talk();
    assert.equal((await talk.say('two', { id: 'item_two' })).previous_item_id, null);
    for (const [after, id, previous] of [
      ['root', 'item_one', null],
      [undefined, 'item_four', 'item_two'],
      ['item_two', 'item_three', 'item_two'],
    ]) {
      const item = user(id, { id });
      talk.send({ type: 'conversation.item.create', item, previous_item_id: after });
      const added = await talk.expect('conversation.item.added');
      assert.deepEqual([added.item.id, added.previous_item_id], [id, previous]);
      await talk.expect('conversation.item.done');
    }
    talk.send({ type: 'conversation.item.retrieve', item_id: 'item_three' });
    const { item } = await talk.expect('conversation.item.retrieved');
    assert.deepEqual(item.content, [{ type: 'input_text', text: 'item_three' }]);
    talk.send({ type: 'conversation.item.delete', item_id: 'item_one' });
    assert.equal((await talk.expect('conversation.item.deleted')).item_id, 'item_one');
    talk.send({ type: 'conversation.item.retrieve', item_id: 'item_one', event_id: 'r1' });
    const error = await talk.error();
    assert.deepEqual([error.code, error.event_id], ['item_retrieve_invalid_item_id', 'r1']);
    await talk.usable();
    talk.close();
  },

  async a_tool_is_called_and_its_result_used(client) {
    const talk = await client.talk();
    talk.send({ type: 'session.update', session: { type: 'realtime', tools: [WEATHER] } });
    assert.deepEqual((await talk.expect('session.updated')).session.tools, [WEATHER]);
    await talk.say('What is the weather in Rome?');
    const events = await talk.answer();
    const [call] = events.at(-1).response.output;
    const of = (type) => events.filter((event) => event.type === type);
    const deltas = of('response.function_call_arguments.delta').map(({ delta }) => delta);
    assert.equal(call.arguments, deltas.join(''));
    assert.deepEqual(JSON.parse(call.arguments), { city: 'Rome' });
    assert.equal(of('response.function_call_arguments.done')[0].name, 'get_weather');
    const output = JSON.stringify({ condition: 'sunny', temperature: 21 });
    const item = { type: 'function_call_output', call_id: call.call_id, output };
    talk.send({ type: 'conversation.item.create', item });
    await talk.expect('conversation.item.added', 'conversation.item.done');
    const answer = textOf((await talk.answer()).at(-1).response);
    assert(answer.includes('21') || answer.includes('sunny'), answer);
    talk.close();
  },

  async a_response_beside_the_conversation(client) {
    const talk = await client.talk();
    await talk.say('hello');
    const events = await talk.answer({
      conversation: 'none',
      input: [user('what is this about?')],
      metadata: { purpose: 'label' },
      max_output_tokens: 4,
    });
    assert(!events.some(({ type }) => type.startsWith('conversation.')));
    const done = events.at(-1).response;
    assert.equal(done.conversation_id, null);
    assert.deepEqual(done.metadata, { purpose: 'label' });
    talk.close();
  },

  async input_text_buffer_becomes_a_message(client) {
    const talk = await client.talk();
    talk.send({ type: 'input_text_buffer.append', text: 'wreck a nice' });
    talk.send({ type: 'input_text_buffer.replace', text: 'recognise speech' });
    await talk.expect('input_text_buffer.appended');
    assert.equal((await talk.expect('input_text_buffer.appended')).length, 16);
    talk.send({ type: 'input_text_buffer.commit' });
    const { item_id } = await talk.expect('input_text_buffer.committed');
    const { item } = await talk.expect('conversation.item.added');
    assert.equal(item.id, item_id);
    assert.deepEqual(item.content, [{ type: 'input_text', text: 'recognise speech' }]);
    await talk.expect('conversation.item.done');
    await talk.answer({ max_output_tokens: 2 });
    talk.close();
  },

  async audio_events_are_answered(client) {
    const talk = await client.talk();
    talk.send({ type: 'input_audio_buffer.append', audio: 'AAAA' });
    talk.send({ type: 'input_audio_buffer.clear' });
    await talk.expect('input_audio_buffer.cleared');
    talk.send({ type: 'input_audio_buffer.commit', event_id: 'a1' });
    const error = await talk.error();
    assert.deepEqual([error.code, error.event_id], ['input_audio_buffer_commit_empty', 'a1']);
    talk.send({ type: 'output_audio_buffer.clear' });
    await talk.usable();
    talk.close();
  },

  async bad_input_is_an_error_that_names_the_field(client) {
    const talk = await client.talk();
    talk.send({ type: 'response.create', event_id: 'bad', response: { temperature: 2.5 } });
    const error = await talk.error();
    assert.deepEqual([error.param, error.event_id], ['response.temperature', 'bad']);
    await talk.usable();
    talk.close();
  },

  async session_close_ends_the_session(client) {
    const talk = await client.talk();
    talk.send({ type: 'session.close' });
    assert.equal((await talk.expect('session.closed')).reason, 'client_request');
    assert.equal(await talk.closed(), 1000);
  },

  async a_browser_with_a_client_secret(client) {
    const session = { type: 'realtime', instructions: 'Be kind.', max_output_tokens: 3 };
    const secret = await client.api.realtime.clientSecrets.create({ session });
    assert(secret.value.startsWith('ek_'));
    const talk = await client.browse(secret.value);
    assert.equal(talk.connection.socket.protocol, 'realtime');
    assert((await talk.ask('hello')).usage.output_tokens <= 3);
    talk.close();
  },

  async a_wrong_key(client) {
    await assert.rejects(client.as('sk-wrong').talk(), /401/);
  },

  async an_unknown_model(client) {
    await assert.rejects(client.talk('gpt-9'), /model_not_found/);
  },

  async what_clients_send_unasked_is_accepted(client) {
    const talk = await client.talk();
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
    talk.send({ type: 'session.update', session });
    const said = (await talk.expect('session.updated')).session;
    assert.equal(said.audio.input.turn_detection, null);
    assert.equal(said.audio.output.voice, 'marin');
    assert.deepEqual(said.output_modalities, ['text']);
    assert.deepEqual(said.truncation, { type: 'retention_ratio', retention_ratio: 0.8 });
    assert.equal(said.model, 'demo');
    await talk.usable();
    talk.close();
  },

  async what_clients_wish_of_a_response_is_accepted(client) {
    const talk = await client.talk();
    await talk.say('hello', { role: 'system' });
    await talk.say('hello');
    const { response } = (
      await talk.answer({
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
    await put(talk, { type: 'message', role: 'assistant', content });
    await talk.usable();
    talk.close();
  },

  async a_call_and_its_result_are_history(client) {
    const talk = await client.talk();
    const call = { call_id: 'call_1', name: 'get_weather', arguments: '{"city": "Rome"}' };
    await talk.say('what is the weather in Rome?');
    await put(talk, { type: 'function_call', ...call });
    await put(talk, { type: 'function_call_output', call_id: 'call_1', output: 'sun' });
    const done = (await talk.answer({ max_output_tokens: 4 })).at(-1).response;
    assert(['completed', 'incomplete'].includes(done.status));
    talk.close();
  },

  async an_item_sent_twice_is_there_once(client) {
    const talk = await client.talk();
    const first = await talk.say('hello', { id: 'item_a' });
    assert.deepEqual((await talk.say('hello', { id: 'item_a' })).item, first.item);
    const item = user('other', { id: 'item_a' });
    talk.send({ type: 'conversation.item.create', item, event_id: 'e1' });
    const error = await talk.error();
    assert.deepEqual([error.code, error.event_id], ['item_create_duplicate_item_id', 'e1']);
    await talk.usable();
    talk.close();
  },

  async a_second_response_is_refused(client) {
    const talk = await client.talk();
    await talk.say('tell me a story');
    talk.send({ type: 'response.create', response: { ignore_eos: true } });
    await talk.until('response.output_text.delta');
    talk.send({ type: 'response.create', event_id: 'second' });
    let event = await talk.recv();
    while (event.type !== 'error') event = await talk.recv();
    assert.equal(event.error.code, 'conversation_already_has_active_response');
    assert.equal(event.error.event_id, 'second');
    talk.send({ type: 'response.cancel' });
    await talk.until('rate_limits.updated');
    await talk.usable();
    talk.close();
  },

  async input_text_buffer_is_replaced_and_cleared(client) {
    const talk = await client.talk();
    talk.send({ type: 'input_text_buffer.append', text: 'wreck a nice' });
    talk.send({ type: 'input_text_buffer.replace', text: 'recognise' });
    await talk.expect('input_text_buffer.appended', 'input_text_buffer.appended');
    talk.send({ type: 'input_text_buffer.clear' });
    await talk.expect('input_text_buffer.cleared');
    talk.send({ type: 'input_text_buffer.commit', event_id: 'c1' });
    const error = await talk.error();
    assert.deepEqual([error.code, error.event_id], ['input_text_buffer_commit_empty', 'c1']);
    await talk.usable();
    talk.close();
  },
};
