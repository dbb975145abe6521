/** Messages that are not sent yet, in this browser (localStorage). Each has a key of its own, so that no tab
 * overwrites what another one has queued in the same conversation, or queues again what that has taken back. */

import type { ResponseSettings } from '../client/index.js';

/** A queued message as stored; its field names are part of the stored format. */
export interface QueuedMessage {
  /** Id of the item and of the event that creates it, so that two tabs create it once. */
  id: string;
  text: string;
  /** Whether it was written to interrupt the response in progress. */
  interrupts: boolean;
  /** Settings of its response, if other than those of the session. */
  response?: ResponseSettings;
  /** When it was queued, which orders the messages of all tabs. */
  at?: number;
  /** Whether a tab has sent it; it stays in the queue until the server has acknowledged it. */
  isSent?: true;
}

export const QUEUE_STORAGE_KEY_PREFIX = 'continuo.queued.';

/** The queue of one version of a conversation, shared by the tabs that show it. */
export class MessageQueue {
  readonly #prefix: string;
  #messages: QueuedMessage[] = [];
  /** Messages for which the storage had no room. */
  readonly #unstored: QueuedMessage[] = [];

  constructor(version: string) {
    this.#prefix = prefixOf(version);
    this.reload();
  }

  /** All messages in the order in which they were queued. */
  get messages(): readonly QueuedMessage[] {
    return this.#messages;
  }

  /** Returns whether a key of the storage belongs to this queue. */
  owns(key: string): boolean {
    return key.startsWith(this.#prefix);
  }

  /** Load what other tabs have changed. */
  reload(): void {
    this.#messages = inOrder([...loadMessages(this.#prefix), ...this.#unstored]);
  }

  has(id: string): boolean {
    return this.#messages.some((one) => one.id === id);
  }

  /** Store a message. Returns false if the storage is full. */
  add(message: QueuedMessage): boolean {
    const at = message.at ?? Math.max(Date.now(), (this.#messages.at(-1)?.at ?? 0) + 1);
    const isStored = this.#store({ ...message, at });
    this.reload();
    return isStored;
  }

  /** Queue a message in this tab only. */
  addUnstored(message: QueuedMessage): void {
    this.#unstored.push({ ...message, at: Date.now() });
    this.reload();
  }

  /** Mark a message as sent. Returns false if another tab has removed it. */
  markSent(id: string): boolean {
    this.reload();
    const message = this.#messages.find((one) => one.id === id);
    if (!message) return false;
    if (!this.#unstored.includes(message)) this.#store({ ...message, isSent: true });
    this.reload();
    return true;
  }

  /** Remove a message. Returns false if another tab has removed it. */
  remove(id: string): boolean {
    this.reload();
    const isThere = this.has(id);
    localStorage.removeItem(this.#prefix + id);
    const unstored = this.#unstored.findIndex((one) => one.id === id);
    if (unstored >= 0) this.#unstored.splice(unstored, 1);
    this.reload();
    return isThere;
  }

  #store(message: QueuedMessage): boolean {
    try {
      localStorage.setItem(this.#prefix + message.id, JSON.stringify(message));
      return true;
    } catch {
      return false;
    }
  }
}

/** Returns the ids of the events that create a queued message and request its response. */
export function eventIdsOf(message: string): { create: string; respond: string } {
  return { create: `${message}.create`, respond: `${message}.respond` };
}

/** Returns the queued message that an event with this id sends; null if it sends none. */
export function messageOf(eventId: string | undefined): string | null {
  return /^(item_\w+)\.(?:create|respond)$/.exec(eventId ?? '')?.[1] ?? null;
}

/** Returns the queued messages of a version. */
export function loadQueue(version: string): QueuedMessage[] {
  return inOrder(loadMessages(prefixOf(version)));
}

export function deleteQueue(version: string): void {
  for (const { id } of loadQueue(version)) localStorage.removeItem(prefixOf(version) + id);
}

function prefixOf(version: string): string {
  return `${QUEUE_STORAGE_KEY_PREFIX}${version}.`;
}

function loadMessages(prefix: string): QueuedMessage[] {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(prefix));
  return keys.flatMap((key) => {
    const text = localStorage.getItem(key); // null if another tab has just removed it
    return text === null ? [] : [JSON.parse(text) as QueuedMessage];
  });
}

function inOrder(messages: QueuedMessage[]): QueuedMessage[] {
  return messages.sort((a, b) => (a.at ?? 0) - (b.at ?? 0));
}
