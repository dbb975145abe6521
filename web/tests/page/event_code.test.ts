/** Programs made of sent events. Both languages are parsed by their own interpreters. */

import { execFileSync } from 'node:child_process';
import { Script } from 'node:vm';
import { expect, it } from 'vitest';
import type { ClientEvent, NewItem } from '../../src/client/index.js';
import { selectEvents, toPython, writeCode } from '../../src/page/event_code.js';

const PYTHON = process.env.CONTINUO_PYTHON ?? new URL('../../../.venv/bin/python', import.meta.url).pathname;
const URL_OF_SERVER = 'ws://127.0.0.1:8000/v1/realtime?model=demo';
const NASTY = '“quotes” \' " \\ \n\t\u0000\u2028 ${x} `…` 🦊 {} # %s';

function message(text: string): NewItem {
  return { type: 'message', role: 'user', content: [{ type: 'input_text', text }] };
}

it('keeps what another session can repeat, with each typed message in one piece', () => {
  const events: ClientEvent[] = [
    { type: 'session.update', event_id: 'e1', session: { temperature: 0 } },
    { type: 'conversation.item.retrieve', event_id: 'e2', item_id: 'e2' },
    { type: 'input_text_buffer.append', event_id: 'e3', text: 'Hel' },
    { type: 'input_text_buffer.append', event_id: 'e4', text: 'lo' },
    { type: 'input_text_buffer.append', event_id: 'e4', text: 'lo' }, // sent again
    { type: 'input_text_buffer.replace', event_id: 'e5', text: 'Hi' },
    { type: 'input_text_buffer.append', event_id: 'e6', text: ' you' },
    { type: 'input_text_buffer.commit', event_id: 'e7' },
    { type: 'response.create', event_id: 'e8' },
    { type: 'response.cancel', event_id: 'e9' },
    { type: 'conversation.item.truncate', event_id: 'e10', item_id: 'item_1', content_index: 0, text_end: 3 },
    { type: 'input_text_buffer.append', event_id: 'e11', text: 'never sent' },
    { type: 'input_text_buffer.clear', event_id: 'e12' },
    { type: 'conversation.item.create', event_id: 'e13', item: message('And now?') },
    { type: 'conversation.item.create', event_id: 'e14', item: message('x'), previous_item_id: 'item_1' },
    {
      type: 'conversation.item.create',
      event_id: 'e15',
      item: { type: 'function_call_output', call_id: 'call_1', output: '{}' },
    },
    { type: 'response.create', event_id: 'e16', response: { max_output_tokens: 5 } },
    { type: 'session.close', event_id: 'e17' },
  ];
  expect(selectEvents(events)).toEqual([
    { type: 'session.update', session: { temperature: 0 } },
    { type: 'input_text_buffer.append', text: 'Hi you' },
    { type: 'input_text_buffer.commit' },
    { type: 'response.create' },
    { type: 'conversation.item.create', item: message('And now?') },
    { type: 'response.create', response: { max_output_tokens: 5 } },
  ]);
});

it('writes any JSON value as the same Python value', () => {
  const value = { a: [1, 2.5, -0.001, 1e21, true, false, null], [NASTY]: NASTY, empty: {}, none: [] };
  const source = 'import ast, json, sys; print(json.dumps(ast.literal_eval(sys.stdin.read())))';
  const output = execFileSync(PYTHON, ['-c', source], { input: toPython(value), encoding: 'utf8' });
  expect(JSON.parse(output)).toEqual(value);
  expect(toPython({ a: undefined, b: undefined })).toBe('{}');
});

it('writes programs that their languages accept, whatever was typed', () => {
  const events: ClientEvent[] = [
    { type: 'conversation.item.create', item: message(NASTY) },
    { type: 'response.create' },
  ];
  for (const sent of [events, []]) {
    const python = writeCode('Python', URL_OF_SERVER, sent);
    execFileSync(PYTHON, ['-c', 'import ast, sys; ast.parse(sys.stdin.read())'], { input: python });
    expect(new Script(writeCode('JavaScript', URL_OF_SERVER, sent))).toBeInstanceOf(Script);
  }
});
