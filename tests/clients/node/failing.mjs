// What goes wrong, and what a client does then: each with a server that is made for it (see
// tests/clients/test_error_rows.py).

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { Client, textOf } from './talk.mjs';

/** What the model of the server `broken` cannot read. */
const BREAKS = '@@@@@@';

/** All that was said, for a connection that knows nothing of it. */
const HISTORY = [
  { role: 'user', content: 'hello' },
  { role: 'assistant', content: 'Hi.' },
  { role: 'user', content: 'and?' },
];
const ASKED = { model: 'demo', max_output_tokens: 4 };

async function refused(talk, body, status, code) {
  talk.send({ type: 'response.create', ...body });
  const error = await talk.expect('error');
  assert.deepEqual([error.status, error.error.code], [status, code]);
}

/** The status an upgrade is answered with. */
async function upgrade(client) {
  const talk = client.call();
  talk.note('C', 'GET /responses, to be a WebSocket');
  const error = await talk.recv().then(
    () => assert.fail('it was not refused'),
    (error) => error,
  );
  const status = /Unexpected server response: (\d+)/.exec(error.message)?.[1];
  assert(status, error.message);
  talk.note('S', status);
  return Number(status);
}

/** The error of what is refused over HTTP. */
async function denied(asking, status, code) {
  const error = await asking.then(
    () => assert.fail('it was not refused'),
    (error) => error,
  );
  assert.deepEqual([error.status, error.code], [status, code]);
  return error;
}

/** What clients do when a connection or its history is lost. */
async function allAgain(client) {
  const talk = client.call();
  await talk.respond({ ...ASKED, input: HISTORY });
  talk.close();
}

function failed(event) {
  const { response } = event;
  assert.deepEqual(
    [event.type, response.status, response.error.code, response.output],
    ['response.failed', 'failed', 'server_error', []],
  );
  return response;
}

const deltas = (events) =>
  events
    .filter(({ type }) => type === 'response.output_text.delta')
    .map(({ delta }) => delta)
    .join('');

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

