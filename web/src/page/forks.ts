/** Forks of the open conversation: branches, which are conversations of their own, and the versions that
 * editing a message and regenerating a response make of it. */

import { deleteSession } from './api.js';
import { ConversationController } from './conversation_controller.js';
import { deleteVersion, forkConversation, loadConversation } from './storage.js';
import type { Transcript } from './transcript.js';
import type { SwitchDirection } from './version_switcher.js';

/** The part of the page that shows one conversation. */
export interface ForksHost {
  readonly conversation: ConversationController | null;
  readonly transcript: Transcript | null;
  /** Returns the open conversation, reconnected and synchronized if it was closed. */
  ensureConnected(): Promise<ConversationController | null>;
  /** Show `conversation` instead of the open one, which is disposed of at once or after `disposeAfter`. */
  openConversation(conversation: ConversationController, disposeAfter?: Promise<unknown>): void;
  /** Open a stored version. Returns false if it is not stored. */
  openStored(id: string): boolean;
  startConversation(): void;
  drawSidebar(): void;
}

export class Forks {
  readonly #host: ForksHost;

  constructor(host: ForksHost) {
    this.#host = host;
  }

  /** Open a new conversation that begins like another one, up to and including an item. */
  openBranch(parent: ConversationController, itemId: string): void {
    const { items } = parent.client.conversation;
    this.#openFork(parent, items.findIndex((item) => item.id === itemId) + 1, false);
  }

  /** Open a fork of a conversation that begins with its first `count` items: a new conversation, or with
   * `isVersion` a new version of it. */
  #openFork(parent: ConversationController, count: number, isVersion: boolean): ConversationController {
    parent.save();
    const { client, record } = parent;
    const stored = forkConversation(record, client.conversation.toJSON(), count, isVersion);
    const { resumePoint } = client;
    const itemId = client.conversation.items[count - 1]?.id;
    if (resumePoint === null || itemId === undefined) {
      const child = new ConversationController(stored);
      this.#host.openConversation(child);
      return child;
    }
    const { sessionId, token } = resumePoint;
    const child = new ConversationController(stored, { sessionId, itemId, ...(token && { token }) });
    // The parent session must stay open until the server has forked it.
    const forkSettled = new Promise<void>((resolve) => {
      child.client.state.subscribe(({ phase }) => {
        if (phase === 'open' || phase === 'closed') resolve();
      });
    });
    this.#host.openConversation(child, forkSettled);
    return child;
  }

  /** Open a new version in which a message is replaced, without what follows it. */
  async editMessage(id: string, text: string): Promise<void> {
    const conversation = await this.#host.ensureConnected();
    if (!conversation) return;
    const count = conversation.client.conversation.items.findIndex((item) => item.id === id);
    if (conversation.isClosed || count < 0) {
      conversation.restoreDraft(text);
      return;
    }
    void conversation.cancelResponse();
    const version = this.#openFork(conversation, count, true);
    version.onMessageReturned = (text) => {
      const hasBegun = version.client.conversation.items.length > count;
      if (hasBegun || version !== this.#host.conversation) version.restoreDraft(text);
      else this.#abandonVersion(version, conversation.record.id, text);
    };
    version.enqueue(text);
  }

  /** Return from a version without a message of its own to the one it was made from, and delete it. */
  #abandonVersion(version: ConversationController, parent: string, text: string): void {
    version.dispose();
    deleteVersion(version.record.id);
    const session = version.client.resumePoint?.sessionId;
    if (session !== undefined) void deleteSession(session).catch(() => undefined);
    if (!this.#host.openStored(parent)) this.#host.startConversation();
    this.#host.conversation?.restoreDraft(text);
    this.#host.drawSidebar();
  }

  /** Open a new version with another response to the last user message. */
  async regenerate(): Promise<void> {
    const conversation = await this.#host.ensureConnected();
    if (!conversation || conversation.isClosed) return;
    const { items } = conversation.client.conversation;
    const last = items.findLastIndex((item) => item.type === 'message' && item.role === 'user');
    const temperature = conversation.client.session?.temperature ?? 0;
    this.#openFork(conversation, last + 1, true).requestAlternative(temperature);
  }

  /** Show another version, with the message at which the two part in view. What is in the composer stays
   * there. */
  switchVersion(id: string, position: number, direction: SwitchDirection): void {
    const previous = this.#host.conversation;
    const draft = previous?.record.draft ?? '';
    if (previous) previous.record.draft = '';
    const isOpen = this.openVersion(id);
    this.#host.conversation?.restoreDraft(draft);
    if (!isOpen) {
      this.#host.transcript?.reloadVersions();
      return;
    }
    const item = this.#host.conversation?.client.conversation.items[position];
    this.#host.transcript?.reveal(item?.id ?? '', direction);
  }

  /** Open a version of a conversation, which the sidebar shows from now on. Returns false if it is not
   * stored. */
  openVersion(id: string): boolean {
    const stored = loadConversation(id);
    if (stored) this.#host.openConversation(new ConversationController({ ...stored, updated: Date.now() }));
    return stored !== null;
  }
}
