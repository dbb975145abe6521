/** Sidebar with the conversations stored in this browser: branches below their parents, recently deleted
 * ones in place with an undo button, and those that a search finds. */

import { conversationSearch } from './conversation_search.js';
import { h, icon, iconButton } from './dom.js';
import { chooseFile } from './files.js';
import { menuButton } from './menu.js';
import type { Excerpt } from './search.js';
import { type ConversationSummary, listConversations } from './storage.js';

export type ExportFormat = 'markdown' | 'json';

/** Conversations are named by their ids, which are those of their first versions. */
export interface SidebarHandler {
  /** A conversation's link was clicked. */
  select(): void;
  create(): void;
  rename(conversation: string, title: string): void;
  export(summary: ConversationSummary, format: ExportFormat): void;
  import(file: File): void;
  delete(conversation: string): void;
  /** Undo a deletion. */
  restore(conversation: string): void;
  /** Open a version, and scroll to a message. */
  openMessage(version: string, itemId: string): void;
}

export class Sidebar {
  readonly element: HTMLElement;
  /** The controls of the page below the list. */
  readonly menu: HTMLElement;
  readonly #list = h('ul', { class: 'conversations' });
  readonly #searchField = h('input', {
    type: 'search',
    class: 'search',
    placeholder: 'Search',
    'aria-label': 'Search conversations',
    title: 'Search conversations (Ctrl+K)',
  });
  readonly #searchStatus = h('p', { class: 'note search-status', role: 'status' });
  readonly #noConversations = h('p', { class: 'note no-conversations' }, 'Your conversations appear here. They are kept in this browser.');
  readonly #handler: SidebarHandler;
  #current = '';
  #deleted: ConversationSummary[] = [];
  /** The conversation that is being renamed; the list is not drawn meanwhile. */
  #renamed: string | null = null;

  constructor(handler: SidebarHandler) {
    this.#handler = handler;
    const create = h(
      'button',
      { type: 'button', class: 'new-conversation', onclick: () => handler.create() },
      icon('plus'),
      'New conversation',
    );
    const importButton = iconButton('import', 'Import a conversation', () => void this.#import(), 'Import a conversation');
    this.menu = h('div', { class: 'menu' }, importButton);
    this.element = h(
      'nav',
      { class: 'sidebar', 'aria-label': 'Conversations' },
      create,
      h('div', { class: 'search-box' }, icon('search'), this.#searchField),
      this.#searchStatus,
      this.#noConversations,
      this.#list,
      this.menu,
    );
    this.#searchField.addEventListener('input', () => this.#draw());
    this.#searchField.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.#searchField.value) {
        event.preventDefault();
        event.stopPropagation();
        this.clearSearch();
      } else if (event.key === 'ArrowDown') {
        event.preventDefault();
        this.#links[0]?.focus();
      }
    });
    this.#list.addEventListener('keydown', (event) => {
      this.#moveFocus(event);
    });
  }

  /** Draw all conversations. `current` is the open one; `deleted` are those whose deletion can be undone. */
  draw(current: string, deleted: ConversationSummary[]): void {
    this.#current = current;
    this.#deleted = deleted;
    if (this.#renamed === null) this.#draw();
  }

  focusSearch(): void {
    this.#searchField.focus();
    this.#searchField.select();
  }

  clearSearch(): void {
    this.#searchField.value = '';
    this.#draw();
  }

  /** Focus a conversation's link, or the undo button of a deleted one. */
  focus(conversation: string): void {
    this.#rowOf(conversation)?.querySelector<HTMLElement>('a, .undo')?.focus();
  }

  /** Returns whether the pointer or the keyboard focus is on a conversation's row. */
  isRowInUse(conversation: string): boolean {
    return this.#rowOf(conversation)?.matches(':hover, :has(:focus-visible)') ?? false;
  }

  #draw(): void {
    const { activeElement } = document;
    const focused = activeElement?.closest<HTMLElement>('.conversations li')?.dataset.id ?? null;
    const isMenuFocused = activeElement?.getAttribute('aria-haspopup') === 'menu';
    const query = this.#searchField.value.trim();
    this.#list.replaceChildren(...(query ? this.#resultRows(query) : this.#allRows()));
    if (!query) this.#searchStatus.textContent = '';
    this.#noConversations.hidden = query !== '' || this.#list.children.length > 0;
    if (focused === null) return;
    if (isMenuFocused) this.#rowOf(focused)?.querySelector<HTMLElement>('[aria-haspopup]')?.focus();
    else this.focus(focused);
  }

  #allRows(): Node[] {
    const deletedSet = new Set(this.#deleted);
    const listed = [...listConversations(), ...this.#deleted].sort((a, b) => b.updated - a.updated);
    const knownIds = new Set(listed.map((summary) => summary.conversation));
    const row = (summary: ConversationSummary, depth: number): Node =>
      deletedSet.has(summary) ? this.#deletedRow(summary, depth) : this.#conversationRow(summary, depth);
    const rows = (summary: ConversationSummary, depth: number): Node[] => {
      const branches = listed.filter((other) => other.parent === summary.conversation).reverse();
      return [row(summary, depth), ...branches.flatMap((branch) => rows(branch, depth + 1))];
    };
    const roots = listed.filter((summary) => summary.parent === null || !knownIds.has(summary.parent));
    return roots.flatMap((root) => rows(root, 0));
  }

  #resultRows(query: string): Node[] {
    const results = conversationSearch.find(query);
    const count = results.length === 1 ? '1 conversation' : `${results.length} conversations`;
    this.#searchStatus.textContent = results.length > 0 ? count : 'Nothing found. The search needs all words in one message.';
    return results.map(({ summary, version, hit }) => {
      const { message } = hit;
      const link = h(
        'a',
        {
          href: `#${version}`,
          'aria-current': summary.conversation === this.#current && 'page',
          onclick: (event: Event) => {
            if (message) {
              event.preventDefault();
              this.#handler.openMessage(version, message.itemId);
            }
            this.#handler.select();
          },
        },
        h('span', {}, ...highlighted(hit.title)),
        message && h('span', { class: 'excerpt' }, ...highlighted(message.excerpt)),
      );
      return h('li', { class: 'result', 'data-id': summary.conversation }, link);
    });
  }

  #rowOf(conversation: string): HTMLElement | null {
    return this.#list.querySelector(`[data-id="${conversation}"]`);
  }

  get #links(): HTMLElement[] {
    return [...this.#list.querySelectorAll<HTMLElement>('a, .undo')];
  }

  /** Move the focus between conversations with the arrow keys; F2 renames one. */
  #moveFocus(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    const row = target.closest<HTMLElement>('li');
    if (target instanceof HTMLInputElement || !row) return;
    if (event.key === 'F2' && row.matches(':not(.result):has(a)')) {
      event.preventDefault();
      this.#rename(row.dataset.id ?? '');
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const links = this.#links;
    const at = links.findIndex((link) => row.contains(link)) + step;
    if (at < 0) this.#searchField.focus();
    else links[at]?.focus();
  }

  #conversationRow(summary: ConversationSummary, depth: number): Node {
    const { conversation, id } = summary;
    const title = titleOf(summary);
    const link = h(
      'a',
      {
        href: `#${id}`,
        'aria-current': conversation === this.#current && 'page',
        title,
        onclick: () => this.#handler.select(),
      },
      depth > 0 && icon('branch'),
      h('span', {}, title),
    );
    const menu = menuButton(`Options of “${title}”`, [
      { label: 'Rename', action: () => this.#rename(conversation) },
      { label: 'Export as Markdown', action: () => this.#handler.export(summary, 'markdown') },
      { label: 'Export as JSON', action: () => this.#handler.export(summary, 'json') },
      { label: 'Delete', action: () => this.#handler.delete(conversation), isDestructive: true },
    ]);
    return h('li', { class: indent(depth), 'data-id': conversation }, link, menu);
  }

  /** Row of a deleted conversation, in place, so that an accidental click does not move the list. */
  #deletedRow(summary: ConversationSummary, depth: number): Node {
    const undoButton = h(
      'button',
      {
        type: 'button',
        class: 'undo',
        'aria-label': `Undo deleting “${titleOf(summary)}”`,
        onclick: () => this.#handler.restore(summary.conversation),
      },
      'Undo',
    );
    const label = h('span', { class: 'deleted', title: summary.title }, 'Deleted');
    return h('li', { class: indent(depth), 'data-id': summary.conversation }, label, undoButton);
  }

  /** Replace a conversation's row by a field for its name. */
  #rename(conversation: string): void {
    const row = this.#rowOf(conversation);
    const title = row?.querySelector('a')?.title ?? '';
    if (!row) return;
    this.#renamed = conversation;
    const field = h('input', { 'aria-label': 'Name of the conversation', maxlength: '80', class: 'rename' });
    field.value = title;
    const end = (name: string | null): void => {
      if (this.#renamed !== conversation) return;
      this.#renamed = null;
      if (name !== null && name !== title) this.#handler.rename(conversation, name);
      this.#draw();
      this.focus(conversation);
    };
    field.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== 'Escape') return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === 'Enter' ? field.value.trim() : null);
    });
    field.addEventListener('blur', () => {
      end(field.value.trim());
    });
    row.replaceChildren(field);
    field.focus();
    field.select();
  }

  async #import(): Promise<void> {
    const file = await chooseFile('application/json,.json');
    if (file) this.#handler.import(file);
  }
}

/** Returns the text with its matches marked. */
function highlighted({ text, matches }: Excerpt): (Node | string)[] {
  const parts: (Node | string)[] = [];
  let at = 0;
  for (const [start, end] of matches) {
    parts.push(text.slice(at, start), h('mark', {}, text.slice(start, end)));
    at = end;
  }
  return [...parts, text.slice(at)];
}

function titleOf(summary: ConversationSummary): string {
  return summary.title || 'Untitled';
}

function indent(depth: number): string {
  return ['', 'branch', 'branch deeper'][Math.min(depth, 2)] ?? '';
}
