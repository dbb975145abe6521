import { afterEach, beforeEach, expect, it } from 'vitest';
import { heard, phase, Scripted } from './scripted_server.js';

let server: Scripted;
beforeEach(async () => {
  server = await Scripted.start();
});
afterEach(() => {
  server.stop();
});

it('sends only what is new, and gathers it while a piece is on its way', async () => {
  const { client, peer } = await server.begun();
  client.draft.set('Hel');
  expect((await peer.hear('input_text_buffer.append')).text).toBe('Hel');
  client.draft.set('Hello');
  client.draft.set('Hello there');
  peer.say('input_text_buffer.appended', { length: 3 });
  expect((await peer.hear('input_text_buffer.append')).text).toBe('lo there');
  peer.say('input_text_buffer.appended', { length: 11 });
  await heard(client, 'input_text_buffer.appended');
  client.draft.set('Hullo there');
  expect((await peer.hear('input_text_buffer.replace')).text).toBe('Hullo there');
  peer.say('input_text_buffer.appended', { length: 11 });
  await heard(client, 'input_text_buffer.appended');
  client.draft.set('');
  await peer.hear('input_text_buffer.clear');
});

it('becomes a message at once, with what was not sent yet', async () => {
  const { client, peer } = await server.begun();
  client.draft.set('one');
  client.draft.set('one two');
  const receipt = client.draft.commit();
  expect((await peer.hear('input_text_buffer.append')).text).toBe('one');
  expect((await peer.hear('input_text_buffer.append')).text).toBe(' two');
  await peer.hear('input_text_buffer.commit');
  peer.say('input_text_buffer.appended', { length: 3 });
  peer.say('input_text_buffer.appended', { length: 7 });
  peer.say('input_text_buffer.committed', { item_id: 'i', previous_item_id: null });
  expect(await receipt.acknowledged).toMatchObject({ item_id: 'i' });
  expect(client.draft.text).toBe('');
});

it('says why it is not taken, and tries again when it has changed', async () => {
  const { client, peer } = await server.begun();
  const refuse = (event_id: unknown, code: string) => {
    const error = { type: 'x', code, message: code, param: 'text', event_id };
    peer.say('error', { error });
    return heard(client, 'error');
  };
  client.draft.set('far too long');
  await refuse((await peer.hear('input_text_buffer.append')).event_id, 'too_long');
  await expect.poll(() => client.draft.refusal?.code).toBe('too_long');
  client.draft.set('long');
  expect(client.draft.refusal).toBeNull();
  const replace = await peer.hear('input_text_buffer.replace');
  const receipt = client.draft.commit();
  const commit = await peer.hear('input_text_buffer.commit');
  await refuse(replace.event_id, 'still_too_long');
  await refuse(commit.event_id, 'input_text_buffer_commit_empty');
  await expect(receipt.acknowledged).rejects.toMatchObject({ code: 'still_too_long' });
  expect(client.draft.refusal).toBeNull();
});

it('says all of it after a loss, whatever the server has kept', async () => {
  const { client, peer } = await server.begun();
  client.draft.set('one');
  await peer.hear('input_text_buffer.append');
  peer.say('input_text_buffer.appended', { length: 3 });
  await heard(client, 'input_text_buffer.appended');
  client.draft.set('one two');
  await peer.hear('input_text_buffer.append');
  peer.cut();
  await phase(client, 'waiting');
  client.draft.commit();
  const again = await server.accept();
  await again.resumed('snapshot');
  expect((await again.hear('input_text_buffer.replace')).text).toBe('one two');
  await again.hear('input_text_buffer.commit');
});

it('says all of it when the server counts otherwise', async () => {
  const { client, peer } = await server.begun();
  client.draft.set('naïve 👩‍🚀');
  await peer.hear('input_text_buffer.append');
  peer.say('input_text_buffer.appended', { length: 2 });
  await heard(client, 'input_text_buffer.appended');
  client.draft.set('naïve 👩‍🚀!');
  expect((await peer.hear('input_text_buffer.replace')).text).toBe('naïve 👩‍🚀!');
  peer.say('input_text_buffer.appended', { length: 10 });
  await heard(client, 'input_text_buffer.appended');
  client.draft.set('naïve 👩‍🚀!?');
  expect((await peer.hear('input_text_buffer.append')).text).toBe('?');
});

it('is kept in a new session', async () => {
  const { client, peer } = await server.begun();
  client.draft.set('half a sent');
  await peer.hear('input_text_buffer.append');
  peer.say('input_text_buffer.appended', { length: 11 });
  await heard(client, 'input_text_buffer.appended');
  peer.cut();
  (await server.accept()).created('sess_other');
  const fresh = await server.accept();
  fresh.created('sess_2');
  expect((await fresh.hear('input_text_buffer.replace')).text).toBe('half a sent');
});

it('is said again with its end, under ids that a server knows if it has them', async () => {
  const { client, peer } = await server.begun();
  client.draft.set('typed');
  const written = (await peer.hear('input_text_buffer.append')).event_id;
  peer.say('input_text_buffer.appended', { length: 5 });
  await heard(client, 'input_text_buffer.appended');
  const receipt = client.draft.commit();
  await peer.hear('input_text_buffer.commit');
  peer.cut();
  const again = await server.accept();
  expect(client.pending.map((event) => event.event_id)).toEqual([written, receipt.eventId]);
  await again.resumed('exact');
  expect(await again.hear('input_text_buffer.replace')).toMatchObject({
    text: 'typed',
    event_id: written,
  });
  expect((await again.hear('input_text_buffer.commit')).event_id).toBe(receipt.eventId);
  again.say('input_text_buffer.committed', { item_id: 'i', previous_item_id: null });
  expect(await receipt.acknowledged).toMatchObject({ item_id: 'i' });
});
