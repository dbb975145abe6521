/** The React hook, in React. */

/* eslint-disable @typescript-eslint/no-deprecated -- the test renderer is the one that needs no DOM */

import { act, createElement, memo, type ReactElement, StrictMode } from 'react';
import { create, type ReactTestRenderer } from 'react-test-renderer';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Item, type RealtimeClient, textOf } from '../../src/client/index.js';
import { useConversation } from '../../src/client/react.js';
import { receiveAsk, sendBeginning, sendDelta, sendEnd } from './scripted_responses.js';
import { ScriptedServer } from './scripted_server.js';

(globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;

let server: ScriptedServer;
beforeEach(async () => {
  server = await ScriptedServer.start();
});
afterEach(() => {
  server.stop();
});

/** How often each item was rendered. */
const renders = new Map<string, number>();

const Message = memo(({ item }: { item: Item }) => {
  renders.set(item.id, (renders.get(item.id) ?? 0) + 1);
  return `${textOf(item)};`;
});

function Transcript({ client }: { client: RealtimeClient }) {
  const { items, isResponding, connection } = useConversation(client);
  const messages = items.map((item) => createElement(Message, { item, key: item.id }));
  return [...messages, isResponding ? 'responding,' : 'idle,', connection.phase];
}

function render(element: ReactElement): ReactTestRenderer {
  const roots: ReactTestRenderer[] = [];
  act(() => void roots.push(create(element)));
  return roots[0] ?? expect.unreachable();
}

/** Returns what is shown, which is text alone. */
const textIn = (root: ReactTestRenderer) => [root.toJSON() as unknown as string | string[]].flat().join('');

it('renders a conversation as it changes, and only the items that changed', async () => {
  const { client, connection } = await server.createConnectedClient();
  const root = render(createElement(Transcript, { client }));
  const shown = () => textIn(root);
  /** Do something to which the client reacts, and wait until it is shown. */
  const expectShown = async (text: string, cause: () => unknown) => {
    await act(async () => {
      await cause();
      await expect.poll(() => client.conversation.items.map((item) => `${textOf(item)};`).join('')).toBe(
        text.replace(/[^;]*$/, ''),
      );
      await new Promise((resolve) => setTimeout(resolve, 20));
    });
    expect(shown()).toBe(text);
  };
  expect(shown()).toBe('idle,open');
  const stream = client.ask('hello');
  await expectShown('hello;He;responding,open', async () => {
    await receiveAsk(connection);
    sendBeginning(connection, 'r', 'He');
  });
  const [[userId, userRenders] = ['', 0]] = [...renders].filter(([id]) => id !== 'a');
  await expectShown('hello;Hello;responding,open', () => sendDelta(connection, 'r', 'llo'));
  await expectShown('hello;Hello;idle,open', async () => {
    sendEnd(connection, 'r', 'Hello');
    await stream;
  });
  expect(renders.get(userId)).toBe(userRenders);
  expect(renders.get('a')).toBeGreaterThan(1);
  act(() => {
    void client.close(0);
  });
  expect(shown()).toBe('hello;Hello;idle,closed');
  act(() => {
    root.unmount();
  });
});

it('reads the same in two components, and in strict mode', async () => {
  const { client, connection } = await server.createConnectedClient();
  connection.sendItemAdded({ id: 'a', type: 'message', role: 'user', content: [{ type: 'input_text', text: 'x' }] });
  await expect.poll(() => client.conversation.items.length).toBe(1);
  const transcript = () => createElement(Transcript, { client });
  const root = render(createElement(StrictMode, {}, transcript(), transcript()));
  expect(textIn(root)).toBe('x;idle,open'.repeat(2));
  act(() => {
    root.unmount();
  });
});
