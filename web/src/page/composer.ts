/** Where the next message is written. Every key goes to the server at once. */

import { h, icon } from './dom.js';

const LINES_MAX = 9;

export interface Writing {
  type(text: string): void;
  send(): void;
  stop(): void;
  /** Edit the last message of the user. */
  editLast(): void;
}

export class Composer {
  readonly element: HTMLFormElement;
  readonly field = h('textarea', {
    'aria-label': 'Message',
    placeholder: 'Say something',
    rows: '1',
    enterkeyhint: 'send',
  });
  /** Beside the field, as the microphone. */
  readonly tools = h('div', { class: 'composer-tools' });
  readonly #button = h('button', { class: 'send', type: 'submit' });
  #running: boolean | null = null;
  #waits = false;

  constructor(writing: Writing) {
    const { field } = this;
    const submit = (event: Event): void => {
      event.preventDefault();
      if (this.#running && !field.value.trim()) writing.stop();
      else writing.send();
    };
    this.element = h('form', { class: 'composer', onsubmit: submit }, field, this.tools, this.#button);
    field.addEventListener('input', () => {
      this.waits = false;
      writing.type(field.value);
      this.#fit();
      this.#show();
    });
    field.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        if (field.value.trim()) writing.send();
      } else if (event.key === 'ArrowUp' && field.value === '') {
        event.preventDefault();
        writing.editLast();
      }
    });
    this.running = false;
  }

  /** Whether an answer is being made: the button stops it. */
  set running(running: boolean) {
    if (running === this.#running) return;
    this.#running = running;
    this.#show();
  }

  /** Whether what is written is sent as soon as it can be. */
  set waits(waits: boolean) {
    this.#waits = waits;
    this.#button.classList.toggle('waits', waits);
    this.#show();
  }

  set text(text: string) {
    if (this.field.value !== text) this.field.value = text;
    this.#fit();
    this.#show();
  }

  #show(): void {
    const stops = this.#running === true && !this.field.value.trim();
    const sends = this.#waits ? 'Being sent' : 'Send (Enter)';
    const label = stops ? 'Stop (Escape)' : sends;
    if (this.#button.title === label) return;
    this.#button.title = label;
    this.#button.setAttribute('aria-label', label);
    this.#button.classList.toggle('stops', stops);
    this.#button.replaceChildren(icon(stops ? 'stop' : 'send'));
  }

  #fit(): void {
    const lines = this.field.value.split('\n').length;
    this.field.rows = Math.min(LINES_MAX, Math.max(lines, Math.ceil(this.field.value.length / 72)));
  }
}
