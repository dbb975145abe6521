import { afterEach, beforeEach, expect, it } from 'vitest';
import { waitForEvent, waitForPhase, ScriptedServer } from './scripted_server.js';

let server: ScriptedServer;
beforeEach(async () => {
  server = await ScriptedServer.start();
});
afterEach(() => {
  server.stop();
});

it('sends only changes, and merges them while a write is in flight', async () => {
  const { client, connection } = await server.createConnectedClient();
  client.draft.set('Hel');
  expect((await connection.receive('input_text_buffer.append')).text).toBe('Hel');
  client.draft.set('Hello');
  client.draft.set('Hello there');
  connection.send('input_text_buffer.appended', { length: 3 });
  expect((await connection.receive('input_text_buffer.append')).text).toBe('lo there');
  connection.send('input_text_buffer.appended', { length: 11 });
  await waitForEvent(client, 'input_text_buffer.appended');
  client.draft.set('Hullo there');
  expect((await connection.receive('input_text_buffer.replace')).text).toBe('Hullo there');
  connection.send('input_text_buffer.appended', { length: 11 });
  await waitForEvent(client, 'input_text_buffer.appended');
  client.draft.set('');
  await connection.receive('input_text_buffer.clear');
});

it('commits at once, after sending the remaining text', async () => {
  const { client, connection } = await server.createConnectedClient();
  client.draft.set('one');
  client.draft.set('one two');
  const committed = client.draft.commit();
  expect((await connection.receive('input_text_buffer.append')).text).toBe('one');
  expect((await connection.receive('input_text_buffer.append')).text).toBe(' two');
  await connection.receive('input_text_buffer.commit');
  connection.send('input_text_buffer.appended', { length: 3 });
  connection.send('input_text_buffer.appended', { length: 7 });
  connection.send('input_text_buffer.committed', { item_id: 'i', previous_item_id: null });
  expect(await committed).toBe('i');
  expect(client.draft.text).toBe('');
});

it('reports why it was refused, and is sent again once changed', async () => {
  const { client, connection } = await server.createConnectedClient();
  const refuse = (event_id: unknown, code: string) => {
    const error = { type: 'x', code, message: code, param: 'text', event_id };
    connection.send('error', { error });
    return waitForEvent(client, 'error');
  };
  client.draft.set('far too long');
  await refuse((await connection.receive('input_text_buffer.append')).event_id, 'too_long');
  await expect.poll(() => client.draft.refusal?.code).toBe('too_long');
  client.draft.set('long');
  expect(client.draft.refusal).toBeNull();
  const replace = await connection.receive('input_text_buffer.replace');
  const committed = client.draft.commit();
  const commit = await connection.receive('input_text_buffer.commit');
  await refuse(replace.event_id, 'still_too_long');
  await refuse(commit.event_id, 'input_text_buffer_commit_empty');
  await expect(committed).rejects.toMatchObject({ code: 'still_too_long' });
  expect(client.draft.refusal).toBeNull();
});

it('is sent in full after a lost connection', async () => {
  const { client, connection } = await server.createConnectedClient();
  client.draft.set('one');
  await connection.receive('input_text_buffer.append');
  connection.send('input_text_buffer.appended', { length: 3 });
  await waitForEvent(client, 'input_text_buffer.appended');
  client.draft.set('one two');
  await connection.receive('input_text_buffer.append');
  connection.terminate();
  await waitForPhase(client, 'waiting');
  void client.draft.commit();
  const reconnected = await server.accept();
  await reconnected.acceptResume('snapshot');
  expect((await reconnected.receive('input_text_buffer.replace')).text).toBe('one two');
  await reconnected.receive('input_text_buffer.commit');
});

it('is sent in full if the server reports another length', async () => {
  const { client, connection } = await server.createConnectedClient();
  client.draft.set('naïve 👩‍🚀');
  await connection.receive('input_text_buffer.append');
  connection.send('input_text_buffer.appended', { length: 2 });
  await waitForEvent(client, 'input_text_buffer.appended');
  client.draft.set('naïve 👩‍🚀!');
  expect((await connection.receive('input_text_buffer.replace')).text).toBe('naïve 👩‍🚀!');
  connection.send('input_text_buffer.appended', { length: 10 });
  await waitForEvent(client, 'input_text_buffer.appended');
  client.draft.set('naïve 👩‍🚀!?');
  expect((await connection.receive('input_text_buffer.append')).text).toBe('?');
});

it('is sent again in a new session', async () => {
  const { client, connection } = await server.createConnectedClient();
  client.draft.set('half a sent');
  await connection.receive('input_text_buffer.append');
  connection.send('input_text_buffer.appended', { length: 11 });
  await waitForEvent(client, 'input_text_buffer.appended');
  connection.terminate();
  (await server.accept()).sendSessionCreated('sess_other');
  const fresh = await server.accept();
  fresh.sendSessionCreated('sess_2');
  expect((await fresh.receive('input_text_buffer.replace')).text).toBe('half a sent');
});

it('is sent again with its commit, under the same event ids', async () => {
  const { client, connection } = await server.createConnectedClient();
  client.draft.set('typed');
  const writeId = (await connection.receive('input_text_buffer.append')).event_id;
  connection.send('input_text_buffer.appended', { length: 5 });
  await waitForEvent(client, 'input_text_buffer.appended');
  const committed = client.draft.commit();
  const commitId = (await connection.receive('input_text_buffer.commit')).event_id;
  connection.terminate();
  const reconnected = await server.accept();
  expect(client.pendingEvents.map((event) => event.event_id)).toEqual([writeId, commitId]);
  await reconnected.acceptResume('exact');
  expect(await reconnected.receive('input_text_buffer.replace')).toMatchObject({
    text: 'typed',
    event_id: writeId,
  });
  expect((await reconnected.receive('input_text_buffer.commit')).event_id).toBe(commitId);
  reconnected.send('input_text_buffer.committed', { item_id: 'i', previous_item_id: null });
  expect(await committed).toBe('i');
});

it('commits nothing if it is empty', async () => {
  const { client, connection } = await server.createConnectedClient();
  expect(await client.draft.commit()).toBeNull();
  client.draft.append('o');
  client.draft.append('ne');
  client.draft.set('');
  expect(await client.draft.commit()).toBeNull();
  await connection.receive('input_text_buffer.append');
  await connection.receive('input_text_buffer.clear');
  client.createResponse();
  await connection.receive('response.create');
});

it('does not append to the text of a refused commit', async () => {
  const { client, connection } = await server.createConnectedClient();
  client.draft.set('too long');
  await connection.receive('input_text_buffer.append');
  const committed = client.draft.commit();
  const { event_id } = await connection.receive('input_text_buffer.commit');
  connection.send('input_text_buffer.appended', { length: 8 });
  const error = { type: 'x', code: 'context_length_exceeded', message: 'm', param: null, event_id };
  connection.send('error', { error });
  await expect(committed).rejects.toMatchObject({ code: 'context_length_exceeded' });
  client.draft.set('short');
  expect((await connection.receive('input_text_buffer.replace')).text).toBe('short');
});
