/** The client library by itself, against the real server, in both codecs. */

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WebSocket as Socket } from 'ws';
import { type Codec, json, type Options, RealtimeClient, Refused, textOf } from '../../src/client/index.js';
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
    ['a cut', (client: RealtimeClient) => client.drop('the test cut it')],
    ['a killed server', () => server.kill().then(() => server.start())],
  ])('a draft becomes a message, and its answer goes on over %s', async (_, fault) => {
    const whole = await tell(new Watched(codec));
    const watched = new Watched(codec);
    const said = await tell(watched, fault);
    expect(said).toEqual(whole);
    expect(watched.pieces).toBe(said.at(-1));
    expect(watched.begun[0]).toBe('new');
    expect(new Set(watched.begun.slice(1))).toEqual(new Set(['exact']));
    expect(watched.asked).toBe(1);
    expect(watched.frames).toEqual(new Set([binary]));
  });

  it('what is refused says why and changes nothing', async () => {
    const { client } = new Watched(codec);
    const refused = await client.update({ temperature: 9 }).acknowledged.catch((e: unknown) => e);
    expect(refused).toBeInstanceOf(Refused);
    expect(refused).toMatchObject({ param: 'session.temperature' });
    await client.update({ instructions: 'Be brief.' }).acknowledged;
    expect(client.session?.instructions).toBe('Be brief.');
    await client.close();
  });
});

/** A client, and what is seen of it. */
class Watched {
  readonly client: RealtimeClient;
  /** Whether frames that came were binary. */
  readonly frames = new Set<boolean>();
  readonly begun: string[] = [];
  asked = 0;
  /** The text of answers, as it came. */
  pieces = '';

  constructor(codec: Codec) {
    const { frames } = this;
    class Looking extends Socket {
      constructor(url: string, protocols: string[]) {
        super(url, protocols);
        this.on('message', (_, binary) => frames.add(binary));
      }
    }
    this.client = new RealtimeClient({
      url: server.socketUrl,
      codecs: [codec],
      WebSocket: Looking as unknown as NonNullable<Options['WebSocket']>,
    });
    this.client.state.subscribe((state) => {
      if (state.phase === 'open') this.begun.push(state.begun);
    });
    this.client.on('response.output_text.delta', ({ delta }) => (this.pieces += delta));
    this.client.onSent((event) => {
      if (event.type === 'response.create') this.asked += 1;
    });
    this.client.connect();
  }
}

/** Asks for the story, and lets something happen in the middle of it: what was said then. */
async function tell(
  { client }: Watched,
  inTheMiddle: (client: RealtimeClient) => unknown = () => undefined,
): Promise<string[]> {
  const done = new Promise((resolve) => client.on('response.done', resolve));
  const begun = new Promise((resolve) => client.on('response.output_text.delta', resolve));
  for (let end = 1; end <= STORY.length; end += 1) client.draft.set(STORY.slice(0, end));
  await client.draft.commit().acknowledged;
  await client.respond().acknowledged;
  await begun;
  await inTheMiddle(client);
  await done;
  const said = client.conversation.items.map(textOf);
  await client.close();
  return said;
}
