/** The conversations of this browser, branches below what they were branched from. */

import { h, icon, iconButton } from './dom.js';
import { all, type Listed } from './storage.js';

export interface Choosing {
  /** A link was followed. */
  chosen(): void;
  begin(): void;
  remove(id: string): void;
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

  draw(current: string): void {
    const listed = all();
    const known = new Set(listed.map((one) => one.id));
    const roots = listed.filter((one) => one.parent === null || !known.has(one.parent));
    this.#list.replaceChildren(...roots.flatMap((root) => this.#rows(root, listed, current, 0)));
  }

  #rows(one: Listed, listed: Listed[], current: string, depth: number): Node[] {
    const branches = listed.filter((other) => other.parent === one.id).reverse();
    return [
      this.#row(one, current, depth),
      ...branches.flatMap((branch) => this.#rows(branch, listed, current, depth + 1)),
    ];
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
      h('span', {}, one.title || 'Untitled'),
    );
    const remove = iconButton('trash', `Delete “${one.title || 'Untitled'}”`, () => {
      this.#choosing.remove(one.id);
    });
    const depths = ['', 'branch', 'branch deeper'];
    return h('li', { class: depths[Math.min(depth, 2)] ?? '' }, open, remove);
  }
}
