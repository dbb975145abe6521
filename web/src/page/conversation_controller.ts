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
  type ResponseSettings,
  type ServerEvent,
  type SessionSettings,
  textOf,
} from '../client/index.js';
import { fetchClientSecret, serverUrl } from './api.js';
import { eventIdsOf, messageOf, MessageQueue, type QueuedMessage } from './message_queue.js';
import { describeRefusal } from './refusal_text.js';
import { describeMissingResponse, type MissingResponse } from './response_status.js';
import {
  deleteVersion,
  loadConversation,
  randomId,
  saveConversation,
  saveQueued,
  type StoredConversation,
  titleOf,
  type TurnMetrics,
} from './storage.js';
import { type Thought, Thoughts } from './thoughts.js';
import { TurnTiming } from './turn_timing.js';

/** Minimum temperature of a regenerated response, so that it differs even with greedy sampling. */
const REGENERATE_TEMPERATURE_MIN = 0.8;
const SAVE_INTERVAL_MS = 2000;
/** Error codes that a valid API key resolves. */
const API_KEY_ERROR_CODES = new Set(['close_4004', 'missing_api_key', 'invalid_api_key']);

/** A logged event; its field names are part of the format of the exported log. */
export interface LoggedEvent {
  at: number;
  sent: boolean;
  event: ClientEvent | ServerEvent;
}

/** The first `chars` UTF-16 units of a message. */
export interface ShownPart {
  itemId: string;
  chars: number;
}

/** How to request a response: with settings of its own, and under an id if it may be requested twice. */
interface ResponseRequest {
  response?: ResponseSettings | undefined;
  event_id?: string;
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
  /** Called when the server refuses a message, or the user takes it back, with its text. */
  onMessageReturned: (text: string) => void = (text) => {
    this.restoreDraft(text);
  };
  readonly #removeBrowserListeners: () => void;
  readonly #saveTimer: ReturnType<typeof setInterval>;
  readonly #pageListeners = new AbortController();
  readonly #timing = new TurnTiming();
  readonly #thoughts: Thoughts;
  readonly #queue: MessageQueue;
  /** Responses to messages that were refused. */
  readonly #discardedResponses = new Set<string>();
  /** Pending until the response that is being cancelled has ended. */
  #cancellation: Promise<unknown> | null = null;
  #isDirty = false;
  #isDisposed = false;
  #isInterrupted = false;
  /** Why the last request for a response was refused. */
  #responseRefusal = '';
  #shown: ShownPart | null = null;

