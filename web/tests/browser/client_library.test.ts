/** The client library against a real server. */

import { afterAll, beforeAll, expect, it } from 'vitest';
import { WebSocket as Socket } from 'ws';
import {
  EventRefusedError,
  RealtimeClient,
  type RealtimeClientOptions,
  type ResumeOutcome,
  textOf,
} from '../../src/client/index.js';
import { Server } from './server.js';

const STORY = 'Tell me a short story.';
let server: Server;
beforeAll(async () => {
  server = await Server.start();
});
afterAll(async () => {
  await server.stop();
});

it.each([
  ['a dropped connection', (client: RealtimeClient) => client.reconnect('dropped by the test')],
  ['a killed server', () => server.kill().then(() => server.start())],
])('commits a draft, and continues its response after %s', async (_, fault) => {
  const expected = await runStory(new ObservedClient());
  const observed = new ObservedClient();
  const texts = await runStory(observed, fault);
  expect(texts).toEqual(expected);
  expect(observed.responseText).toBe(texts.at(-1));
  expect(observed.resumeOutcomes[0]).toBe('new');
  expect(new Set(observed.resumeOutcomes.slice(1))).toEqual(new Set(['exact']));
  expect(observed.responseRequests).toBe(1);
});

it('reports the field of a refused update, and changes nothing', async () => {
  const { client } = new ObservedClient();
  const refused = await client.updateSession({ temperature: 9 }).acknowledged.catch((e: unknown) => e);
  expect(refused).toBeInstanceOf(EventRefusedError);
  expect(refused).toMatchObject({ param: 'session.temperature' });
  await client.updateSession({ instructions: 'Be brief.' }).acknowledged;
  expect(client.session?.instructions).toBe('Be brief.');
  await client.closeSession();
});

/** A client whose events are recorded. */
class ObservedClient {
  readonly client: RealtimeClient;
  readonly resumeOutcomes: ResumeOutcome[] = [];
  responseRequests = 0;
  /** Concatenated deltas of all responses. */
  responseText = '';

  constructor() {
    this.client = new RealtimeClient({
      url: server.socketUrl,
      WebSocket: Socket as unknown as NonNullable<RealtimeClientOptions['WebSocket']>,
    });
    this.client.state.subscribe((state) => {
      if (state.phase === 'open') this.resumeOutcomes.push(state.resumeOutcome);
    });
    this.client.on('response.output_text.delta', ({ delta }) => (this.responseText += delta));
    this.client.onSent((event) => {
      if (event.type === 'response.create') this.responseRequests += 1;
    });
    this.client.connect();
  }
}

/** Request the story, run `midResponse` during the response, and return the texts of all items. */
async function runStory(
  { client }: ObservedClient,
  midResponse: (client: RealtimeClient) => unknown = () => undefined,
): Promise<string[]> {
  const done = new Promise((resolve) => client.on('response.done', resolve));
  const firstDelta = new Promise((resolve) => client.on('response.output_text.delta', resolve));
  for (let end = 1; end <= STORY.length; end += 1) client.draft.set(STORY.slice(0, end));
  await client.draft.commit().acknowledged;
  await client.createResponse().acknowledged;
  await firstDelta;
  await midResponse(client);
  await done;
  const texts = client.conversation.items.map(textOf);
  await client.closeSession();
  return texts;
}
