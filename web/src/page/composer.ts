/** Composer for the next message; every keystroke updates the draft on the server. */

import { h, icon } from './dom.js';

const LINES_MAX = 9;

export interface ComposerHandler {
  input(text: string): void;
  send(): void;
  stop(): void;
  /** Edit the last user message. */
  editLast(): void;
}

export class Composer {
  readonly element: HTMLFormElement;
  readonly field = h('textarea', {
    'aria-label': 'Message',
    placeholder: 'Type a message',
    rows: '1',
    enterkeyhint: 'send',
  });
  /** Buttons beside the field, such as voice input. */
  readonly tools = h('div', { class: 'composer-tools' });
  readonly #button = h('button', { class: 'send', type: 'submit' });
  #running: boolean | null = null;
  #queued = false;

  constructor(handler: ComposerHandler) {
    const { field } = this;
    const submit = (event: Event): void => {
      event.preventDefault();
      if (this.#running && !field.value.trim()) handler.stop();
      else handler.send();
    };
    this.element = h('form', { class: 'composer', onsubmit: submit }, field, this.tools, this.#button);
    field.addEventListener('input', () => {
      this.queued = false;
      handler.input(field.value);
      this.#resize();
      this.#updateButton();
    });
    field.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        if (field.value.trim()) handler.send();
      } else if (event.key === 'ArrowUp' && field.value === '') {
        event.preventDefault();
        handler.editLast();
      }
    });
    this.running = false;
  }

  /** Whether a response is in progress, which the button cancels. */
  set running(running: boolean) {
    if (running === this.#running) return;
    this.#running = running;
    this.#updateButton();
  }

  /** Whether the text is queued to be sent. */
  set queued(queued: boolean) {
    this.#queued = queued;
    this.#button.classList.toggle('queued', queued);
    this.#updateButton();
  }

  set text(text: string) {
    if (this.field.value !== text) this.field.value = text;
    this.#resize();
    this.#updateButton();
  }

  #updateButton(): void {
    const stop = this.#running === true && !this.field.value.trim();
    const sendLabel = this.#queued ? 'Sending' : 'Send (Enter)';
    const label = stop ? 'Stop (Escape)' : sendLabel;
    if (this.#button.title === label) return;
    this.#button.title = label;
    this.#button.setAttribute('aria-label', label);
    this.#button.classList.toggle('stop', stop);
    this.#button.replaceChildren(icon(stop ? 'stop' : 'send'));
  }

  #resize(): void {
    const lines = this.field.value.split('\n').length;
    this.field.rows = Math.min(LINES_MAX, Math.max(lines, Math.ceil(this.field.value.length / 72)));
  }
}
