/** The events that a page has sent, as a program that sends them again in a new session. Pure. */

import type { ClientEvent } from '../client/index.js';

export type CodeLanguage = 'Python' | 'JavaScript';

/** Event without its id, which a program does not need. */
type PlainEvent = Record<string, unknown> & { type: string };

/** Events that have the same effect in another session. The others name items or responses of this one. */
const REPEATABLE_TYPES = new Set([
  'session.update',
  'conversation.item.create',
  'input_text_buffer.append',
  'input_text_buffer.replace',
  'input_text_buffer.clear',
  'input_text_buffer.commit',
  'response.create',
]);

/** Returns a program that sends the repeatable ones of `events` to `url` and prints the responses. */
export function writeCode(language: CodeLanguage, url: string, events: readonly ClientEvent[]): string {
  const plain = selectEvents(events);
  return language === 'Python' ? writePython(url, plain) : writeJavaScript(url, plain);
}

/** Returns the repeatable events, the writes of each typed message merged into one. */
export function selectEvents(events: readonly ClientEvent[]): PlainEvent[] {
  const selected: PlainEvent[] = [];
  const seenIds = new Set<string>();
  let draft = '';
  for (const event of events) {
    if (!REPEATABLE_TYPES.has(event.type) || isBoundToSession(event)) continue;
    const { event_id, ...plain } = event;
    if (event_id !== undefined && seenIds.has(event_id)) continue; // sent again after a lost connection
    seenIds.add(event_id ?? '');
    if (event.type === 'input_text_buffer.append') draft += event.text;
    else if (event.type === 'input_text_buffer.replace') draft = event.text;
    else if (event.type === 'input_text_buffer.clear') draft = '';
    else if (event.type === 'input_text_buffer.commit') {
      selected.push({ type: 'input_text_buffer.append', text: draft }, plain);
      draft = '';
    } else selected.push(plain);
  }
  return selected;
}

/** Whether an event refers to an id that the server has given out. */
function isBoundToSession(event: ClientEvent): boolean {
  if (event.type !== 'conversation.item.create') return false;
  return event.previous_item_id !== undefined || event.item.type !== 'message';
}

function writePython(url: string, events: PlainEvent[]): string {
  return `# pip install websockets
import json
import os

from websockets.sync.client import connect

URL = ${JSON.stringify(url)}
KEY = os.environ.get("CONTINUO_API_KEY")
EVENTS = [
${events.map((event) => `    ${toPython(event)},\n`).join('')}]

headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
with connect(URL, additional_headers=headers) as socket:
    for event in EVENTS:
        socket.send(json.dumps(event))
        if event["type"] != "response.create":
            continue
        for frame in socket:
            received = json.loads(frame)
            if received["type"] == "response.output_text.delta":
                print(received["delta"], end="", flush=True)
            elif received["type"] == "error":
                raise SystemExit(received["error"]["message"])
            elif received["type"] == "response.done":
                print()
                break
`;
}

function writeJavaScript(url: string, events: PlainEvent[]): string {
  return `// A browser’s console on the server’s own page, Node.js 22 or newer, Deno, Bun
const url = ${JSON.stringify(url)};
const key = globalThis.process?.env.CONTINUO_API_KEY;
const events = [
${events.map((event) => `  ${JSON.stringify(event)},\n`).join('')}];

const socket = new WebSocket(url, ['realtime', ...(key ? [\`openai-insecure-api-key.\${key}\`] : [])]);
let text = '';

// Send the events up to the next request for a response.
function sendNext() {
  while (events.length > 0) {
    const event = events.shift();
    socket.send(JSON.stringify(event));
    if (event.type === 'response.create') return;
  }
  socket.close();
}

socket.onopen = sendNext;
socket.onmessage = ({ data }) => {
  const event = JSON.parse(data);
  if (event.type === 'response.output_text.delta') text += event.delta;
  if (event.type === 'error') {
    console.error(event.error.message);
    socket.close();
  }
  if (event.type === 'response.done') {
    console.log(text);
    text = '';
    sendNext();
  }
};
`;
}

/** Returns a JSON value as a Python expression. */
export function toPython(value: unknown): string {
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(toPython).join(', ')}]`;
  if (typeof value === 'object') {
    const entries = Object.entries(value).filter(([, one]) => one !== undefined);
    return `{${entries.map(([name, one]) => `${JSON.stringify(name)}: ${toPython(one)}`).join(', ')}}`;
  }
  return JSON.stringify(value); // the escapes of JSON strings are those of Python
}
