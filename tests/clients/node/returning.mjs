// Receives one response with the unmodified SDK, resuming the session after each disconnect:
// node returning.mjs URL KEY SEED
//
// Prints each event as a line of JSON when it arrives.

import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { user } from './connections.mjs';

const [url, key, seed] = process.argv.slice(2);
let session, last;

/** The URL of the first connection and of each reconnection. */
function buildRealtimeURL({ baseURL }, { model }) {
  const target = new URL(`${baseURL.replace(/^https/, 'wss')}/realtime`);
  target.searchParams.set('model', model);
  if (session) {
    target.searchParams.set('session_id', session);
    target.searchParams.set('last_event_id', last);
  }
  return target;
}

const connection = new OpenAIRealtimeWS(
  {
    model: 'demo',
    reconnect: true,
    maxReconnectAttempts: 100,
    reconnectInitialDelay: 50,
    reconnectMaxDelay: 500,
    buildRealtimeURL,
  },
  new OpenAI({ baseURL: url, apiKey: key }),
);
connection.on('error', (error) => process.stderr.write(`${error.message}\n`));
connection.on('event', (event) => {
  last = event.event_id;
  process.stdout.write(`${JSON.stringify(event)}\n`, () => {
    if (event.type === 'response.done') process.exit(0);
  });
  if (event.type === 'session.created') {
    session = event.session.id;
    const item = user('Tell me a short story.');
    connection.send({ type: 'conversation.item.create', item, event_id: 'mine-1' });
    const response = { max_output_tokens: 200, ignore_eos: true, temperature: 0.8 };
    response.seed = Number(seed);
    connection.send({ type: 'response.create', response, event_id: 'mine-2' });
  }
});
