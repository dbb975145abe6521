// Talks with the Realtime API by the clients of other makers: node voice_clients.mjs KEY URL
//
// Prints, as JSON, for each of them its answers, the arguments of the calls of its tool, and the
// codes of the errors that it has shown.

import { OpenAIRealtimeVoice } from '@mastra/voice-openai-realtime';
import { RealtimeClient } from 'openai-realtime-api';
import { Readable } from 'node:stream';
import { z } from 'zod';

const [apiKey, url] = process.argv.slice(2);
const QUESTION = 'What is the weather in Paris?';
const SILENCE = new Int16Array(240);
const options = { apiKey, url, model: 'demo' };

/** openai-realtime-api: a client of the beta version of the API. */
async function realtimeApi() {
  const client = new RealtimeClient({ ...options, sessionConfig: { temperature: 0 } });
  const found = { texts: [], calls: [], errors: [] };
  client.on('realtime.event', ({ event: { type, error } }) => {
    if (type === 'error') found.errors.push(error.code);
  });
  await client.connect();
  await client.waitForSessionCreated();
  const parameters = z.toJSONSchema(z.object({ city: z.string() }));
  client.addTool({ name: 'get_weather', description: 'The weather', parameters }, (place) => {
    found.calls.push(place);
    return { sky: 'clear' };
  });

  async function ask(text) {
    const { promise, resolve } = newPromise();
    const listen = ({ item }) => item.role === 'assistant' && resolve(item.formatted.text);
    client.on('conversation.item.completed', listen);
    client.sendUserMessageContent([{ type: 'input_text', text }]);
    found.texts.push(await promise);
    client.off('conversation.item.completed', listen);
  }

  await ask('hello');
  await ask(QUESTION);
  client.appendInputAudio(SILENCE);
  await ask('hello');
  client.disconnect();
  return found;
}

/** Mastra's voice, a client of GA. */
async function mastraVoice() {
  const voice = new OpenAIRealtimeVoice(options);
  const found = { texts: [], calls: [], errors: [] };
  let text = '';
  voice.on('error', ({ error }) => found.errors.push(error.code));
  voice.on('writing', ({ text: delta }) => (text += delta));
  const inputSchema = z.object({ city: z.string() });
  const execute = (place) => {
    found.calls.push(place);
    return { sky: 'clear' };
  };
  voice.addTools({ get_weather: { description: 'The weather', inputSchema, execute } });
  await voice.connect();

  /** Waits until a response ends that has text: one that calls a tool has none, and is followed. */
  async function ask(send) {
    const { promise, resolve } = newPromise();
    const listen = () => text && resolve(text);
    voice.on('response.done', listen);
    await send();
    found.texts.push(await promise);
    voice.off('response.done', listen);
    text = '';
  }

  await ask(() => voice.speak('hello'));
  const content = [{ type: 'input_text', text: QUESTION }];
  const input = [{ type: 'message', role: 'user', content }];
  await ask(() => voice.answer({ options: { input } }));
  await ask(() => voice.listen(Readable.from([Buffer.from(SILENCE.buffer)])));
  await voice.send(SILENCE);
  await voice.send(SILENCE);
  await ask(() => voice.speak('hello'));
  voice.close();
  return found;
}

function newPromise() {
  let resolve;
  const promise = new Promise((settle) => (resolve = settle));
  return { promise, resolve };
}

const results = { realtimeApi: await realtimeApi(), mastraVoice: await mastraVoice() };
process.stdout.write(JSON.stringify(results), () => process.exit(0));
