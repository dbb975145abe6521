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

it('asks, is interrupted, and goes on from what was read, though the server is killed', async () => {
  const { client } = new ObservedClient();
  const story = client.ask(STORY);
  for await (const _ of story) if (story.text.length > 20) break;
  await server.kill();
  await server.start();
  const kept = await story.interrupt({ keep: 20 });
  expect(kept).toBe(story.text);
  expect(client.conversation.items.map(textOf)).toEqual([STORY, kept]);
  const title = client.respond({ conversation: 'none', max_output_tokens: 8 });
  expect(await title).not.toBe('');
  expect(title.status).toBe('incomplete');
  expect(title.usage?.output_tokens).toBe(8);
  expect(client.conversation.items).toHaveLength(2);
  await client.deleteSession();
});

it('forks a conversation in whole and in part, and rewinds it', async () => {
  const { client } = new ObservedClient();
  expect(() => client.fork()).toThrow('no session');
  const texts = (one: RealtimeClient): string[] => one.conversation.items.map(textOf);
  await client.ask('My name is Zorban.');
  const beginning = texts(client);
  const at = client.conversation.items[1]?.id ?? '';
  await client.ask('What is 3 plus 4?');
  const [branch, whole] = [client.fork({ at, instructions: 'Be brief.' }), client.fork()];
  for (const one of [branch, whole]) one.connect();
  const name = branch.ask('What is my name?');
  expect(await name).toContain('Zorban');
  expect(texts(branch)).toEqual([...beginning, 'What is my name?', name.text]);
  expect(branch.session?.instructions).toBe('Be brief.');
  const again = whole.ask('What is my name?');
  expect(await again).toContain('Zorban');
  expect(again.usage?.input_token_details.cached_tokens).toBeGreaterThan(20);
  expect(texts(whole).slice(0, 4)).toEqual(texts(client));

  await client.rewind(at);
  expect(texts(client)).toEqual(beginning);
  expect(await client.ask('What is my name?')).toContain('Zorban');
  await client.rewind(null);
  expect(texts(client)).toEqual([]);
  await expect(client.rewind(at)).rejects.toThrow(RangeError);
  for (const one of [client, branch, whole]) await one.deleteSession();
});

it('reports the field of a refused update, and changes nothing', async () => {
  const { client } = new ObservedClient();
  const refused = await client.updateSession({ temperature: 9 }).acknowledged.catch((e: unknown) => e);
  expect(refused).toBeInstanceOf(EventRefusedError);
  expect(refused).toMatchObject({ param: 'session.temperature' });
  await client.updateSession({ instructions: 'Be brief.' }).acknowledged;
  expect(client.session?.instructions).toBe('Be brief.');
  await client.deleteSession();
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
  await client.draft.commit();
  await client.createResponse().acknowledged;
  await firstDelta;
  await midResponse(client);
  await done;
  const texts = client.conversation.items.map(textOf);
  await client.deleteSession();
  return texts;
}
