/** The program of a page that uses the openai SDK. `openai_sdk.test.ts` bundles it. */

import OpenAI from 'openai';
import { OpenAIRealtimeWebSocket } from 'openai/realtime/websocket';

const QUESTION = 'What is 3 plus 4?';
const MESSAGES = [{ role: 'user', content: QUESTION }] as const;
const MODEL = 'demo';

function clientOf(baseURL: string, apiKey: string): OpenAI {
  return new OpenAI({ baseURL, apiKey, maxRetries: 0, dangerouslyAllowBrowser: true });
}

/** Each returns the text of an answer. Each rejects with an error of the SDK. */
const programs = {
  async chatCompletions(baseURL: string, apiKey: string): Promise<string> {
    const request = { model: MODEL, messages: [...MESSAGES], temperature: 0 };
    const stream = await clientOf(baseURL, apiKey).chat.completions.create({ ...request, stream: true });
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
    return text;
  },

  async responses(baseURL: string, apiKey: string): Promise<string> {
    const client = clientOf(baseURL, apiKey);
    const response = await client.responses.create({ model: MODEL, input: QUESTION, temperature: 0 });
    if (!response._request_id) throw new Error('the page cannot read X-Request-Id');
    await client.responses.delete(response.id);
    return response.output_text;
  },

  /** With a client secret, which a server would request for its page. */
  async realtime(baseURL: string, apiKey: string): Promise<string> {
    const client = clientOf(baseURL, apiKey);
    const secret = await client.realtime.clientSecrets.create({ session: { type: 'realtime' } });
    return converse(clientOf(baseURL, secret.value));
  },

  /** With the key itself, and without a request by HTTP before it. */
  realtimeAtOnce: (baseURL: string, apiKey: string): Promise<string> => converse(clientOf(baseURL, apiKey)),
};

function converse(client: OpenAI): Promise<string> {
  const connection = new OpenAIRealtimeWebSocket({ model: MODEL, dangerouslyAllowBrowser: true }, client);
  return new Promise((resolve, reject) => {
    let text = '';
    connection.on('session.created', () => {
      const content = [{ type: 'input_text' as const, text: QUESTION }];
      connection.send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } });
      connection.send({ type: 'response.create' });
    });
    connection.on('response.output_text.delta', ({ delta }) => (text += delta));
    connection.on('response.done', () => {
      connection.close();
      resolve(text);
    });
    connection.on('error', reject);
  });
}

/** What a program returns, or the class and the text of its error. */
export async function run(program: keyof typeof programs, baseURL: string, apiKey: string): Promise<string> {
  try {
    return await programs[program](baseURL, apiKey);
  } catch (error) {
    return error instanceof OpenAI.APIError
      ? `${error.status ?? 'unreachable'}: ${error.message}`
      : String(error);
  }
}

Object.assign(globalThis, { run });
