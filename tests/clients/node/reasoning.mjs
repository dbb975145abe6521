// Reads reasoning with openai-node: node reasoning.mjs KEY URL
//
// Prints, as JSON, the reasoning and the text of a response and of a chat completion, whole and
// streamed, and of a response to a second question that sends the first output back.

import OpenAI from 'openai';

const [key, baseURL] = process.argv.slice(2);
const client = new OpenAI({ apiKey: key, baseURL, maxRetries: 0 });
const QUESTION = { role: 'user', content: 'The weather?' };
const ask = { model: 'demo', input: [QUESTION], reasoning: { effort: 'low' } };
const chat = { model: 'demo', messages: [QUESTION], reasoning_effort: 'low' };

/** Returns the reasoning and the text of a response. */
function read({ output, output_text }) {
  const items = output.filter(({ type }) => type === 'reasoning');
  return [items.flatMap(({ content }) => content.map(({ text }) => text)).join(''), output_text];
}

async function readStream() {
  const stream = client.responses.stream(ask);
  let reasoning = '';
  stream.on('response.reasoning_text.delta', ({ delta }) => (reasoning += delta));
  const final = await stream.finalResponse();
  return [[reasoning, final.output_text], read(final)];
}

async function readChat() {
  const { message } = (await client.chat.completions.create(chat)).choices[0];
  const found = ['', ''];
  for await (const { choices } of await client.chat.completions.create({ ...chat, stream: true })) {
    found[0] += choices[0]?.delta.reasoning_content ?? '';
    found[1] += choices[0]?.delta.content ?? '';
  }
  return [[message.reasoning_content, message.content], found];
}

const first = await client.responses.create(ask);
const again = [QUESTION, ...first.output, { role: 'user', content: 'And tomorrow?' }];
const second = await client.responses.create({ ...ask, input: again });
const results = [read(first), ...(await readStream()), ...(await readChat()), read(second)];
process.stdout.write(JSON.stringify(results));
