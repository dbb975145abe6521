/** Controller of one conversation: its client, the user's actions, and the metrics of its turns. Draws
 * nothing. */

import {
  type ClientEvent,
  countCodePoints,
  EventRefusedError,
  type ForkOptions,
  type FunctionCallItem,
  type Item,
  RealtimeClient,
  type Receipt,
  reconnectOnBrowserEvents,
  type ServerEvent,
  type SessionSettings,
  textOf,
} from '../client/index.js';
import { fetchClientSecret } from './api.js';
import { describeMissingResponse, type MissingResponse } from './response_status.js';
import {
  loadConversation,
  saveConversation,
  type StoredConversation,
  type TurnMetrics,
} from './storage.js';
import { TurnTiming } from './turn_timing.js';

/** Minimum temperature of a regenerated response, so that it differs even with greedy sampling. */
const REGENERATE_TEMPERATURE_MIN = 0.8;
const SAVE_INTERVAL_MS = 2000;
/** Error codes that a valid API key resolves. */
const API_KEY_ERROR_CODES = new Set(['missing_api_key', 'invalid_api_key']);

/** A logged event; its field names are part of the format of the exported log. */
export interface LoggedEvent {
  at: number;
  sent: boolean;
  event: ClientEvent | ServerEvent;
}

const LOGGED_EVENTS_MAX = 5000;

export class ConversationController {
  readonly record: StoredConversation;
  readonly client: RealtimeClient;
  readonly loggedEvents: LoggedEvent[] = [];
  /** Called when the server refuses an event. */
  onEventRefused: (refused: EventRefusedError) => void = () => undefined;
  onEventLogged: (logged: LoggedEvent) => void = () => undefined;
  onMetricsChange: () => void = () => undefined;
  onTitleChange: () => void = () => undefined;
  /** Called when the status of the last response changes without a change of the conversation. */
  onResponseStatusChange: () => void = () => undefined;
  /** Called when the controller itself changes the draft. */
  onDraftChange: () => void = () => undefined;
  readonly #removeBrowserListeners: () => void;
  readonly #saveTimer: ReturnType<typeof setInterval>;
  readonly #pageListeners = new AbortController();
  readonly #timing = new TurnTiming();
  #isDirty = false;
  /** Message to send once the response in progress has been cancelled. */
  #queuedText: string | null = null;
  #isDisposed = false;
  #isInterrupted = false;
  /** Why the last request for a response was refused. */
  #responseRefusal = '';

  /** `fork`: begin with a fork of another session. */
  constructor(record: StoredConversation, fork?: ForkOptions) {
    this.record = record;
    const base = location.origin.replace(/^http/, 'ws');
    this.client = new RealtimeClient({
      url: `${base}/v1/realtime`,
      session: { ...record.settings, include: ['response.interrupted'] },
      getApiKey: fetchClientSecret,
      ...(record.model !== null && { model: record.model }),
      ...(record.position !== null && { resume: { ...record.position } }),
      ...(fork && { fork }),
    });
    const { client } = this;
    client.conversation.load(record.saved);
    client.on('*', (event) => {
      this.#onEvent(event);
    });
    client.onSent((event) => {
      this.#logEvent(true, event);
    });
    for (const event of record.pending) this.#reportRefusal(client.send(event));
    if (record.position !== null || record.pending.length > 0) client.draft.markBufferUnknown();
    client.draft.set(record.draft);
    this.#removeBrowserListeners = reconnectOnBrowserEvents(client);
    this.#saveTimer = setInterval(() => {
      if (this.#isDirty) this.save();
    }, SAVE_INTERVAL_MS);
    addEventListener('pagehide', () => this.save(), this.#pageListeners);
  }

  get isEmpty(): boolean {
    return this.client.conversation.items.length === 0;
  }

  get isResponding(): boolean {
    return this.client.conversation.activeTurn !== null;
  }

  /** Whether the response in progress waits for an engine to continue it. */
  get isInterrupted(): boolean {
    return this.isResponding && this.#isInterrupted;
  }

  /** Whether the connection is closed for good. */
  get isClosed(): boolean {
    return this.#closeErrorCode !== null;
  }

