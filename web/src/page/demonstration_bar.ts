/** Bar above the composer that accompanies a demonstration: what happens, what to do, and the result. */

import { h, iconButton } from './dom.js';

export interface BarContent {
  title: string;
  /** What happens now, or the result. */
  text: string;
  /** A step that the user takes. */
  action?: { label: string; run: () => void };
  /** Completed and total steps. */
  progress?: [done: number, total: number];
}

export class DemonstrationBar {
  readonly element: HTMLElement;
  readonly #title = h('strong', {});
  readonly #text = h('p', { role: 'status' });
  readonly #action = h('button', { type: 'button', class: 'primary', hidden: true });
  readonly #stopButton: HTMLButtonElement;
  readonly #moreButton: HTMLButtonElement;
  readonly #progress = h('progress', { hidden: true });
  #run: () => void = () => undefined;

  /** `stop` ends the demonstration, `close` hides its result, `more` offers the others. */
  constructor(handler: { stop: () => void; close: () => void; more: () => void }) {
    this.#stopButton = h('button', { type: 'button', onclick: () => handler.stop() }, 'Stop');
    this.#moreButton = h('button', { type: 'button', onclick: () => handler.more() }, 'Try another');
    this.#action.addEventListener('click', () => {
      this.#run();
    });
    const close = iconButton('close', 'Close', () => {
      handler.close();
    });
    close.classList.add('close');
    this.element = h(
      'section',
      { class: 'demonstration', 'aria-label': 'Demonstration', hidden: true },
      h('div', { class: 'demonstration-head' }, this.#title, this.#progress, close),
      this.#text,
      h('div', { class: 'row' }, this.#action, this.#stopButton, this.#moreButton),
    );
  }

  /** Show a step of a running demonstration, or with `isRunning` false its result. */
  show({ title, text, action, progress }: BarContent, isRunning: boolean): void {
    this.#title.textContent = title;
    if (this.#text.textContent !== text) this.#text.textContent = text;
    this.#action.hidden = action === undefined;
    this.#action.textContent = action?.label ?? '';
    this.#run = action?.run ?? (() => undefined);
    this.#stopButton.hidden = !isRunning;
    this.#moreButton.hidden = isRunning;
    this.#progress.hidden = progress === undefined;
    if (progress) [this.#progress.value, this.#progress.max] = progress;
    this.#progress.setAttribute('aria-label', progress ? `Step ${progress.join(' of ')}` : '');
    this.element.classList.toggle('running', isRunning);
    this.element.hidden = false;
  }

  hide(): void {
    this.element.hidden = true;
  }
}
