/** Views of the messages below the transcript: those the server has not acknowledged, and the queued ones,
 * which can be taken back. */

import { BoundedText } from './bounded_text.js';
import { h, icon } from './dom.js';
import type { QueuedMessage } from './message_queue.js';

const UNCONFIRMED = 'Not confirmed yet: sent again once connected';

export interface UnsentMessages {
  /** Texts of the messages that were sent but not acknowledged. */
  pending: readonly string[];
  queue: readonly QueuedMessage[];
  isConnected: boolean;
  takeBack: (id: string) => void;
}

export class UnsentMessageViews {
  /** Drawn views by what they show; a view that is still needed keeps its element, and thus the focus. */
  #views = new Map<string, HTMLElement>();

  draw({ pending, queue, isConnected, takeBack }: UnsentMessages): HTMLElement[] {
    const views = new Map<string, HTMLElement>();
    const add = (key: string, create: () => HTMLElement): void => {
      views.set(key, this.#views.get(key) ?? create());
    };
    pending.forEach((text, i) => {
      const note = isConnected ? 'Sending' : UNCONFIRMED;
      add(`pending ${i} ${String(isConnected)} ${text}`, () => unsentMessageView(text, note));
    });
    queue.forEach(({ id, text, isSent }, i) => {
      const first = isConnected ? 'Queued: sent after the response' : 'Queued: sent once connected';
      const queued = i === 0 ? first : 'Queued: sent after the one above';
      const note = isSent ? UNCONFIRMED : queued;
      add(`queued ${id} ${note}`, () => {
        const view = unsentMessageView(text, note, isSent ? undefined : () => takeBack(id));
        view.classList.add('queued');
        return view;
      });
    });
    this.#views = views;
    return [...views.values()];
  }
}

function unsentMessageView(text: string, note: string, takeBack?: () => void): HTMLElement {
  const byline = h('div', { class: 'byline' }, h('h2', { class: 'role' }, 'You'));
  const button =
    takeBack &&
    h('button', { type: 'button', class: 'take-back', onclick: takeBack }, 'Take back');
  const status = h('div', { class: 'unsent-status' }, icon('clock'), h('span', {}, note), button);
  const body = h('div', { class: 'body' });
  new BoundedText(body).show(text);
  const content = h('div', { class: 'content' }, body);
  const label = `Your message, ${note.toLowerCase()}`;
  return h('article', { class: 'message user unsent', 'aria-label': label }, byline, content, status);
}
