/** Composer for the next message; every keystroke updates the draft on the server. */

import { h, icon, throttleToFrame } from './dom.js';

export interface ComposerHandler {
  setDraft(text: string): void;
  send(): void;
  cancelResponse(): void;
  /** Take back the last queued message, or edit the last user message. */
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

  constructor(handler: ComposerHandler) {
    const { field } = this;
    const submit = (event: Event): void => {
      event.preventDefault();
      if (this.#isResponding && !field.value.trim()) handler.cancelResponse();
      else handler.send();
    };
    this.element = h('form', { class: 'composer', onsubmit: submit }, field, this.extraButtons, this.#button);
    field.addEventListener('input', () => {
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
    new ResizeObserver(throttleToFrame(() => this.#resize())).observe(this.element);
    this.isResponding = false;
  }

  /** Whether a response is in progress, which the button cancels. */
  set isResponding(isResponding: boolean) {
    if (isResponding === this.#isResponding) return;
    this.#isResponding = isResponding;
    this.#updateButton();
  }

  set text(text: string) {
    if (this.field.value !== text) this.field.value = text;
    this.#resize();
    this.#updateButton();
  }

  #updateButton(): void {
    const showsStop = this.#isResponding === true && !this.field.value.trim();
    const label = showsStop ? 'Stop (Escape)' : 'Send (Enter)';
    if (this.#button.title === label) return;
    this.#button.title = label;
    this.#button.setAttribute('aria-label', label);
    this.#button.classList.toggle('stop', showsStop);
    this.#button.replaceChildren(icon(showsStop ? 'stop' : 'send'));
  }

  /** Make the field as high as its text, up to the maximum in the style sheet. */
  #resize(): void {
    const { style, value } = this.field;
    style.height = '';
    if (value) style.height = `${this.field.scrollHeight}px`;
  }
}
