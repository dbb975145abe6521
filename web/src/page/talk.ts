/** One conversation on the page: the client, what people do to it, what it costs. Draws nothing. */

import {
  type ClientEvent,
  codePoints,
  type FunctionCallItem,
  followBrowser,
  type Item,
  RealtimeClient,
  type Receipt,
  Refused,
  type ServerEvent,
  type SessionSettings,
  textOf,
} from '../client/index.js';
import { credentials } from './api.js';
import { type Kept, keep, type TurnMetrics } from './storage.js';

/** A regenerated answer differs, also where answers are greedy. */
const ANOTHER_TEMPERATURE = 0.8;
const SAVE_MS = 2000;

export interface LoggedEvent {
  at: number;
  sent: boolean;
  event: ClientEvent | ServerEvent;
}

const LOG_MAX = 5000;

export class Talk {
  readonly kept: Kept;
  readonly client: RealtimeClient;
  readonly log: LoggedEvent[] = [];
  /** Called with what a receipt was refused for. */
  onRefused: (refused: Refused) => void = () => undefined;
  onLogged: (logged: LoggedEvent) => void = () => undefined;
  onMetrics: () => void = () => undefined;
  onTitle: () => void = () => undefined;
  readonly #unfollow: () => void;
  readonly #saving: ReturnType<typeof setInterval>;
  readonly #leaving = new AbortController();
  #dirty = false;
  #sending = false;
  #left = false;
  /** When the answer under way was asked for, and its first and last tokens came. */
  #asked = 0;
  #first = 0;
  #last = 0;

  /** `fork`: begin as a session of the server was after an item. */
  constructor(kept: Kept, fork?: { session: string; at?: string }) {
    this.kept = kept;
    const base = location.origin.replace(/^http/, 'ws');
    this.client = new RealtimeClient({
      url: `${base}/v1/realtime`,
      session: kept.settings,
      credentials,
      ...(kept.model !== null && { model: kept.model }),
      ...(kept.position !== null && { resume: { ...kept.position } }),
      ...(fork && { fork }),
    });
    const { client } = this;
    client.conversation.load(kept.saved);
    client.on('*', (event) => {
      this.#heard(event);
    });
    client.onSent((event) => {
      this.#note(true, event);
    });
    for (const event of kept.pending) this.#watch(client.send(event));
    if (kept.position !== null || kept.pending.length > 0) client.draft.unsure();
    client.draft.set(kept.draft);
    this.#unfollow = followBrowser(client);
    this.#saving = setInterval(() => {
      if (this.#dirty) this.save();
    }, SAVE_MS);
    addEventListener('pagehide', () => this.save(), this.#leaving);
  }

  get empty(): boolean {
    return this.client.conversation.items.length === 0;
  }

  get running(): boolean {
    return this.client.conversation.running !== null;
  }

  get over(): boolean {
    return this.client.state.value.phase === 'ended';
  }

  // ---------------------------------------------------------------- talking

  /** The text of the composer, with every key. */
  type(text: string): void {
    this.kept.draft = text;
    this.#dirty = true;
    if (!this.over) this.client.draft.set(text);
  }

