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
import { type Unanswered, unanswered } from './response_status.js';
import { type Kept, keep, load, type TurnMetrics } from './storage.js';
import { TurnClock } from './turn_timing.js';

/** A regenerated answer differs, also where answers are greedy. */
const ANOTHER_TEMPERATURE = 0.8;
const SAVE_MS = 2000;
/** Ends that another key undoes. */
const KEYS = new Set(['missing_api_key', 'invalid_api_key']);

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
  /** Called when there is more, or less, to say of the last answer than the conversation does. */
  onAnswered: () => void = () => undefined;
  /** Called when the draft has become another one here. */
  onDraft: () => void = () => undefined;
  readonly #unfollow: () => void;
  readonly #saving: ReturnType<typeof setInterval>;
  readonly #leaving = new AbortController();
  readonly #clock = new TurnClock();
  #dirty = false;
  /** What is said once nothing is being answered any more. */
  #sending: string | null = null;
  #left = false;
  #interrupted = false;
  /** Why no answer was begun when one was asked for. */
  #refusal = '';

  /** `fork`: begin as a session of the server was after an item. */
  constructor(kept: Kept, fork?: { session: string; at?: string; token?: string }) {
    this.kept = kept;
    const base = location.origin.replace(/^http/, 'ws');
    this.client = new RealtimeClient({
      url: `${base}/v1/realtime`,
      session: { ...kept.settings, include: ['response.interrupted'] },
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

  /** The answer waits for an engine to go on. */
  get interrupted(): boolean {
    return this.running && this.#interrupted;
  }

  get over(): boolean {
    return this.#endedBy !== null;
  }

  get #endedBy(): string | null {
    const { value } = this.client.state;
    return value.phase === 'ended' ? value.error.code : null;
  }

  /** Another tab has it: what is kept is that one's. */
  get #elsewhere(): boolean {
    return this.#endedBy === 'close_4001';
  }

  // ---------------------------------------------------------------- talking

  /** The text of the composer, with every key. */
  type(text: string): void {
    if (text.trim() !== this.#sending) this.#sending = null;
    this.kept.draft = text;
    this.#dirty = true;
    if (!this.over) this.client.draft.set(text);
  }

  /** Says the draft, and asks for an answer; one that is being given is stopped first, which can wait
   * for a connection: whoever changes the draft meanwhile says it when they send it again. */
  async send(): Promise<void> {
    const text = this.kept.draft.trim();
    if (!text || this.#sending === text) return;
    const { refusal } = this.client.draft;
    if (refusal) {
      this.onRefused(refusal);
      return;
    }
    this.#sending = text;
    await this.stop();
    if (this.#sending !== text) return;
    this.#sending = null;
    if (this.over) return;
    this.#name(text);
    this.kept.draft = '';
    this.#ask(this.client.draft.commit(), text);
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

  /** Resolves when it is connected and has heard all it had missed, or has ended. */
  async caughtUp(): Promise<void> {
    await this.client.update({}).acknowledged.catch(() => undefined);
  }

  /** An earlier message becomes another one; what followed it is taken back. */
  async edit(id: string, text: string): Promise<void> {
    if (this.over) {
      this.#giveBack(text);
      return;
    }
    await this.stop();
    this.#rewind(this.client.conversation.items.findIndex((item) => item.id === id));
    this.#ask(this.client.say(text), text);
  }

  /** The last answer is given again. */
  async regenerate(): Promise<void> {
    if (this.over) return;
    await this.stop();
    const { items } = this.client.conversation;
    const asked = items.findLastIndex((item) => item.type === 'message' && item.role === 'user');
    this.#rewind(asked + 1);
    const temperature = Math.max(this.client.session?.temperature ?? 0, ANOTHER_TEMPERATURE);
    this.#respond({ temperature, seed: null });
  }

  /** null: the last message has its answer, or there will be one. */
  get unanswered(): Unanswered | null {
    const { conversation, pending } = this.client;
    const asked = pending.some((event) => event.type === 'response.create');
    if (this.over || this.running || asked) return null;
    return unanswered(conversation, this.openCalls.length > 0, this.#refusal);
  }

  /** Asks for that answer again; what came of it is taken back. */
  retry(): void {
    const { conversation } = this.client;
    const last = conversation.items.at(-1)?.id ?? '';
    const broken = conversation.turnOf(last)?.items[0];
    if (broken) this.#rewind(conversation.items.findIndex((item) => item.id === broken));
    this.#respond();
  }

  /** What a tool has returned; the model goes on when all that were called have. */
  answer(call: FunctionCallItem, output: string): void {
    if (this.over) return;
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
        item.type === 'function_call' && !done.has(item.call_id) && isWhole(item),
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
    if (this.#elsewhere) return;
    const pending = client.pending.filter((event) => !event.type.startsWith('session.'));
    if (this.empty && !kept.draft && pending.length === 0) return;
    if (this.over) {
      keep(this.whatNext());
      return;
    }
    kept.position = client.position && { ...client.position };
    kept.saved = client.conversation.save();
    kept.pending = pending;
    keep(kept);
  }

  /** As it goes on after its end: where another tab or the server has it, or else in a session of its
   * own. What was written here and nobody has confirmed comes along. */
  whatNext(): Kept {
    const { kept, client } = this;
    const pending = client.pending.filter((event) => !event.type.startsWith('session.'));
    if (this.#elsewhere) {
      const theirs = load(kept.id) ?? kept;
      return { ...theirs, draft: kept.draft || theirs.draft, pending: union(theirs.pending, pending) };
    }
    if (KEYS.has(this.#endedBy ?? '')) return { ...kept, pending };
    return { ...kept, pending, saved: client.conversation.save(), position: null };
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

  /** The answer to a message. One that the server does not take goes back to where it was written. */
  #ask(message: Receipt, text: string): void {
    const answer = this.#respond();
    this.#watch(message, (refused) => {
      this.onRefused(refused);
      this.#giveBack(text);
      void this.#unask(answer);
    });
  }

  /** To where it can be sent from again. */
  #giveBack(text: string): void {
    this.type([text, this.kept.draft].filter(Boolean).join('\n'));
    this.onDraft();
  }

  /** An answer to nothing: as if it had never been asked for. */
  async #unask(answer: Receipt): Promise<void> {
    const begun = await answer.acknowledged.catch(() => null);
    if (begun?.type !== 'response.created') return;
    await this.stop();
    const { turns } = this.client.conversation;
    const turn = turns.find(({ id }) => id === begun.response.id);
    for (const id of turn?.items.toReversed() ?? []) this.#watch(this.client.delete(id));
  }

  #respond(response?: Parameters<RealtimeClient['respond']>[0]): Receipt {
    this.#clock.ask();
    this.#refusal = '';
    const receipt = this.client.respond(response);
    this.#watch(receipt, (refused) => {
      this.#refusal = refused.message;
      this.onAnswered();
    });
    return receipt;
  }

  /** Takes back all from an item on; -1: it is gone already. */
  #rewind(to: number): void {
    const after = to < 0 ? [] : this.client.conversation.items.slice(to);
    for (const item of after.reverse()) this.#watch(this.client.delete(item.id));
  }

  #watch(receipt: Receipt, refused = (error: Refused) => this.onRefused(error)): void {
    this.#dirty = true;
    receipt.acknowledged.catch((error: unknown) => {
      if (error instanceof Refused) refused(error);
    });
  }

  #name(text: string): void {
    if (this.kept.title) return;
    this.kept.title = text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text;
    this.onTitle();
  }

  // ---------------------------------------------------------------- what is heard

  #heard(event: ServerEvent): void {
    this.#dirty = true;
    this.kept.updated = Date.now();
    this.#note(false, event);
    const interrupted = event.type === 'response.interrupted';
    if (event.type.startsWith('response.')) this.#interrupt(interrupted);
    const metrics = this.#clock.hear(event);
    if (!metrics || this.metricsOf(metrics.id)) return;
    this.kept.metrics.push(metrics);
    this.onMetrics();
  }

  #interrupt(interrupted: boolean): void {
    if (interrupted === this.#interrupted) return;
    this.#interrupted = interrupted;
    this.onAnswered();
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

function isWhole(item: Item): boolean {
  return item.status !== 'in_progress' && item.status !== 'incomplete';
}

/** Each event once. */
function union(some: ClientEvent[], others: ClientEvent[]): ClientEvent[] {
  const known = new Set(some.map((event) => event.event_id));
  return [...some, ...others.filter((event) => !known.has(event.event_id))];
}
