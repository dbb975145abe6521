/** Responses as a scripted server sends them. */

import type { ServerConnection } from './scripted_server.js';

export const assistantItem = (text: string, status = 'completed', id = 'a') => ({
  id,
  type: 'message',
  role: 'assistant',
  status,
  content: [{ type: 'output_text', text }],
});

export const response = (id: string, status: string, text: string | null = null, fields: object = {}) => ({
  id,
  status,
  status_details: null,
  output: text === null ? [] : [assistantItem(text, status)],
  conversation_id: 'c',
  usage: text === null ? null : { total_tokens: 3, input_tokens: 2, output_tokens: 1 },
  metadata: null,
  ...fields,
});

export function sendDelta(connection: ServerConnection, response_id: string, delta: string): void {
  const position = { item_id: 'a', output_index: 0, content_index: 0 };
  connection.send('response.output_text.delta', { response_id, ...position, delta });
}

/** Send a response in progress with its item and first deltas. */
export function sendBeginning(connection: ServerConnection, id: string, ...deltas: string[]): void {
  connection.send('response.created', { response: response(id, 'in_progress') });
  const item = assistantItem('', 'in_progress');
  connection.sendItemAdded(item, 'unknown: at the end');
  connection.send('response.output_item.added', { response_id: id, output_index: 0, item });
  for (const delta of deltas) sendDelta(connection, id, delta);
}

export function sendEnd(connection: ServerConnection, id: string, text: string, status = 'completed'): void {
  connection.send('conversation.item.done', { item: assistantItem(text, status), previous_item_id: null });
  connection.send('response.done', { response: response(id, status, text) });
}

/** Acknowledge the user's message, and return its item and the request that follows. */
export async function receiveAsk(connection: ServerConnection) {
  const { item } = await connection.receive('conversation.item.create');
  connection.sendItemAdded(item);
  return { item, request: await connection.receive('response.create') };
}