  /** Says the draft, and asks for an answer; one that is being given is stopped first. */
  async send(): Promise<void> {
    const text = this.kept.draft.trim();
    if (!text || this.#sending) return;
    this.#name(text);
    this.#sending = true;
    await this.stop();
    this.#sending = false;
    this.kept.draft = '';
    this.#watch(this.client.draft.commit());
    this.#respond();
    this.save();
  }

  /** Messages of the user that the server has not confirmed. */
  get unsent(): string[] {
    const texts: string[] = [];
    let buffer = '';
    for (const event of this.client.pending) {
      if (event.type === 'input_text_buffer.replace') buffer = event.text;
      else if (event.type === 'input_text_buffer.commit') texts.push(buffer);
      else if (event.type === 'conversation.item.create' && event.item.type === 'message') {
        const { role, id } = event.item;
        const known = id !== undefined && this.client.conversation.find(id) !== undefined;
        if (role === 'user' && !known) texts.push(textOf(event.item as Item));
      }
    }
    return texts;
  }

  /** Resolves when nothing is being answered any more. */
  async stop(): Promise<void> {
    if (!this.running) return;
    await this.client.cancel().acknowledged.catch(() => undefined);
  }

  /** What was spoken aloud stays; the rest was never said. `spoken`: UTF-16 units of the item. */
  async interrupt(item: Item, spoken: number): Promise<void> {
    await this.stop();
    this.#watch(this.client.truncate(item.id, codePoints(textOf(item).slice(0, spoken))));
  }

  /** An earlier message becomes another one; what followed it is taken back. */
  async edit(id: string, text: string): Promise<void> {
    await this.stop();
    this.#rewind(this.client.conversation.items.findIndex((item) => item.id === id));
    this.#watch(this.client.say(text));
    this.#respond();
  }

  /** The last answer is given again. */
  async regenerate(): Promise<void> {
    await this.stop();
    const { items } = this.client.conversation;
    const asked = items.findLastIndex((item) => item.type === 'message' && item.role === 'user');
    this.#rewind(asked + 1);
    const temperature = Math.max(this.client.session?.temperature ?? 0, ANOTHER_TEMPERATURE);
    this.#respond({ temperature, seed: null });
  }

  /** The answer to the last message, when it has failed. */
  retry(): void {
    this.#respond();
  }

  /** What a tool has returned; the model goes on when all that were called have. */
  answer(call: FunctionCallItem, output: string): void {
    const { call_id } = call;
    this.#watch(this.client.create({ type: 'function_call_output', call_id, output }));
    const open = this.openCalls.filter((one) => one.call_id !== call_id);
    if (open.length === 0) this.#respond();
  }

  /** Calls whose results are awaited. */
  get openCalls(): FunctionCallItem[] {
    const { items } = this.client.conversation;
    const done = new Set(
      items.filter((item) => item.type === 'function_call_output').map((item) => item.call_id),
    );
    return items.filter(
      (item): item is FunctionCallItem =>
        item.type === 'function_call' && !done.has(item.call_id) && item.status !== 'in_progress',
    );
  }

  /** Rejects with Refused, which names the field. */
  async configure(settings: SessionSettings): Promise<void> {
    await this.client.update(settings).acknowledged;
    this.kept.settings = { ...this.kept.settings, ...settings };
    this.save();
  }

  // ---------------------------------------------------------------- coming and going

  save(): void {
    if (this.#left) return;
    this.#dirty = false;
    const { client, kept } = this;
    // Without its connection it is another tab's, or nobody's: what is there is not touched.
    if (this.over) return;
    kept.position = client.position && { ...client.position };
    kept.saved = client.conversation.save();
    kept.pending = client.pending.filter((event) => !event.type.startsWith('session.'));
    if (!this.empty || kept.draft || kept.pending.length > 0) keep(kept);
  }

  /** The session stays on the server for a while. */
  leave(): void {
    this.save();
    this.#left = true;
    this.#leaving.abort();
    this.#unfollow();
    clearInterval(this.#saving);
    this.client.leave();
  }

  #respond(response?: Parameters<RealtimeClient['respond']>[0]): void {
    this.#asked = performance.now();
    this.#watch(this.client.respond(response));
  }

  #rewind(to: number): void {
    const after = this.client.conversation.items.slice(to);
    for (const item of after.reverse()) this.#watch(this.client.delete(item.id));
  }

  #watch(receipt: Receipt): void {
    this.#dirty = true;
    receipt.acknowledged.catch((error: unknown) => {
      if (error instanceof Refused) this.onRefused(error);
    });
  }

  #name(text: string): void {
    if (this.kept.title) return;
    this.kept.title = text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text;
    this.onTitle();
  }

  // ---------------------------------------------------------------- what it costs

  #heard(event: ServerEvent): void {
    this.#dirty = true;
    this.kept.updated = Date.now();
    this.#note(false, event);
    switch (event.type) {
      case 'response.created':
        this.#first = 0;
        break;
      case 'response.output_text.delta':
      case 'response.function_call_arguments.delta':
        this.#last = performance.now();
        this.#first ||= this.#last;
        break;
      case 'response.done':
        if (event.response.conversation_id !== null) this.#count(event);
        break;
      default:
        break;
    }
  }

  #count({ response }: Extract<ServerEvent, { type: 'response.done' }>): void {
    const { usage } = response;
    if (usage && this.#asked && this.#first && !this.metricsOf(response.id)) {
      const tokens = usage.output_tokens;
      const reused = usage.input_token_details.cached_tokens;
      const metrics: TurnMetrics = {
        id: response.id,
        ttft: this.#first - this.#asked,
        itl: this.#last > this.#first ? (this.#last - this.#first) / (tokens - 1) : null,
        tokens,
        prefilled: usage.input_tokens - reused,
        reused,
        residency: usage.residency ?? null,
      };
      this.kept.metrics.push(metrics);
      this.onMetrics();
    }
    this.#asked = this.#first = 0;
  }

  metricsOf(turnId: string): TurnMetrics | undefined {
    return this.kept.metrics.findLast((metrics) => metrics.id === turnId);
  }

  #note(sent: boolean, event: ClientEvent | ServerEvent): void {
    const logged = { at: Date.now(), sent, event };
    this.log.push(logged);
    if (this.log.length > LOG_MAX) this.log.splice(0, LOG_MAX / 10);
    this.onLogged(logged);
  }
}
