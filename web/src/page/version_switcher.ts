/** Switchers between the versions of a conversation, ‹ 2/3 ›, on the messages at which these part. */

import type { ConversationController } from './conversation_controller.js';
import { h, iconButton } from './dom.js';
import { conversationOf, itemsOf, loadVersions, type StoredConversation } from './storage.js';
import { findVersionPoints, type VersionPath, type VersionPoint } from './versions.js';

export type SwitchDirection = 'previous' | 'next';

/** Called with the id of the version to show, and the position of the message at which it parts. */
export type SwitchVersion = (id: string, position: number, direction: SwitchDirection) => void;

export class VersionSwitchers {
  readonly #conversation: ConversationController;
  readonly #switchVersion: SwitchVersion;
  #others: VersionPath[] = [];
  /** Drawn switchers by what they show. */
  #drawn = new Map<string, HTMLElement>();

  constructor(conversation: ConversationController, switchVersion: SwitchVersion) {
    this.#conversation = conversation;
    this.#switchVersion = switchVersion;
    this.reload();
  }

  /** Load the other versions from the storage again. */
  reload(): void {
    const { record } = this.#conversation;
    this.#others = loadVersions(conversationOf(record), record.id).map(pathOf);
  }

  /** Returns the switchers by the position of their message; one beyond the end belongs below the last. */
  draw(itemIds: string[]): Map<number, HTMLElement> {
    const switchers = new Map<number, HTMLElement>();
    if (this.#others.length === 0) return switchers;
    const current = { ...pathOf(this.#conversation.record), itemIds };
    const drawn = new Map<string, HTMLElement>();
    for (const [position, point] of findVersionPoints(current, this.#others)) {
      const key = JSON.stringify([position, point]);
      const element = this.#drawn.get(key) ?? this.#create(position, point);
      drawn.set(key, element);
      switchers.set(position, element);
    }
    this.#drawn = drawn;
    return switchers;
  }

  #create(position: number, { number, count, previous, next }: VersionPoint): HTMLElement {
    const button = (direction: SwitchDirection, id: string | null): HTMLElement => {
      const label = direction === 'previous' ? 'Previous version' : 'Next version';
      const element = iconButton(direction, label, () => {
        if (id !== null) this.#switchVersion(id, position, direction);
      });
      element.dataset.direction = direction;
      element.disabled = id === null;
      return element;
    };
    const label = h('span', { 'aria-hidden': 'true' }, `${number}/${count}`);
    return h(
      'div',
      { class: 'versions', role: 'group', 'aria-label': `Version ${number} of ${count}` },
      button('previous', previous),
      label,
      button('next', next),
    );
  }
}

function pathOf(stored: StoredConversation): VersionPath {
  const itemIds = itemsOf(stored).map((item) => item.id);
  return { id: stored.id, made: stored.version?.made ?? 0, updated: stored.updated, itemIds };
}
