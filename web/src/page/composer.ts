/** Composer for the next message; every keystroke updates the draft on the server. */

import { h, icon } from './dom.js';

const LINES_MAX = 9;

export interface ComposerHandler {
  setDraft(text: string): void;
  send(): void;
  cancelResponse(): void;
  /** Edit the last user message. */
  editLastMessage(): void;
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
  readonly extraButtons = h('div', { class: 'composer-tools' });
  readonly #button = h('button', { class: 'send', type: 'submit' });
  #isResponding: boolean | null = null;
  #isQueued = false;

  constructor(handler: ComposerHandler) {
    const { field } = this;
    const submit = (event: Event): void => {
      event.preventDefault();
      if (this.#isResponding && !field.value.trim()) handler.cancelResponse();
      else handler.send();
    };
    this.element = h('form', { class: 'composer', onsubmit: submit }, field, this.extraButtons, this.#button);
    field.addEventListener('input', () => {
      this.isQueued = false;
      handler.setDraft(field.value);
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
        handler.editLastMessage();
      }
    });
    this.isResponding = false;
  }

  /** Whether a response is in progress, which the button cancels. */
  set isResponding(isResponding: boolean) {
    if (isResponding === this.#isResponding) return;
    this.#isResponding = isResponding;
    this.#updateButton();
  }

  /** Whether the text is queued to be sent. */
  set isQueued(isQueued: boolean) {
    this.#isQueued = isQueued;
    this.#button.classList.toggle('queued', isQueued);
    this.#updateButton();
  }

  set text(text: string) {
    if (this.field.value !== text) this.field.value = text;
    this.#resize();
    this.#updateButton();
  }

  #updateButton(): void {
    const showsStop = this.#isResponding === true && !this.field.value.trim();
    const sendLabel = this.#isQueued ? 'Sending' : 'Send (Enter)';
    const label = showsStop ? 'Stop (Escape)' : sendLabel;
    if (this.#button.title === label) return;
    this.#button.title = label;
    this.#button.setAttribute('aria-label', label);
    this.#button.classList.toggle('stop', showsStop);
    this.#button.replaceChildren(icon(showsStop ? 'stop' : 'send'));
  }

  #resize(): void {
    const lines = this.field.value.split('\n').length;
    this.field.rows = Math.min(LINES_MAX, Math.max(lines, Math.ceil(this.field.value.length / 72)));
  }
}
