/**
 * One response as it is generated, and the tool calls on the way to its text.
 *
 *     const text = await client.ask('hello');                the whole text
 *     for await (const delta of client.ask('hello')) …       the text as it arrives
 *
 * A model that calls tools is answered by their handlers, and asked again, until it answers with text: all
 * of that is one stream.
 */

import { type Conversation, countCodePoints, textOf } from './conversation.js';
import type {
  ClientEvent,
  FunctionCallItem,
  Item,
  RealtimeResponse,
  ResponseSettings,
  ResponseStatus,
  Usage,
} from './events.js';
import { EventRefusedError, type Receipt } from './outbox.js';
import { callTool, type HandledTool } from './tools.js';

/** Number of responses with calls in a row after which the model is not allowed to call again. */
const TOOL_ROUNDS_MAX = 16;

/** A response failed. The session is intact, and the connection stays open. */
export class ResponseFailedError extends Error {
  readonly code: string;
  /** What had been generated. */
  readonly text: string;

  constructor(code: string, message: string, text: string) {
    super(message);
    this.name = 'ResponseFailedError';
    this.code = code;
    this.text = text;
  }
}

export type ResponseRequest = ClientEvent & { type: 'response.create'; event_id: string };

/** The part of a client that a stream uses. */
export interface ResponseClient {
  readonly conversation: Conversation;
  /** Tools whose calls are answered, by name. */
  readonly tools: Readonly<Record<string, HandledTool>>;
  newEventId(): string;
  send(event: ClientEvent): Receipt;
  /** Send a request, and route the events of its response to `stream`. */
  requestResponse(stream: ResponseStream, request: ResponseRequest): void;
}

/** A response. Await it for its text, or iterate over the text as it arrives; it proceeds in any case. Both
 * throw EventRefusedError if the request was refused, ResponseFailedError, ConnectionClosedError, and what the
 * handler of a tool throws. A response that was cancelled or cut short returns the text it has. */
export class ResponseStream implements PromiseLike<string>, AsyncIterable<string> {
  readonly #client: ResponseClient;
  readonly #settings: ResponseSettings;
  readonly #ended: Promise<string>;
  #hasEnded = false;
  #text = '';
  /** Text of the responses before the current one, if tools were called. */
  #textBefore = '';
  #reasoning = '';
  #reasoningBefore = '';
  /** How often the text began again, after a snapshot. */
  #restarts = 0;
  #response: RealtimeResponse | null = null;
  readonly #output: Item[] = [];
  /** Id of the current response, once it has been created. */
  #responseId: string | null = null;
  #request: ResponseRequest | null = null;
  /** The last item of the conversation when the response was requested. */
  #anchor: string | undefined;
  /** Whether the server has announced the response, after a snapshot again. */
  #isAnnounced = false;
  /** How the current response ended. */
  #outcome: RealtimeResponse | Error | null = null;
  /** Aborted when the stream is cancelled. */
  readonly #cancellation = new AbortController();
  #waiters: (() => void)[] = [];

