/** Tools whose calls the client answers. */

import { afterEach, beforeEach, expect, it } from 'vitest';
import { RealtimeClient, tool, ToolError } from '../../src/client/index.js';
import { receiveAsk, response, sendBeginning, sendEnd } from './scripted_responses.js';
import { ScriptedServer, type ServerConnection } from './scripted_server.js';

let server: ScriptedServer;
beforeEach(async () => {
  server = await ScriptedServer.start();
});
afterEach(() => {
  server.stop();
});

const parameters = {
  type: 'object',
  properties: {
    city: { type: 'string' },
    days: { type: 'integer', minimum: 1, maximum: 7 },
    unit: { enum: ['C', 'F'] },
    tags: { type: 'array', items: { type: 'string' } },
  },
  required: ['city'],
} as const;

const get_weather = tool({
  description: 'Get the weather of a city.',
  parameters,
  handler: ({ city, days = 1, unit }) => {
    // The annotations are the test: none of them is `any` or `unknown`.
    const text: [string, number, 'C' | 'F' | undefined] = [city, days, unit];
    if (city === 'Atlantis') throw new ToolError('There is no such city.');
    if (city === 'Babel') throw new Error('a defect of the program');
    return { text };
  },
});

const wait = tool({
  description: 'Wait.',
  parameters: { type: 'object', properties: {} },
  handler: () => new Promise(() => undefined),
});

/** A response in which the model calls tools. */
function sendCalls(connection: ServerConnection, id: string, ...calls: [name: string, args: string][]): void {
  connection.send('response.created', { response: response(id, 'in_progress') });
  const output = calls.map(([name, args], index) => {
    return { id: `fc_${id}_${index}`, type: 'function_call', call_id: `${id}_${index}`, name, arguments: args };
  });
  for (const item of output) connection.sendItemAdded(item, 'unknown: at the end');
  connection.send('response.done', { response: response(id, 'completed', null, { output }) });
}

/** Acknowledge the result of a call, and return it. */
async function receiveOutput(connection: ServerConnection): Promise<unknown> {
  const { item } = await connection.receive('conversation.item.create');
  connection.sendItemAdded(item, 'unknown: at the end');
  return (item as { output: string }).output;
}

async function start() {
  const client = server.createClient({ tools: { get_weather, wait }, session: { temperature: 0 } });
  const connection = await server.accept();
  connection.sendSessionCreated();
  const { session } = await connection.receive('session.update');
  connection.send('session.updated', { session: { id: 'sess_1', model: 'm' } });
  return { client, connection, session };
}

it('are declared, called, and answered until the model answers with text', async () => {
  const { client, connection, session } = await start();
  expect(session).toMatchObject({
    temperature: 0,
    tools: [{ type: 'function', name: 'get_weather', description: 'Get the weather of a city.', parameters }, {}],
  });
  const stream = client.ask('weather?', { tool_choice: 'required', temperature: 1 });
  const { request } = await receiveAsk(connection);
  expect(request.response).toEqual({ tool_choice: 'required', temperature: 1 });
  sendCalls(connection, 'r1', ['get_weather', '{"city": "Rome", "days": 2}'], ['get_weather', '{"city": "Oslo"}']);
  expect(await receiveOutput(connection)).toBe('{"text":["Rome",2,null]}');
  expect(await receiveOutput(connection)).toBe('{"text":["Oslo",1,null]}');
  expect((await connection.receive('response.create')).response).toEqual({ temperature: 1 });
  sendBeginning(connection, 'r2', 'Sunny');
  sendEnd(connection, 'r2', 'Sunny');
  expect(await stream).toBe('Sunny');
  expect(stream.calls.map((call) => call.arguments)).toHaveLength(2);
});

it.each([
  ['{"city": "Atlantis"}', 'There is no such city.'],
  ['{"days": 2}', 'The arguments of get_weather are not valid: city is missing in the arguments.'],
  ['{"city": 3}', 'the arguments.city must be of type string'],
  ['{"city": "Rome", "days": 8}', 'the arguments.days must be at most 7'],
  ['{"city": "Rome", "days": 1.5}', 'the arguments.days must be of type integer'],
  ['{"city": "Rome", "unit": "K"}', 'the arguments.unit must be one of ["C","F"]'],
  ['{"city": "Rome", "tags": ["a", 1]}', 'the arguments.tags.1 must be of type string'],
  ['{"city"', 'The arguments of get_weather are not valid JSON.'],
])('tell the model what is wrong with %s', async (args, message) => {
  const { client, connection } = await start();
  const stream = client.ask('weather?');
  await receiveAsk(connection);
  sendCalls(connection, 'r1', ['get_weather', args]);
  expect(await receiveOutput(connection)).toContain(message);
  await connection.receive('response.create');
  sendBeginning(connection, 'r2');
  sendEnd(connection, 'r2', 'I see.');
  expect(await stream).toBe('I see.');
});

it('report what their handlers throw, after the model has been told', async () => {
  const { client, connection } = await start();
  const stream = client.ask('weather?');
  await receiveAsk(connection);
  sendCalls(connection, 'r1', ['get_weather', '{"city": "Babel"}']);
  expect(await receiveOutput(connection)).toBe('The tool failed.');
  await expect(stream.then()).rejects.toThrow('a defect of the program');
  expect(client.state.value.phase).toBe('open');
});

it('without a handler are left to the program', async () => {
  const { client, connection } = await start();
  const stream = client.ask('weather?');
  await receiveAsk(connection);
  sendCalls(connection, 'r1', ['get_weather', '{"city": "Rome"}'], ['toString', '{}']);
  expect(await stream).toBe('');
  expect(stream.calls.map(({ name }) => name)).toEqual(['get_weather', 'toString']);
});

it('are not waited for once cancelled, or closed', async () => {
  const { client, connection } = await start();
  const stream = client.ask('wait');
  await receiveAsk(connection);
  sendCalls(connection, 'r1', ['wait', '{}']);
  await expect.poll(() => stream.calls.length).toBe(1);
  const cancelled = stream.cancel();
  expect(await receiveOutput(connection)).toBe('The call was cancelled.');
  expect(await cancelled).toBe('');
  const other = client.respond();
  await connection.receive('response.create');
  sendCalls(connection, 'r2', ['wait', '{}']);
  await expect.poll(() => other.calls.length).toBe(1);
  void client.close(0);
  await expect(other.then()).rejects.toMatchObject({ code: 'disconnected' });
});

it('are checked by the compiler', () => {
  tool({
    description: '',
    parameters,
    // @ts-expect-error: there is no such argument
    handler: ({ town }) => town as string,
  });
  expect(() => new RealtimeClient({ url: 'ws://x', tools: { get_weather } })).not.toThrow();
});

it('are answered in a fork, whose session declares them already', async () => {
  const { client } = await start();
  await expect.poll(() => client.session).not.toBeNull();
  const fork = client.fork();
  fork.connect();
  const connection = await server.accept();
  expect(connection.query.get('fork')).toBe('sess_1');
  connection.sendSessionCreated('sess_2');
  const answer = fork.ask('And in Berlin?');
  await receiveAsk(connection);
  sendCalls(connection, 'r1', ['get_weather', '{"city": "Berlin"}']);
  expect(await receiveOutput(connection)).toContain('Berlin');
  await connection.receive('response.create');
  sendBeginning(connection, 'r2', 'Mild.');
  sendEnd(connection, 'r2', 'Mild.');
  expect(await answer).toBe('Mild.');
});