  /** `fork`: begin with a fork of another session. */
  constructor(record: StoredConversation, fork?: ForkOptions) {
    this.record = record;
    this.#thoughts = new Thoughts(record.thoughts);
    this.#queue = new MessageQueue(record.id);
    for (const message of record.queue ?? []) {
      if (!this.#queue.has(message.id)) saveQueued(record, this.#queue, message);
    }
    record.queue = [];
    this.client = new RealtimeClient({
      url: serverUrl('v1/realtime').replace(/^http/, 'ws'),
      session: { ...record.settings, include: ['response.interrupted', 'response.reasoning_text'] },
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
      if (event.type === 'response.create') this.#timing.markRequested();
      this.#logEvent(true, event);
    });
    this.#sendPending(record.pending.filter(({ event_id }) => !this.#queue.has(messageOf(event_id) ?? '')));
    if (record.position !== null || record.pending.length > 0) client.draft.markBufferUnknown();
    client.draft.set(record.draft);
    this.#removeBrowserListeners = reconnectOnBrowserEvents(client);
    this.#saveTimer = setInterval(() => {
      if (this.#isDirty) this.save();
    }, SAVE_INTERVAL_MS);
    addEventListener('pagehide', () => this.save(), this.#pageListeners);
    client.state.subscribe(({ phase }) => {
      if (phase !== 'open') this.#timing.markDisconnected();
    });
    client.caughtUp.subscribe(() => {
      this.#scheduleQueued();
    });
    client.onConversationChange(() => {
      this.#updateTitle();
      this.#scheduleQueued();
    });
  }

  /** The message of which only a part is shown, as if it were read aloud; null if all are shown whole. */
  get shown(): ShownPart | null {
    return this.#shown;
  }

  set shown(shown: ShownPart | null) {
    if (shown?.chars === this.#shown?.chars && shown?.itemId === this.#shown?.itemId) return;
    this.#shown = shown;
    this.onResponseStatusChange();
  }

  get isEmpty(): boolean {
    return this.client.conversation.items.every((item) => this.isDiscarded(item.id));
  }

  get isResponding(): boolean {
    return this.client.conversation.activeTurn !== null;
  }

  /** Id of the model; null until the server has named the default one. */
  get model(): string | null {
    return this.record.model ?? this.client.session?.model ?? null;
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
    this.record.draft = text;
    this.#isDirty = true;
    if (!this.isClosed) this.client.draft.set(text);
  }

  /** Send the draft as a message and request a response. A response in progress is cancelled first. Without
   * a connection the message is queued, as are all after it until each has had its response. */
  send(response?: ResponseSettings): void {
    const text = this.record.draft.trim();
    if (!text) return;
    const { refusal } = this.client.draft;
    if (refusal) {
      this.onEventRefused(refusal);
      return;
    }
    this.record.draft = '';
    if (this.queue.length === 0 && this.client.caughtUp.value && !this.#isResponseDue) {
      void this.#requestResponseTo(this.client.draft.commit(), text, { response });
      this.#updateTitle();
      this.save();
    } else {
      if (!this.isClosed) this.client.draft.set('');
      this.enqueue(text, response);
    }
  }

  /** Queue a message, to be sent when the connection is open and no other waits for its response. */
  enqueue(text: string, response?: ResponseSettings): void {
    const interrupts = this.queue.length === 0 && this.#isResponseDue;
    saveQueued(this.record, this.#queue, { id: `item_${randomId()}`, text, interrupts, ...(response && { response }) });
    this.#updateTitle();
    this.save();
    this.#scheduleQueued();
  }

  /** Messages that this tab has not sent. */
  get queue(): readonly QueuedMessage[] {
    const { messages } = this.#queue;
    if (messages.length === 0) return messages;
    const pending = new Set(this.client.pendingEvents.map(({ event_id }) => messageOf(event_id)));
    return messages.filter(({ id }) => !pending.has(id));
  }

  /** Take over what another tab has queued, sent or taken back. `key`: what it has stored. */
  onOtherTabStored(key: string): void {
    if (!this.#queue.owns(key)) return;
    this.#queue.reload();
    this.#onQueueChange();
  }

  #onQueueChange(): void {
    this.#updateTitle();
    this.#scheduleQueued();
    this.onResponseStatusChange();
  }

  /** Remove a message from the queue; its text returns to the draft. */
  takeBack(id: string): void {
    const message = this.queue.find((one) => one.id === id);
    if (!message || message.isSent) return;
    if (this.#queue.remove(id)) this.onMessageReturned(message.text);
    this.save();
    this.#onQueueChange();
  }

  /** Whether a response is in progress or requested. */
  get #isResponseDue(): boolean {
    return this.isResponding || this.client.pendingEvents.some(({ type }) => type === 'response.create');
  }

  /** Send the first message of the queue once what is being processed has been: an event that opens the
   * connection must be processed completely before anything is sent. */
  #scheduleQueued(): void {
    if (this.queue.length > 0) setTimeout(() => this.#sendQueued(), 0);
  }

  #sendQueued(): void {
    const [next] = this.queue;
    if (!next || !this.client.caughtUp.value || this.#isDisposed) return;
    if (this.#isResponseDue) {
      if (next.interrupts) void this.cancelResponse();
      return;
    }
    const { id, text } = next;
    const { items } = this.client.conversation;
    const position = items.findIndex((item) => item.id === id);
    const isAnswered = position >= 0 && position < items.length - 1; // in another tab
    if (isAnswered) this.#queue.remove(id);
    if (isAnswered || !this.#queue.markSent(id)) {
      this.#onQueueChange();
      return;
    }
    const { create, respond } = eventIdsOf(id);
    const content = [{ type: 'input_text' as const, text }];
    const item = { id, type: 'message' as const, role: 'user' as const, content };
    const created =
      position < 0
        ? this.client.send({ type: 'conversation.item.create', event_id: create, item }).acknowledged
        : Promise.resolve();
    const response = this.#requestResponse({ response: next.response, event_id: respond });
    void this.#removeSent(id, created, response.acknowledged);
    void this.#onMessageSettled(created, text, response);
    this.save();
    this.onResponseStatusChange();
  }

  /** Remove a message from the queue once the server has refused it, or has answered both events; without an
   * answer it stays there for the tab that is connected next. */
  async #removeSent(id: string, created: Promise<unknown>, responded: Promise<unknown>): Promise<void> {
    try {
      await created;
      await responded;
    } catch (error) {
      if (!(error instanceof EventRefusedError)) return;
    }
    this.#queue.remove(id);
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
    this.#cancellation ??= this.client
      .cancelResponse()
      .acknowledged.catch(() => undefined)
      .finally(() => {
        this.#cancellation = null;
      });
    await this.#cancellation;
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

  /** Request another response to the last message, at the usual `temperature` or a higher one. */
  requestAlternative(temperature: number): void {
    this.#requestResponse({
      response: { temperature: Math.max(temperature, REGENERATE_TEMPERATURE_MIN), seed: null },
    });
    this.save();
  }

  /** Why the last message has no response; null if it has one or one is pending. */
  get missingResponse(): MissingResponse | null {
    const { conversation } = this.client;
    if (this.isClosed || this.#isResponseDue || this.queue.length > 0) return null;
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
    const pending = this.#storedPending;
    const isQueueEmpty = this.#queue.messages.length === 0; // of those sent too, until they are acknowledged
    if (this.isEmpty && !record.draft && pending.length === 0 && isQueueEmpty) {
      if (record.saved.items.length === 0) deleteVersion(record.id); // what was stored was a draft
      return;
    }
    if (this.isClosed) {
      saveConversation(this.recordForReconnect());
      return;
    }
    record.position = client.resumePoint && { ...client.resumePoint };
    record.saved = client.conversation.toJSON();
    record.thoughts = this.#thoughts.toJSON(record.saved.turns.map(({ id }) => id));
    record.pending = pending;
    saveConversation(record);
  }

  /** Unacknowledged events to store: the session is configured anew, and the queue stores its own. */
  get #storedPending(): ClientEvent[] {
    return this.client.pendingEvents.filter(
      ({ type, event_id }) => !type.startsWith('session.') && messageOf(event_id) === null,
    );
  }

  /** Returns the record from which a closed conversation reconnects: the one stored by the tab that took
   * over, the same session with another key, or else a new session. Unacknowledged events are kept. */
  recordForReconnect(): StoredConversation {
    const { record, client } = this;
    const pending = this.#storedPending;
    if (this.#isTakenOver) {
      const otherTab = loadConversation(record.id) ?? record;
      const draft = record.draft || otherTab.draft;
      return { ...otherTab, draft, pending: mergeById(otherTab.pending, pending, eventId) };
    }
    if (API_KEY_ERROR_CODES.has(this.#closeErrorCode ?? '')) return { ...record, pending };
    return { ...record, pending, saved: client.conversation.toJSON(), position: null };
  }

  /** Disconnect and release resources. The session can be resumed for a limited time. */
  dispose(): void {
    this.save();
    this.discard();
  }

  /** Disconnect and release resources, and store nothing. */
  discard(): void {
    this.#isDisposed = true;
    this.#pageListeners.abort();
    this.#removeBrowserListeners();
    clearInterval(this.#saveTimer);
    void this.client.close(0);
  }

  /** Send events that an earlier page had not seen acknowledged. */
  #sendPending(events: readonly ClientEvent[]): void {
    const receipts = events.map((event) => this.client.send(event));
    let buffer = '';
    for (const [i, event] of events.entries()) {
      const receipt = receipts[i];
      if (!receipt) continue;
      if (event.type === 'input_text_buffer.replace') buffer = event.text;
      const text = event.type === 'input_text_buffer.commit' ? buffer : createdText(event);
      const response = events[i + 1]?.type === 'response.create' ? receipts[i + 1] : undefined;
      if (text && response) void this.#onMessageSettled(receipt.acknowledged, text, response);
      else this.#reportRefusal(receipt);
    }
  }

  /** Request a response to a message that was sent. */
  async #requestResponseTo(message: Promise<unknown>, text: string, request: ResponseRequest): Promise<void> {
    await this.#onMessageSettled(message, text, this.#requestResponse(request));
  }

  /** If the server refuses a message, return its text to the user, and discard the response. */
  async #onMessageSettled(message: Promise<unknown>, text: string, response: Receipt): Promise<void> {
    this.#isDirty = true;
    try {
      await message;
    } catch (error) {
      if (!(error instanceof EventRefusedError)) return;
      void this.#discardResponse(response);
      this.onMessageReturned(text);
      this.#updateTitle();
      this.save();
      this.onResponseStatusChange();
      this.onEventRefused(error);
    }
  }

  /** Put a text back in front of the draft. */
  restoreDraft(text: string): void {
    this.setDraft([text, this.record.draft].filter(Boolean).join('\n'));
    this.onDraftChange();
  }

  /** Cancel a response whose message was refused, and delete its items. */
  async #discardResponse(response: Receipt): Promise<void> {
    const created = await response.acknowledged.catch(() => null);
    this.#responseRefusal = '';
    if (created?.type !== 'response.created') return;
    this.#discardedResponses.add(created.response.id);
    await this.cancelResponse();
    const { turns } = this.client.conversation;
    const turn = turns.find(({ id }) => id === created.response.id);
    const deletions = turn?.items.toReversed().map((id) => this.client.deleteItem(id)) ?? [];
    await Promise.allSettled(deletions.map(({ acknowledged }) => acknowledged));
    this.save();
    this.onTitleChange(); // the list may have shown it
  }