  /** `prepare`: what to do before the request is sent, such as adding a message. */
  constructor(client: ResponseClient, settings: ResponseSettings, prepare: () => Promise<unknown>) {
    this.#client = client;
    this.#settings = settings;
    this.#ended = this.#run(prepare).finally(() => {
      this.#hasEnded = true;
      this.#notify();
    });
    this.#ended.catch(() => undefined); // a stream may be ignored without an unhandled rejection
  }

  // ---------------------------------------------------------------- reading

  then<T = string, E = never>(
    onText?: ((text: string) => T | PromiseLike<T>) | null,
    onError?: ((error: unknown) => E | PromiseLike<E>) | null,
  ): Promise<T | E> {
    return this.#ended.then(onText, onError);
  }

  /** Iterate over the text from its beginning. Text that the reader is late for is merged. If the server
   * had to generate the response again and the new text differs from what was iterated over, the iteration
   * continues with all of the new text: `text` is always right. */
  async *[Symbol.asyncIterator](): AsyncGenerator<string, void, undefined> {
    let shown = '';
    let restarts = 0;
    for (;;) {
      const text = this.#text;
      const hasEnded = this.#hasEnded;
      if (restarts !== this.#restarts && (hasEnded || !shown.startsWith(text))) {
        restarts = this.#restarts;
        if (!text.startsWith(shown)) shown = '';
      }
      if (restarts === this.#restarts && text.length > shown.length) {
        yield text.slice(shown.length);
        shown = text;
      } else if (hasEnded) {
        await this.#ended;
        return;
      } else await this.#change();
    }
  }

  /** The text so far: of all responses up to here, if tools were called. */
  get text(): string {
    return this.#text;
  }

  /** The reasoning so far, if the session includes `response.reasoning_text`. It is no part of the text. */
  get reasoning(): string {
    return this.#reasoning;
  }

  /** The last response that ended. */
  get response(): RealtimeResponse | null {
    return this.#response;
  }

  get status(): ResponseStatus {
    return (this.#hasEnded ? this.#response?.status : undefined) ?? 'in_progress';
  }

  get usage(): Usage | null {
    return this.#response?.usage ?? null;
  }

  /** The tool calls that the model requested so far. */
  get calls(): FunctionCallItem[] {
    return this.#output.filter((item) => item.type === 'function_call');
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  // ---------------------------------------------------------------- interrupting

  /** Cancel the response within one step of the model. Returns the text generated so far, which stays in
   * the conversation. No effect on a response that has ended. */
  async cancel(): Promise<string> {
    this.#cancellation.abort();
    while (this.#responseId === null && !this.#hasEnded) await this.#change();
    if (this.#outcome === null && this.#responseId !== null) {
      const response_id = this.#responseId;
      await this.#client
        .send({ type: 'response.cancel', response_id })
        .acknowledged.catch((error: unknown) => {
          if (!isRefusal(error, 'response_cancel_not_active')) throw error;
        });
    }
    return this.#ended;
  }

  /** Cancel the response, and keep only the first `keep` UTF-16 units of its text in the conversation, as
   * `text.slice(0, keep)` does: what the user has read or heard. Returns the text kept. */
  async interrupt({ keep }: { keep: number }): Promise<string> {
    await this.cancel();
    const kept = sliceText(this.#text, keep);
    let left = kept.length;
    const edits: Receipt[] = [];
    for (const { id, ...rest } of this.#output) {
      const item = this.#client.conversation.findItem(id);
      if (rest.type !== 'message' || item === undefined) continue;
      const text = textOf(item);
      if (left <= 0) edits.push(this.#client.send({ type: 'conversation.item.delete', item_id: id }));
      else if (left < text.length) {
        const text_end = countCodePoints(text.slice(0, left));
        const truncate = { type: 'conversation.item.truncate', item_id: id, content_index: 0 } as const;
        edits.push(this.#client.send({ ...truncate, text_end }));
      }
      left -= text.length;
    }
    await Promise.all(edits.map((edit) => edit.acknowledged));
    this.#text = kept;
    return kept;
  }

  // ---------------------------------------------------------------- events, from the client

  /** Id of the response, once it has been created. */
  get responseId(): string | null {
    return this.#responseId;
  }

  /** The server has created the response, or announces it again in a snapshot. After its end, which a server
   * repeats for each request sent again, nothing changes. */
  onCreated(response: RealtimeResponse): void {
    if (this.#outcome !== null) return;
    if (this.#responseId !== null) this.#restarts += 1;
    this.#responseId = response.id;
    this.#isAnnounced = true;
    this.#text = this.#textBefore;
    this.#reasoning = this.#reasoningBefore;
    this.#notify();
  }

  onReasoning(delta: string): void {
    this.#reasoning += delta;
    this.#notify();
  }

  onDelta(delta: string): void {
    this.#text += delta;
    this.#notify();
  }

  onDone(response: RealtimeResponse): void {
    if (this.#outcome !== null) return;
    this.#response = response;
    this.#output.push(...response.output);
    const text = this.#textBefore + response.output.map(textOf).join('');
    if (!text.startsWith(this.#text)) this.#restarts += 1;
    this.#text = text;
    this.#settle(response);
  }

  /** Expect the server to announce the response again, if it is still in progress. */
  expectAnnouncement(): void {
    this.#isAnnounced = false;
  }

  /** Returns the request to send again, if the response was created and the server no longer knows of it.
   * `isNewSession`: the request gets a new id, because the server would not know the old one. */
  requestAgain(isNewSession: boolean): ResponseRequest | null {
    const isLost = this.#responseId !== null && this.#outcome === null && !this.#isAnnounced;
    if (!isLost || this.#request === null) return null;
    if (isNewSession) this.#request = { ...this.#request, event_id: this.#client.newEventId() };
    return this.#request;
  }

  /** The request was refused. If that is because its response is over, the items are in the conversation. */
  onRefused(error: Error): void {
    const output = this.#outputAfterAnchor();
    if (!isRefusal(error, 'response_already_created') || output.length === 0) {
      this.fail(error);
      return;
    }
    const isComplete = output.every((item) => item.status === 'completed');
    this.onDone({
      id: this.#responseId ?? '',
      status: isComplete ? 'completed' : 'incomplete',
      status_details: null,
      output,
      conversation_id: null,
      usage: null,
      metadata: null,
    });
  }

  /** End the stream with an error. */
  fail(error: Error): void {
    this.#cancellation.abort(); // the result of a call cannot be sent any more
    this.#settle(error);
  }

  #settle(outcome: RealtimeResponse | Error): void {
    this.#outcome ??= outcome;
    this.#notify();
  }

  // ---------------------------------------------------------------- the request

  async #run(prepare: () => Promise<unknown>): Promise<string> {
    await prepare();
    const { tool_choice: _, ...laterSettings } = this.#settings; // a forced call would be forced again
    let settings = this.#settings;
    for (let round = 1; ; round += 1) {
      const response = await this.#respond(settings);
      const calls = response.output.filter((item) => item.type === 'function_call');
      if (!this.#canAnswer(calls)) return this.#text;
      this.#textBefore = this.#text;
      this.#reasoningBefore = this.#reasoning;
      await this.#answer(calls);
      if (this.#cancellation.signal.aborted || response.status !== 'completed') return this.#text;
      settings = round < TOOL_ROUNDS_MAX ? laterSettings : { ...laterSettings, tool_choice: 'none' };
    }
  }

  /** Returns whether each call has a handler, and its result a place in the conversation. */
  #canAnswer(calls: FunctionCallItem[]): boolean {
    const { tools } = this.#client;
    const areHandled = calls.length > 0 && calls.every(({ name }) => Object.hasOwn(tools, name));
    return areHandled && this.#settings.conversation !== 'none';
  }

  /** Call the handlers, all at once, and add their results to the conversation. Then throws the first error
   * that is no ToolError. */
  async #answer(calls: FunctionCallItem[]): Promise<void> {
    const { tools } = this.#client;
    const { signal } = this.#cancellation;
    const answers = calls.flatMap(({ call_id, name, arguments: json }) => {
      const tool = tools[name];
      return tool ? [callTool(name, tool, json, signal).then((answer) => ({ call_id, ...answer }))] : [];
    });
    const answered = await Promise.all(answers);
    const sent = answered.map(({ call_id, output }) => {
      const item = { type: 'function_call_output' as const, call_id, output };
      return this.#client.send({ type: 'conversation.item.create', item }).acknowledged;
    });
    await Promise.all(sent);
    const error = answered.find((answer) => answer.error !== undefined)?.error;
    if (error !== undefined) throw error;
  }

  /** Request a response and wait for its end. */
  async #respond(settings: ResponseSettings): Promise<RealtimeResponse> {
    const hasSettings = Object.keys(settings).length > 0;
    this.#responseId = null;
    this.#outcome = null;
    this.#anchor = this.#client.conversation.items.at(-1)?.id;
    this.#request = {
      type: 'response.create',
      event_id: this.#client.newEventId(),
      ...(hasSettings && { response: settings }),
    };
    this.#client.requestResponse(this, this.#request);
    const response = await this.#end();
    if (response.status !== 'failed') return response;
    const error = response.status_details?.error;
    const message = error?.message ?? 'The response failed.';
    throw new ResponseFailedError(error?.code ?? 'failed', message, this.#text);
  }

  /** Wait for the end of the current response. */
  async #end(): Promise<RealtimeResponse> {
    while (this.#outcome === null) await this.#change();
    if (this.#outcome instanceof Error) throw this.#outcome;
    return this.#outcome;
  }

  /** Returns the items after the anchor, up to the next that is no output of a model. */
  #outputAfterAnchor(): Item[] {
    const { items } = this.#client.conversation;
    const after = items.slice(items.findIndex((item) => item.id === this.#anchor) + 1);
    const end = after.findIndex((item) =>
      item.type === 'message' ? item.role !== 'assistant' : item.type === 'function_call_output',
    );
    return end < 0 ? after : after.slice(0, end);
  }

  #change(): Promise<void> {
    return new Promise((resolve) => this.#waiters.push(resolve));
  }

  #notify(): void {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const resolve of waiters) resolve();
  }
}

function isRefusal(error: unknown, code: string): boolean {
  return error instanceof EventRefusedError && error.code === code;
}

/** Returns the first `end` UTF-16 units of a text, without half a character at the end. */
function sliceText(text: string, end: number): string {
  const kept = text.slice(0, Math.max(0, end));
  return /[\uD800-\uDBFF]$/.test(kept) ? kept.slice(0, -1) : kept;
}
