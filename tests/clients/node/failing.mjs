// Flows of failures and what a client does then, each with a server made for it in
// tests/clients/test_error_rows.py.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { Client, textOf } from './connections.mjs';

/** A text with which a step of the server `broken` fails. */
const BREAKS = '@@@@@@';

/** The whole conversation, for a connection without it. */
const HISTORY = [
  { role: 'user', content: 'hello' },
  { role: 'assistant', content: 'Hi.' },
  { role: 'user', content: 'and?' },
];
const SHORT = { model: 'demo', max_output_tokens: 4 };

async function refused(connection, body, status, code) {
  connection.send({ type: 'response.create', ...body });
  const error = await connection.expect('error');
  assert.deepEqual([error.status, error.error.code], [status, code]);
}

/** The HTTP status that refuses the upgrade. */
async function upgrade(client) {
  const connection = client.connectResponses();
  connection.record('C', 'GET /responses, to be a WebSocket');
  const error = await connection.recv().then(
    () => assert.fail('the request was not refused'),
    (error) => error,
  );
  const status = /Unexpected server response: (\d+)/.exec(error.message)?.[1];
  assert(status, error.message);
  connection.record('S', status);
  return Number(status);
}

/** The error of a request that is refused over HTTP. */
async function denied(request, status, code) {
  const error = await request.then(
    () => assert.fail('the request was not refused'),
    (error) => error,
  );
  assert.deepEqual([error.status, error.code], [status, code]);
  return error;
}

/** Sends the whole conversation on a new connection, as clients do after a loss. */
async function sendWholeHistory(client) {
  const connection = client.connectResponses();
  await connection.runResponse({ ...SHORT, input: HISTORY });
  connection.close();
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

/** The flows by server and name. */
export const failing = {
  plain: {
    async a_response_nobody_knows(client) {
      const connection = client.connectResponses();
      const unknown = { input: 'x', previous_response_id: 'resp_no' };
      await refused(connection, unknown, 400, 'previous_response_not_found');
      await connection.runResponse({ ...SHORT, input: HISTORY });
      connection.close();
      await sendWholeHistory(client);
    },

    async a_key_that_is_wrong(client) {
      const stranger = client.as('sk-wrong');
      assert.equal(await upgrade(stranger), 401);
      const request = stranger.api.responses.create({ ...SHORT, input: 'hello' });
      await denied(request, 401, 'invalid_api_key');
    },

    async a_path_that_is_wrong(client) {
      const wrongPath = client.at(client.api.baseURL.replace('/v1', '/v2'));
      assert.equal(await upgrade(wrongPath), 404);
      await denied(wrongPath.api.responses.create({ ...SHORT, input: 'hello' }), 404, 'not_found');
    },
  },

  brief: {
    async a_connection_at_its_end(client) {
      const connection = client.connectResponses();
      const error = await connection.expect('error');
      assert.deepEqual(
        [error.status, error.error.code],
        [400, 'websocket_connection_limit_reached'],
      );
      assert.equal(await connection.closeCode(), 1000);
      await sendWholeHistory(client);
    },
  },

  limited: {
    async a_tenant_at_its_limit(client) {
      const connection = client.connectResponses();
      await connection.runResponse({ ...SHORT, input: 'hello' });
      await refused(connection, { input: 'hello' }, 429, 'rate_limit_exceeded');
      await refused(connection, { input: 'hello' }, 429, 'rate_limit_exceeded');
      connection.close();
      const other = client.connectResponses(); // the upgrade itself is not limited
      await refused(other, { input: 'hello' }, 429, 'rate_limit_exceeded');
      other.close();
      const { responses, chat } = client.api;
      const messages = [{ role: 'user', content: 'hello' }];
      for (const request of [
        () => responses.create({ ...SHORT, input: 'hello' }),
        () => chat.completions.create({ model: 'demo', messages }),
      ]) {
        const error = await denied(request(), 429, 'rate_limit_exceeded');
        assert(error instanceof OpenAI.RateLimitError);
        assert(Number(error.headers.get('retry-after')) > 60);
      }
    },
  },

  broken: {
    async a_fault_of_the_server(client) {
      const connection = client.connectResponses();
      const bug = { input: 'x', previous_response_id: 'resp_bug' };
      await refused(connection, bug, 500, 'server_error');
      await connection.runResponse({ ...SHORT, input: HISTORY });
      connection.close();
      await denied(client.api.responses.retrieve('resp_bug'), 500, 'server_error');
      await sendWholeHistory(client);
    },

    async a_response_that_fails(client) {
      const connection = client.connectResponses();
      const fields = { ...SHORT, instructions: 'Be kind.' };
      const first = (await connection.runResponse({ ...fields, input: 'hello' })).at(-1).response;
      const broken = { ...fields, input: BREAKS, previous_response_id: first.id };
      const { error } = failed((await connection.runResponse(broken)).at(-1));
      const second = { ...fields, input: 'and?', previous_response_id: first.id };
      const { usage } = (await connection.runResponse(second)).at(-1).response;
      assert(usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
      connection.close();
      const { responses } = client.api;
      const whole = await responses.create({ ...SHORT, input: BREAKS });
      assert.deepEqual([whole.status, whole.error], ['failed', error]);
      const events = await all(await responses.create({ ...SHORT, input: BREAKS, stream: true }));
      assert.deepEqual(failed(events.at(-1)).error, error);
    },

    async a_chat_completion_that_fails(client) {
      const { completions } = client.api.chat;
      const body = { model: 'demo', messages: [{ role: 'user', content: BREAKS }] };
      await denied(completions.create(body), 500, 'turn_failed');
      const stream = await completions.create({ ...body, stream: true });
      await assert.rejects(all(stream), { code: 'turn_failed' });
    },
  },

  without_websockets: {
    async a_way_that_carries_no_websockets(client) {
      assert.equal(await upgrade(client), 426);
      const { responses } = client.api;
      const stream = await responses.create({ ...SHORT, input: HISTORY, stream: true });
      const first = (await all(stream)).at(-1).response;
      const second = { ...SHORT, input: 'so?', previous_response_id: first.id };
      const { usage } = await responses.create(second);
      assert(usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
    },
  },

  starting: {
    async a_server_that_is_not_ready(client) {
      assert.equal(await upgrade(client), 503);
      const body = { ...SHORT, input: 'hello' };
      await denied(client.api.responses.create(body), 503, 'server_not_ready');
      const retried = await client.api.responses.create(body, { maxRetries: 3 });
      assert(['completed', 'incomplete'].includes(retried.status), 'the SDK retries by itself');
    },
  },

  cut: {
    async a_connection_that_is_cut(client) {
      const connection = client.connectResponses();
      const fields = { input: 'hello', ignore_eos: true, max_output_tokens: 60 };
      connection.send({ type: 'response.create', ...fields });
      const events = await connection.receiveUntil('response.output_text.delta');
      for (;;) {
        try {
          events.push(await connection.recv());
        } catch {
          break;
        }
      }
      assert.equal(await connection.closeCode(), 1006, 'cut without a close frame');
      const { id } = events[0].response;
      const after = events.at(-1).sequence_number;
      const options = { stream: true, starting_after: after };
      const later = await all(await client.api.responses.retrieve(id, options));
      assert.equal(later[0].sequence_number, after + 1);
      assert.equal(deltas(events) + deltas(later), textOf(later.at(-1).response));
      const other = client.connectResponses();
      await other.runResponse({ ...SHORT, input: 'and?', previous_response_id: id });
      other.close();
      await sendWholeHistory(client);
    },
  },
};
