/** The client library against a real server, in both codecs. */

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WebSocket as Socket } from 'ws';
import {
  type Codec,
  EventRefusedError,
  json,
  RealtimeClient,
  type RealtimeClientOptions,
  type ResumeOutcome,
  textOf,
} from '../../src/client/index.js';
import { msgpack } from '../../src/client/msgpack.js';
import { Server } from './server.js';

const STORY = 'Tell me a short story.';
let server: Server;
beforeAll(async () => {
  server = await Server.start();
});
afterAll(async () => {
  await server.stop();
});

describe.each([
  ['JSON', json, false],
  ['MessagePack', msgpack, true],
])('in %s', (_, codec, binary) => {
  it.each([
    ['a dropped connection', (client: RealtimeClient) => client.reconnect('dropped by the test')],
    ['a killed server', () => server.kill().then(() => server.start())],
  ])('commits a draft, and continues its response after %s', async (_, fault) => {
    const expected = await runStory(new ObservedClient(codec));
    const observed = new ObservedClient(codec);
    const texts = await runStory(observed, fault);
    expect(texts).toEqual(expected);
    expect(observed.responseText).toBe(texts.at(-1));
    expect(observed.resumeOutcomes[0]).toBe('new');
    expect(new Set(observed.resumeOutcomes.slice(1))).toEqual(new Set(['exact']));
    expect(observed.responseRequests).toBe(1);
    expect(observed.binaryFrames).toEqual(new Set([binary]));
  });

  it('reports the field of a refused update, and changes nothing', async () => {
    const { client } = new ObservedClient(codec);
    const refused = await client.updateSession({ temperature: 9 }).acknowledged.catch((e: unknown) => e);
    expect(refused).toBeInstanceOf(EventRefusedError);
    expect(refused).toMatchObject({ param: 'session.temperature' });
    await client.updateSession({ instructions: 'Be brief.' }).acknowledged;
    expect(client.session?.instructions).toBe('Be brief.');
    await client.closeSession();
  });
});

/** A client whose frames and events are recorded. */
class ObservedClient {
  readonly client: RealtimeClient;
  /** Frame types received: true for binary, false for text. */
  readonly binaryFrames = new Set<boolean>();
  readonly resumeOutcomes: ResumeOutcome[] = [];
  responseRequests = 0;
  /** Concatenated deltas of all responses. */
  responseText = '';

  constructor(codec: Codec) {
    const { binaryFrames } = this;
    class FrameObserver extends Socket {
      constructor(url: string, protocols: string[]) {
        super(url, protocols);
        this.on('message', (_, binary) => binaryFrames.add(binary));
      }
    }
    this.client = new RealtimeClient({
      url: server.socketUrl,
      codecs: [codec],
      WebSocket: FrameObserver as unknown as NonNullable<RealtimeClientOptions['WebSocket']>,
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