  /** Whether an item belongs to a response that is being discarded. */
  isDiscarded(itemId: string): boolean {
    return this.#discardedResponses.has(this.client.conversation.turnOf(itemId)?.id ?? '');
  }

  #requestResponse({ response, event_id }: ResponseRequest = {}): Receipt {
    this.#responseRefusal = '';
    const receipt = this.client.send({
      type: 'response.create',
      ...(event_id !== undefined && { event_id }),
      ...(response && { response }),
    });
    this.#reportRefusal(receipt, (refused) => {
      this.#responseRefusal = describeRefusal(refused);
      this.#scheduleQueued();
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

  /** Name the conversation; an empty name lets its title follow the first message. */
  rename(title: string): void {
    this.record.renamed = title !== '';
    if (title) {
      this.record.title = title;
      this.onTitleChange();
    } else this.#updateTitle();
    this.save();
  }

  /** Let the title follow the first message of its own, unless the user has named the conversation. */
  #updateTitle(): void {
    const { record, client } = this;
    if (record.renamed) return;
    const { items } = client.conversation;
    // While the server sends the conversation again, its first messages are missing.
    if (items.length < Math.max(record.branch?.shared ?? 0, record.saved.items.length)) return;
    const waiting = this.pendingMessages[0] ?? this.queue[0]?.text ?? '';
    const title = titleOf(items, record.branch, waiting);
    if (title === record.title) return;
    record.title = title;
    this.onTitleChange();
  }

  // ---------------------------------------------------------------- server events

  #onEvent(event: ServerEvent): void {
    this.#isDirty = true;
    this.record.updated = Date.now();
    this.#logEvent(false, event);
    const interrupted = event.type === 'response.interrupted';
    if (event.type.startsWith('response.')) this.#setInterrupted(interrupted);
    if (this.#thoughts.receive(event, performance.now())) this.onResponseStatusChange();
    const metrics = this.#timing.receive(event);
    if (!metrics || this.metricsOf(metrics.id) || this.#discardedResponses.has(metrics.id)) return;
    this.record.metrics.push(metrics);
    this.onMetricsChange();
  }

  #setInterrupted(interrupted: boolean): void {
    if (interrupted === this.#isInterrupted) return;
    this.#isInterrupted = interrupted;
    this.onResponseStatusChange();
  }

  /** What the model thought before a response, as far as it is known. */
  thoughtOf(turnId: string): Thought | null {
    return this.#thoughts.of(turnId);
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

/** Returns the text of the user message that an event creates; '' if it creates none. */
function createdText(event: ClientEvent): string {
  if (event.type !== 'conversation.item.create' || event.item.type !== 'message') return '';
  return event.item.role === 'user' ? textOf(event.item as Item) : '';
}

const eventId = (event: ClientEvent): string | undefined => event.event_id;

/** Returns both lists without the elements of the second whose ids the first contains. */
function mergeById<T>(some: readonly T[], others: readonly T[], idOf: (one: T) => string | undefined): T[] {
  const known = new Set(some.map(idOf));
  return [...some, ...others.filter((one) => !known.has(idOf(one)))];
}