/** By server, then by name. */
export const failing = {
  plain: {
    async a_response_nobody_knows(client) {
      const talk = client.call();
      const lost = { input: 'x', previous_response_id: 'resp_no' };
      await refused(talk, lost, 400, 'previous_response_not_found');
      await talk.respond({ ...ASKED, input: HISTORY });
      talk.close();
      await allAgain(client);
    },

    async a_key_that_is_wrong(client) {
      const stranger = client.as('sk-wrong');
      assert.equal(await upgrade(stranger), 401);
      const asking = stranger.api.responses.create({ ...ASKED, input: 'hello' });
      await denied(asking, 401, 'invalid_api_key');
    },

    async a_path_that_is_wrong(client) {
      const lost = client.at(client.api.baseURL.replace('/v1', '/v2'));
      assert.equal(await upgrade(lost), 404);
      await denied(lost.api.responses.create({ ...ASKED, input: 'hello' }), 404, 'not_found');
    },
  },

  brief: {
    async a_connection_at_its_end(client) {
      const talk = client.call();
      const error = await talk.expect('error');
      assert.deepEqual(
        [error.status, error.error.code],
        [400, 'websocket_connection_limit_reached'],
      );
      assert.equal(await talk.closed(), 1000);
      await allAgain(client);
    },
  },

  limited: {
    async a_tenant_at_its_limit(client) {
      const talk = client.call();
      await talk.respond({ ...ASKED, input: 'hello' });
      await refused(talk, { input: 'hello' }, 429, 'rate_limit_exceeded');
      await refused(talk, { input: 'hello' }, 429, 'rate_limit_exceeded');
      talk.close();
      const other = client.call(); // the upgrade is never answered so
      await refused(other, { input: 'hello' }, 429, 'rate_limit_exceeded');
      other.close();
      const { responses, chat } = client.api;
      const messages = [{ role: 'user', content: 'hello' }];
      for (const asking of [
        () => responses.create({ ...ASKED, input: 'hello' }),
        () => chat.completions.create({ model: 'demo', messages }),
      ]) {
        const error = await denied(asking(), 429, 'rate_limit_exceeded');
        assert(error instanceof OpenAI.RateLimitError);
        assert(Number(error.headers.get('retry-after')) > 60);
      }
    },
  },

  broken: {
    async a_fault_of_the_server(client) {
      const talk = client.call();
      const bug = { input: 'x', previous_response_id: 'resp_bug' };
      await refused(talk, bug, 500, 'server_error');
      await talk.respond({ ...ASKED, input: HISTORY });
      talk.close();
      await denied(client.api.responses.retrieve('resp_bug'), 500, 'server_error');
      await allAgain(client);
    },

    async a_response_that_fails(client) {
      const talk = client.call();
      const wish = { ...ASKED, instructions: 'Be kind.' };
      const first = (await talk.respond({ ...wish, input: 'hello' })).at(-1).response;
      const broken = { ...wish, input: BREAKS, previous_response_id: first.id };
      const { error } = failed((await talk.respond(broken)).at(-1));
      const again = { ...wish, input: 'and?', previous_response_id: first.id };
      const { usage } = (await talk.respond(again)).at(-1).response;
      assert(usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
      talk.close();
      const { responses } = client.api;
      const whole = await responses.create({ ...ASKED, input: BREAKS });
      assert.deepEqual([whole.status, whole.error], ['failed', error]);
      const events = await all(await responses.create({ ...ASKED, input: BREAKS, stream: true }));
      assert.deepEqual(failed(events.at(-1)).error, error);
    },

    async a_chat_completion_that_fails(client) {
      const { completions } = client.api.chat;
      const asked = { model: 'demo', messages: [{ role: 'user', content: BREAKS }] };
      await denied(completions.create(asked), 500, 'turn_failed');
      const stream = await completions.create({ ...asked, stream: true });
      await assert.rejects(all(stream), { code: 'turn_failed' });
    },
  },

  without_websockets: {
    async a_way_that_carries_no_websockets(client) {
      assert.equal(await upgrade(client), 426);
      const { responses } = client.api;
      const stream = await responses.create({ ...ASKED, input: HISTORY, stream: true });
      const first = (await all(stream)).at(-1).response;
      const on = { ...ASKED, input: 'so?', previous_response_id: first.id };
      const { usage } = await responses.create(on);
      assert(usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
    },
  },

  starting: {
    async a_server_that_is_not_ready(client) {
      assert.equal(await upgrade(client), 503);
      const asked = { ...ASKED, input: 'hello' };
      await denied(client.api.responses.create(asked), 503, 'server_not_ready');
      const again = await client.api.responses.create(asked, { maxRetries: 3 });
      assert(['completed', 'incomplete'].includes(again.status), 'the SDK comes back by itself');
    },
  },

  cut: {
    async a_connection_that_is_cut(client) {
      const talk = client.call();
      const wish = { input: 'hello', ignore_eos: true, max_output_tokens: 60 };
      talk.send({ type: 'response.create', ...wish });
      const events = await talk.until('response.output_text.delta');
      for (;;) {
        try {
          events.push(await talk.recv());
        } catch {
          break;
        }
      }
      assert.equal(await talk.closed(), 1006, 'without a word');
      const { id } = events[0].response;
      const after = events.at(-1).sequence_number;
      const wanted = { stream: true, starting_after: after };
      const later = await all(await client.api.responses.retrieve(id, wanted));
      assert.equal(later[0].sequence_number, after + 1);
      assert.equal(deltas(events) + deltas(later), textOf(later.at(-1).response));
      const on = client.call();
      await on.respond({ ...ASKED, input: 'and?', previous_response_id: id });
      on.close();
      await allAgain(client);
    },
  },
};
