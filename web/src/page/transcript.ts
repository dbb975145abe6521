/** The conversation on the page: its messages in order, the last one growing. */

import type { Item } from '../client/index.js';
import { h, perFrame } from './dom.js';
import { type Acts, unansweredView, unsentView, type View, viewOf } from './message_view.js';
import { cutBecause } from './response_status.js';
import type { Talk } from './conversation_controller.js';

/** Pixels from the end at which the reader is still taken to follow. */
const NEAR_END = 80;
/** Messages that are drawn; so many more when the reader comes to the first of them. */
const PAGE = 60;

export class Transcript {
  readonly element = h('div', { class: 'transcript', role: 'log', 'aria-label': 'Conversation' });
  readonly #talk: Talk;
  readonly #acts: Acts;
  readonly #scroller: HTMLElement;
  readonly #views = new Map<string, View>();
  readonly #earlier = h(
    'button',
    { type: 'button', class: 'earlier', hidden: true, onclick: () => this.#more() },
    'Earlier messages',
  );
  readonly #tail = h('div', { class: 'tail' });
  readonly #ask = perFrame(() => {
    this.#draw();
  });
  #dirty = new Set<string>();
  #all = true;
  #following = true;
  #drawn = PAGE;

  constructor(talk: Talk, acts: Acts, scroller: HTMLElement) {
    this.#talk = talk;
    this.#acts = acts;
    this.#scroller = scroller;
    this.element.append(this.#earlier, this.#tail);
    new IntersectionObserver(
      ([seen]) => {
        if (seen?.isIntersecting && !this.#following) this.#more();
      },
      { root: scroller, rootMargin: '400px' },
    ).observe(this.#earlier);
    talk.client.onChange((change) => {
      if (change.kind === 'item') this.#dirty.add(change.id);
      else this.#all = true;
      this.#ask();
    });
    scroller.addEventListener('scroll', () => {
      const { scrollTop, scrollHeight, clientHeight } = scroller;
      this.#following = scrollHeight - scrollTop - clientHeight < NEAR_END;
    });
  }

  /** Draws soon, all of it. */
  draw(): void {
    this.#all = true;
    this.#ask();
  }

  /** To the end, where it stays. */
  follow(): void {
    this.#following = true;
    this.#ask();
  }

  /** More of what was said before, while what is read stays where it is. */
  #more(): void {
    if (this.#earlier.hidden) return;
    this.#drawn += PAGE;
    const { scrollHeight, scrollTop } = this.#scroller;
    this.#drawAll();
    this.#scroller.scrollTop = scrollTop + this.#scroller.scrollHeight - scrollHeight;
  }

  #draw(): void {
    if (this.#all) this.#drawAll();
    else for (const id of this.#dirty) this.#drawOne(id);
    this.#all = false;
    this.#dirty = new Set();
    if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #drawAll(): void {
    const { items } = this.#talk.client.conversation;
    const messages = items.filter((item) => item.type !== 'function_call_output');
    const shown = messages.slice(-this.#drawn);
    this.#earlier.hidden = shown.length === messages.length;
    const wanted = new Set(shown.map((item) => item.id));
    for (const [id, view] of this.#views) {
      if (wanted.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
    const outputs = new Map(
      items
        .filter((item) => item.type === 'function_call_output')
        .map((item) => [item.call_id, item.output]),
    );
    let before: Node = this.#tail;
    for (const item of shown.toReversed()) {
      const view = this.#views.get(item.id) ?? viewOf(item, this.#acts);
      this.#views.set(item.id, view);
      view.element.dataset.id = item.id;
      view.draw(item, this.#look(item, outputs, item === shown.at(-1)));
      if (view.element.nextSibling !== before) this.element.insertBefore(view.element, before);
      before = view.element;
    }
    this.#tail.replaceChildren(...this.#ending());
  }

  #drawOne(id: string): void {
    const { items } = this.#talk.client.conversation;
    const item = this.#talk.client.conversation.find(id);
    const view = this.#views.get(id);
    if (item && view) view.draw(item, this.#look(item, new Map(), item === items.at(-1)));
  }

  #look(item: Item, outputs: Map<string, string>, last: boolean) {
    const { conversation } = this.#talk.client;
    const running = conversation.running;
    const open = running?.items.includes(item.id) === true && item.status !== 'completed';
    const turn = open ? undefined : conversation.turnOf(item.id);
    const spoken = turn && item.type === 'message' && item.role === 'assistant';
    const metrics = spoken ? this.#talk.metricsOf(turn.id) : undefined;
    const cut = !open && item.status === 'incomplete' ? cutBecause(turn) : '';
    const output = item.type === 'function_call' ? (outputs.get(item.call_id) ?? null) : null;
    return { open, metrics: metrics ?? null, last: last && !open, cut, output };
  }

  /** What stands below the last message: what is not confirmed, that an answer is awaited, or why
   * there is none. */
  #ending(): Node[] {
    const nodes: Node[] = this.#talk.unsent.map(unsentView);
    const { running } = this.#talk.client.conversation;
    if (running?.items.length === 0) {
      nodes.push(h('p', { class: 'pending', 'aria-label': 'The answer is being computed' }));
    }
    if (this.#talk.interrupted) {
      const words = 'The model is being started again. The answer goes on from here.';
      nodes.push(h('p', { class: 'interrupted note', role: 'status' }, words));
    }
    const { unanswered } = this.#talk;
    if (unanswered) nodes.push(unansweredView(unanswered, () => this.#talk.retry()));
    return nodes;
  }
}
