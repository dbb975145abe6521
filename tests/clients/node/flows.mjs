// Conversations of openai-node: node flows.mjs URL KEY
//
// Prints a JSON object: of each flow what went wrong, or null, and its transcript.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { Client, ENDS, kinds, textOf, user } from './talk.mjs';

const WEATHER = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

/** A response that is not over before it is cancelled. */
const LONG = { ignore_eos: true, max_output_tokens: 1000 };

export const flows = {
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
    const wrong = new Client(client.api.baseURL, 'sk-wrong');
    await assert.rejects(wrong.talk(), /401/);
  },

  async an_unknown_model(client) {
    await assert.rejects(client.talk('gpt-9'), /model_not_found/);
  },

  async responses_go_on_from_each_other(client) {
    const talk = client.call();
    const events = await talk.respond({ input: 'hello', model: 'demo' });
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
    const { usage } = (await talk.respond(body)).at(-1).response;
    assert(usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
    talk.send({ type: 'response.create', input: 'x', previous_response_id: 'resp_none' });
    const error = await talk.expect('error');
    assert.deepEqual([error.status, error.error.code], [400, 'previous_response_not_found']);
    talk.close();
  },

  async a_response_is_cancelled(client) {
    const talk = client.call();
    talk.send({ type: 'response.create', input: 'tell me a story', ignore_eos: true });
    const { response } = (await talk.until('response.output_text.delta'))[0];
    talk.send({ type: 'response.cancel', response_id: response.id });
    const ended = (await talk.until('response.incomplete')).at(-1).response;
    assert.deepEqual(ended.incomplete_details, { reason: 'cancelled' });
    await talk.respond({ input: 'and?', previous_response_id: response.id });
    talk.close();
  },

  async a_response_is_steered(client) {
    const talk = client.call();
    talk.send({ type: 'response.create', input: 'hello', ...LONG });
    const { id } = (await talk.until('response.output_text.delta'))[0].response;
    const input = [{ role: 'user', content: 'Rather say goodbye.' }];
    talk.send({ type: 'response.steer', previous_response_id: id, input });
    const events = await talk.until('response.incomplete');
    const accepted = events.find(({ type }) => type === 'response.steer.accepted');
    assert.equal(accepted.steer.previous_response_id, id);
    assert.deepEqual(events.at(-1).response.incomplete_details, { reason: 'steered' });
    const [created] = await talk.until('response.output_text.delta');
    assert.equal(created.response.previous_response_id, id);
    talk.send({ type: 'response.cancel' });
    await talk.until('response.incomplete');
    talk.close();
  },

  async lanes_beside_each_other(client) {
    const talk = client.call();
    const first = (await talk.respond({ input: 'hello', max_output_tokens: 8 })).at(-1).response;
    const lanes = { a: [], b: [], c: [] };
    for (const stream_id of Object.keys(lanes)) {
      const body = { input: stream_id, previous_response_id: first.id, max_output_tokens: 12 };
      talk.send({ type: 'response.create', stream_id, ...body });
    }
    while (!Object.values(lanes).every((lane) => ENDS.includes(lane.at(-1)?.type))) {
      const event = await talk.recv();
      lanes[event.stream_id].push(event);
    }
    for (const lane of Object.values(lanes)) {
      assert.deepEqual(
        lane.map((event) => event.sequence_number),
        [...lane.keys()],
      );
    }
    talk.close();
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
    let said = '';
    for await (const chunk of await completions.create({ model: 'demo', messages, stream: true })) {
      said += chunk.choices[0].delta.content ?? '';
    }
    assert.equal(said, whole.choices[0].message.content);
  },

  async models_are_listed(client) {
    const models = [];
    for await (const model of client.api.models.list()) models.push(model.id);
    assert.deepEqual(models, ['demo']);
    await assert.rejects(client.api.models.retrieve('gpt-9'), OpenAI.NotFoundError);
  },
};

const [url, key] = process.argv.slice(2);
const told = {};
for (const [name, run] of Object.entries(flows)) {
  const client = new Client(url, key);
  let problem = null;
  try {
    await run(client);
  } catch (error) {
    problem = error.stack;
  }
  told[name] = { problem, transcript: client.transcript };
}
process.stdout.write(JSON.stringify(told), () => process.exit(0));