  get #closeErrorCode(): string | null {
    const { value } = this.client.state;
    return value.phase === 'closed' ? value.error.code : null;
  }

  /** Whether another tab has taken over the session; the stored conversation is then that tab's. */
  get #isTakenOver(): boolean {
    return this.#closeErrorCode === 'close_4001';
  }

  // ---------------------------------------------------------------- actions of the user

  /** Update the draft; called on every keystroke. */
  setDraft(text: string): void {
    if (text.trim() !== this.#queuedText) this.#queuedText = null;
    this.record.draft = text;
    this.#isDirty = true;
    if (!this.isClosed) this.client.draft.set(text);
  }

  /** Send the draft and request a response. A response in progress is cancelled first, which may have to
   * wait for a connection; if the draft changes meanwhile, it is not sent. */
  async send(): Promise<void> {
    const text = this.record.draft.trim();
    if (!text || this.#queuedText === text) return;
    const { refusal } = this.client.draft;
    if (refusal) {
      this.onEventRefused(refusal);
      return;
    }
    this.#queuedText = text;
    await this.cancelResponse();
    if (this.#queuedText !== text) return;
    this.#queuedText = null;
    if (this.isClosed) return;
    this.#setTitle(text);
    this.record.draft = '';
    this.#requestResponseTo(this.client.draft.commit(), text);
    this.save();
  }

  /** Texts of the user messages that the server has not acknowledged. */
  get pendingMessages(): string[] {
    const texts: string[] = [];
    let buffer = '';
    for (const event of this.client.pendingEvents) {
      if (event.type === 'input_text_buffer.replace') buffer = event.text;
      else if (event.type === 'input_text_buffer.commit') texts.push(buffer);
      else if (event.type === 'conversation.item.create' && event.item.type === 'message') {
        const { role, id } = event.item;
        const known = id !== undefined && this.client.conversation.findItem(id) !== undefined;
        if (role === 'user' && !known) texts.push(textOf(event.item as Item));
      }
    }
    return texts;
  }

  /** Cancel the response in progress, if any, and wait until it has ended. */
  async cancelResponse(): Promise<void> {
    if (!this.isResponding) return;
    await this.client.cancelResponse().acknowledged.catch(() => undefined);
  }

  /** Cancel the response and truncate `item` to its first `spokenChars` UTF-16 units, those read aloud. */
  async truncateToSpoken(item: Item, spokenChars: number): Promise<void> {
    await this.cancelResponse();
    const spoken = textOf(item).slice(0, spokenChars);
    this.#reportRefusal(this.client.truncateItem(item.id, countCodePoints(spoken)));
  }

  /** Wait until the client has received all missed events, or its connection is closed for good. */
  async synchronize(): Promise<void> {
    await this.client.updateSession({}).acknowledged.catch(() => undefined);
  }

  /** Replace a user message, delete everything after it, and request a response. */
  async editMessage(id: string, text: string): Promise<void> {
    if (this.isClosed) {
      this.#restoreDraft(text);
      return;
    }
    await this.cancelResponse();
    this.#deleteFrom(this.client.conversation.items.findIndex((item) => item.id === id));
    this.#requestResponseTo(this.client.sendUserMessage(text), text);
  }

  /** Delete the last response and request another one. */
  async regenerate(): Promise<void> {
    if (this.isClosed) return;
    await this.cancelResponse();
    const { items } = this.client.conversation;
    const lastUserMessage = items.findLastIndex((item) => item.type === 'message' && item.role === 'user');
    this.#deleteFrom(lastUserMessage + 1);
    const temperature = Math.max(this.client.session?.temperature ?? 0, REGENERATE_TEMPERATURE_MIN);
    this.#requestResponse({ temperature, seed: null });
  }

  /** Why the last message has no response; null if it has one or one is pending. */
  get missingResponse(): MissingResponse | null {
    const { conversation, pendingEvents } = this.client;
    const requested = pendingEvents.some((event) => event.type === 'response.create');
    if (this.isClosed || this.isResponding || requested) return null;
    return describeMissingResponse(conversation, this.pendingCalls.length > 0, this.#responseRefusal);
  }

  /** Delete what was generated of the failed response and request it again. */
  retryResponse(): void {
    const { conversation } = this.client;
    const last = conversation.items.at(-1)?.id ?? '';
    const failedItem = conversation.turnOf(last)?.items[0];
    if (failedItem) this.#deleteFrom(conversation.items.findIndex((item) => item.id === failedItem));
    this.#requestResponse();
  }

  /** Send a tool result; once every call has one, request a response. */
  submitToolResult(call: FunctionCallItem, output: string): void {
    if (this.isClosed) return;
    const { call_id } = call;
    this.#reportRefusal(this.client.createItem({ type: 'function_call_output', call_id, output }));
    const open = this.pendingCalls.filter((one) => one.call_id !== call_id);
    if (open.length === 0) this.#requestResponse();
  }

  /** Tool calls without a result. */
  get pendingCalls(): FunctionCallItem[] {
    const { items } = this.client.conversation;
    const done = new Set(
      items.filter((item) => item.type === 'function_call_output').map((item) => item.call_id),
    );
    return items.filter(
      (item): item is FunctionCallItem =>
        item.type === 'function_call' && !done.has(item.call_id) && isComplete(item),
    );
  }

  /** Update the session's settings. Rejects with EventRefusedError, which names the field. */
  async updateSettings(settings: SessionSettings): Promise<void> {
    await this.client.updateSession(settings).acknowledged;
    this.record.settings = { ...this.record.settings, ...settings };
    this.save();
  }

  // ---------------------------------------------------------------- storage and connection

  /** Store the conversation in this browser. */
  save(): void {
    if (this.#isDisposed) return;
    this.#isDirty = false;
    const { client, record } = this;
    if (this.#isTakenOver) return;
    const pending = client.pendingEvents.filter((event) => !event.type.startsWith('session.'));
    if (this.isEmpty && !record.draft && pending.length === 0) return;
    if (this.isClosed) {
      saveConversation(this.recordForReconnect());
      return;
    }
    record.position = client.resumePoint && { ...client.resumePoint };
    record.saved = client.conversation.toJSON();
    record.pending = pending;
    saveConversation(record);
  }

  /** Returns the record from which a closed conversation reconnects: the one stored by the tab that took
   * over, the same session with another key, or else a new session. Unacknowledged events are kept. */
  recordForReconnect(): StoredConversation {
    const { record, client } = this;
    const pending = client.pendingEvents.filter((event) => !event.type.startsWith('session.'));
    if (this.#isTakenOver) {
      const otherTab = loadConversation(record.id) ?? record;
      const draft = record.draft || otherTab.draft;
      return { ...otherTab, draft, pending: mergeById(otherTab.pending, pending) };
    }
    if (API_KEY_ERROR_CODES.has(this.#closeErrorCode ?? '')) return { ...record, pending };
    return { ...record, pending, saved: client.conversation.toJSON(), position: null };
  }

  /** Disconnect and release resources. The session can be resumed for a limited time. */
  dispose(): void {
    this.save();
    this.#isDisposed = true;
    this.#pageListeners.abort();
    this.#removeBrowserListeners();
    clearInterval(this.#saveTimer);
    this.client.disconnect();
  }

  /** Request a response to a message. If the server refuses the message, its text returns to the draft. */
  #requestResponseTo(message: Receipt, text: string): void {
    const response = this.#requestResponse();
    this.#reportRefusal(message, (refused) => {
      this.onEventRefused(refused);
      this.#restoreDraft(text);
      void this.#discardResponse(response);
    });
  }

  /** Put a text back in front of the draft. */
  #restoreDraft(text: string): void {
    this.setDraft([text, this.record.draft].filter(Boolean).join('\n'));
    this.onDraftChange();
  }

  /** Cancel a response whose message was refused, and delete its items. */
  async #discardResponse(response: Receipt): Promise<void> {
    const created = await response.acknowledged.catch(() => null);
    if (created?.type !== 'response.created') return;
    await this.cancelResponse();
    const { turns } = this.client.conversation;
    const turn = turns.find(({ id }) => id === created.response.id);
    for (const id of turn?.items.toReversed() ?? []) this.#reportRefusal(this.client.deleteItem(id));
  }

  #requestResponse(response?: Parameters<RealtimeClient['createResponse']>[0]): Receipt {
    this.#timing.markRequested();
    this.#responseRefusal = '';
    const receipt = this.client.createResponse(response);
    this.#reportRefusal(receipt, (refused) => {
      this.#responseRefusal = refused.message;
      this.onResponseStatusChange();
    });
    return receipt;
  }

  /** Delete the items from `index` on; none if it is negative. */
  #deleteFrom(index: number): void {
    const after = index < 0 ? [] : this.client.conversation.items.slice(index);
    for (const item of after.reverse()) this.#reportRefusal(this.client.deleteItem(item.id));
  }

  /** Call `onRefused` if the server refuses the event of `receipt`. */
  #reportRefusal(
    receipt: Receipt,
    onRefused = (error: EventRefusedError) => this.onEventRefused(error),
  ): void {
    this.#isDirty = true;
    receipt.acknowledged.catch((error: unknown) => {
      if (error instanceof EventRefusedError) onRefused(error);
    });
  }

  #setTitle(text: string): void {
    if (this.record.title) return;
    this.record.title = text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text;
    this.onTitleChange();
  }

  // ---------------------------------------------------------------- server events

  #onEvent(event: ServerEvent): void {
    this.#isDirty = true;
    this.record.updated = Date.now();
    this.#logEvent(false, event);
    const interrupted = event.type === 'response.interrupted';
    if (event.type.startsWith('response.')) this.#setInterrupted(interrupted);
    const metrics = this.#timing.receive(event);
    if (!metrics || this.metricsOf(metrics.id)) return;
    this.record.metrics.push(metrics);
    this.onMetricsChange();
  }

  #setInterrupted(interrupted: boolean): void {
    if (interrupted === this.#isInterrupted) return;
    this.#isInterrupted = interrupted;
    this.onResponseStatusChange();
  }

  metricsOf(turnId: string): TurnMetrics | undefined {
    return this.record.metrics.findLast((metrics) => metrics.id === turnId);
  }

  #logEvent(sent: boolean, event: ClientEvent | ServerEvent): void {
    const logged = { at: Date.now(), sent, event };
    this.loggedEvents.push(logged);
    if (this.loggedEvents.length > LOGGED_EVENTS_MAX) this.loggedEvents.splice(0, LOGGED_EVENTS_MAX / 10);
    this.onEventLogged(logged);
  }
}

function isComplete(item: Item): boolean {
  return item.status !== 'in_progress' && item.status !== 'incomplete';
}

/** Returns both lists without duplicate event ids. */
function mergeById(some: ClientEvent[], others: ClientEvent[]): ClientEvent[] {
  const known = new Set(some.map((event) => event.event_id));
  return [...some, ...others.filter((event) => !known.has(event.event_id))];
}
