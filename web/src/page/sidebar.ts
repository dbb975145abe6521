/** The conversations of this browser, branches below what they were branched from; those just deleted
 * in their places, to be had back. */

import { h, icon, iconButton } from './dom.js';
import { all, type Listed } from './storage.js';

export interface Choosing {
  /** A link was followed. */
  chosen(): void;
  begin(): void;
  remove(id: string): void;
  /** What was deleted comes back. */
  restore(id: string): void;
}

export class Sidebar {
  readonly element: HTMLElement;
  readonly #list = h('ul', { class: 'talks' });
  readonly #choosing: Choosing;

  constructor(choosing: Choosing) {
    this.#choosing = choosing;
    const begin = h(
      'button',
      { type: 'button', class: 'begin', onclick: () => choosing.begin() },
      icon('plus'),
      'New conversation',
    );
    this.element = h('nav', { class: 'sidebar', 'aria-label': 'Conversations' }, begin, this.#list);
  }

  /** `deleted`: those that can still be had back. */
  draw(current: string, deleted: Listed[]): void {
    const gone = new Set(deleted);
    const listed = [...all(), ...deleted].sort((a, b) => b.updated - a.updated);
    const known = new Set(listed.map((one) => one.id));
    const row = (one: Listed, depth: number): Node =>
      gone.has(one) ? this.#deleted(one, depth) : this.#row(one, current, depth);
    const rows = (one: Listed, depth: number): Node[] => {
      const branches = listed.filter((other) => other.parent === one.id).reverse();
      return [row(one, depth), ...branches.flatMap((branch) => rows(branch, depth + 1))];
    };
    const roots = listed.filter((one) => one.parent === null || !known.has(one.parent));
    const focused = this.#focused;
    this.#list.replaceChildren(...roots.flatMap((root) => rows(root, 0)));
    if (focused !== null) this.focus(focused);
  }

  /** Its link, or what brings it back. */
  focus(id: string): void {
    this.#of(id)?.querySelector<HTMLElement>('a, .undo')?.focus();
  }

  /** Whether somebody is at it, by pointer or keyboard. */
  held(id: string): boolean {
    return this.#of(id)?.matches(':hover, :has(:focus-visible)') ?? false;
  }

  #of(id: string): HTMLElement | null {
    return this.#list.querySelector(`[data-id="${id}"]`);
  }

  get #focused(): string | null {
    return document.activeElement?.closest<HTMLElement>('.talks li')?.dataset.id ?? null;
  }

  #row(one: Listed, current: string, depth: number): Node {
    const open = h(
      'a',
      {
        href: `#${one.id}`,
        'aria-current': one.id === current && 'page',
        title: one.title,
        onclick: () => this.#choosing.chosen(),
      },
      depth > 0 && icon('branch'),
      h('span', {}, named(one)),
    );
    const remove = iconButton('trash', `Delete “${named(one)}”`, () => {
      this.#choosing.remove(one.id);
    });
    return h('li', { class: indent(depth), 'data-id': one.id }, open, remove);
  }

  /** In its place, so that nothing moves under the hand that has slipped. */
  #deleted(one: Listed, depth: number): Node {
    const undo = h(
      'button',
      {
        type: 'button',
        class: 'undo',
        'aria-label': `Undo: “${named(one)}” was deleted`,
        onclick: () => this.#choosing.restore(one.id),
      },
      'Undo',
    );
    const words = h('span', { class: 'deleted', title: one.title }, 'Deleted');
    return h('li', { class: indent(depth), 'data-id': one.id }, words, undo);
  }
}

function named(one: Listed): string {
  return one.title || 'Untitled';
}

function indent(depth: number): string {
  return ['', 'branch', 'branch deeper'][Math.min(depth, 2)] ?? '';
}
