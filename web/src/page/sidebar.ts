/** Sidebar with the conversations stored in this browser: branches below their parents, and recently
 * deleted ones in place, with an undo button. */

import { h, icon, iconButton } from './dom.js';
import { type ConversationSummary, listConversations } from './storage.js';

export interface SidebarHandler {
  /** A conversation's link was clicked. */
  select(): void;
  create(): void;
  delete(id: string): void;
  /** Undo a deletion. */
  restore(id: string): void;
}

export class Sidebar {
  readonly element: HTMLElement;
  readonly #list = h('ul', { class: 'conversations' });
  readonly #handler: SidebarHandler;

  constructor(handler: SidebarHandler) {
    this.#handler = handler;
    const create = h(
      'button',
      { type: 'button', class: 'new-conversation', onclick: () => handler.create() },
      icon('plus'),
      'New conversation',
    );
    this.element = h('nav', { class: 'sidebar', 'aria-label': 'Conversations' }, create, this.#list);
  }

  /** Draw all conversations. `deleted` are those whose deletion can be undone. */
  draw(current: string, deleted: ConversationSummary[]): void {
    const deletedSet = new Set(deleted);
    const listed = [...listConversations(), ...deleted].sort((a, b) => b.updated - a.updated);
    const knownIds = new Set(listed.map((summary) => summary.id));
    const row = (summary: ConversationSummary, depth: number): Node =>
      deletedSet.has(summary)
        ? this.#deletedRow(summary, depth)
        : this.#conversationRow(summary, current, depth);
    const rows = (summary: ConversationSummary, depth: number): Node[] => {
      const branches = listed.filter((other) => other.parent === summary.id).reverse();
      return [row(summary, depth), ...branches.flatMap((branch) => rows(branch, depth + 1))];
    };
    const roots = listed.filter((summary) => summary.parent === null || !knownIds.has(summary.parent));
    const focused = this.#focusedId;
    this.#list.replaceChildren(...roots.flatMap((root) => rows(root, 0)));
    if (focused !== null) this.focus(focused);
  }

  /** Focus a conversation's link, or the undo button of a deleted one. */
  focus(id: string): void {
    this.#rowOf(id)?.querySelector<HTMLElement>('a, .undo')?.focus();
  }

  /** Returns whether the pointer or the keyboard focus is on a conversation's row. */
  isRowInUse(id: string): boolean {
    return this.#rowOf(id)?.matches(':hover, :has(:focus-visible)') ?? false;
  }

  #rowOf(id: string): HTMLElement | null {
    return this.#list.querySelector(`[data-id="${id}"]`);
  }

  get #focusedId(): string | null {
    return document.activeElement?.closest<HTMLElement>('.conversations li')?.dataset.id ?? null;
  }

  #conversationRow(summary: ConversationSummary, current: string, depth: number): Node {
    const link = h(
      'a',
      {
        href: `#${summary.id}`,
        'aria-current': summary.id === current && 'page',
        title: summary.title,
        onclick: () => this.#handler.select(),
      },
      depth > 0 && icon('branch'),
      h('span', {}, titleOf(summary)),
    );
    const deleteButton = iconButton('trash', `Delete “${titleOf(summary)}”`, () => {
      this.#handler.delete(summary.id);
    });
    return h('li', { class: indent(depth), 'data-id': summary.id }, link, deleteButton);
  }

  /** Row of a deleted conversation, in place, so that an accidental click does not move the list. */
  #deletedRow(summary: ConversationSummary, depth: number): Node {
    const undoButton = h(
      'button',
      {
        type: 'button',
        class: 'undo',
        'aria-label': `Undo deleting “${titleOf(summary)}”`,
        onclick: () => this.#handler.restore(summary.id),
      },
      'Undo',
    );
    const label = h('span', { class: 'deleted', title: summary.title }, 'Deleted');
    return h('li', { class: indent(depth), 'data-id': summary.id }, label, undoButton);
  }
}

function titleOf(summary: ConversationSummary): string {
  return summary.title || 'Untitled';
}

function indent(depth: number): string {
  return ['', 'branch', 'branch deeper'][Math.min(depth, 2)] ?? '';
}
