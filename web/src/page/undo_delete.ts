/** Undo for deleted conversations: a deletion can be undone for a while, then the session on the server
 * is deleted too. */

import { deleteSession } from './api.js';
import { MessageQueue } from './message_queue.js';
import {
  type ConversationSummary,
  deleteConversation,
  listConversations,
  loadVersions,
  saveConversation,
  saveQueued,
  type StoredConversation,
} from './storage.js';

const UNDO_MS = 10_000;
/** Delay before the next check while the user is still at the row of a deleted conversation. */
const IN_USE_RETRY_MS = 1000;

export interface UndoDeleteHandler {
  /** Returns whether the pointer or the focus is on the conversation's row, which delays the deletion. */
  isRowInUse(id: string): boolean;
  /** A deletion has become permanent. */
  deletedPermanently(): void;
}

interface DeletedConversation {
  summary: ConversationSummary;
  versions: StoredConversation[];
  timer: ReturnType<typeof setTimeout>;
}

export class UndoDelete {
  readonly #handler: UndoDeleteHandler;
  readonly #deleted = new Map<string, DeletedConversation>();

  constructor(handler: UndoDeleteHandler) {
    this.#handler = handler;
    addEventListener('pagehide', () => {
      for (const id of [...this.#deleted.keys()]) this.#deletePermanently(id);
    });
  }

  /** Deleted conversations that can be restored. */
  get summaries(): ConversationSummary[] {
    return [...this.#deleted.values()].map(({ summary }) => summary);
  }

  /** Delete a conversation with all its versions. */
  delete(id: string): void {
    const summary = listConversations().find(({ conversation }) => conversation === id);
    const versions = loadVersions(id);
    deleteConversation(id);
    if (summary) this.#deleted.set(id, { summary, versions, timer: this.#schedule(id, UNDO_MS) });
  }

  /** Undo a deletion. Returns the conversation. */
  restore(id: string): ConversationSummary | undefined {
    const entry = this.#deleted.get(id);
    if (!entry) return undefined;
    clearTimeout(entry.timer);
    this.#deleted.delete(id);
    for (const stored of entry.versions.toReversed()) {
      const queue = new MessageQueue(stored.id);
      for (const message of stored.queue ?? []) saveQueued(stored, queue, message);
      saveConversation(stored);
    }
    return entry.summary;
  }

  #schedule(id: string, ms: number): ReturnType<typeof setTimeout> {
    return setTimeout(() => {
      const entry = this.#deleted.get(id);
      if (entry && this.#handler.isRowInUse(id)) entry.timer = this.#schedule(id, IN_USE_RETRY_MS);
      else this.#deletePermanently(id);
    }, ms);
  }

  #deletePermanently(id: string): void {
    const entry = this.#deleted.get(id);
    if (!entry) return;
    clearTimeout(entry.timer);
    this.#deleted.delete(id);
    for (const { position } of entry.versions) {
      // If the server cannot be reached, the session expires there by itself.
      if (position !== null) void deleteSession(position.sessionId).catch(() => undefined);
    }
    this.#handler.deletedPermanently();
  }
}
