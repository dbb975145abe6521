/** A calm line that says what happens to the connection, and what to do about it if anything. */

import type { ConnectionState } from '../client/index.js';
import { h } from './dom.js';

const BACK_MS = 5000;
/** What is over sooner is not worth a word. */
const SOON_MS = 400;

export interface Ways {
  /** Do not wait for the next attempt. */
  retry(): void;
  /** After its end: this tab takes the conversation over, or tells it to the server again. */
  goOn(): void;
  askKey(message: string): void;
}

const BEGUN: Record<string, string> = {
  exact: 'Back. Nothing was lost.',
  snapshot: 'Back. The conversation was read again from the server.',
  rebuilt: 'Back. The server had lost this conversation and was told it again.',
};

export class Banner {
  readonly element = h('div', { class: 'banner', role: 'status', hidden: true });
  readonly #words = h('span');
  readonly #button = h('button', { type: 'button', onclick: () => this.#act?.() });
  readonly #ways: Ways;
  #act: (() => void) | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #interrupted = false;

  constructor(ways: Ways) {
    this.#ways = ways;
    this.element.append(this.#words, this.#button);
  }

  show(state: ConnectionState): void {
    clearTimeout(this.#timer);
    this.element.dataset.phase = state.phase;
    switch (state.phase) {
      case 'idle':
        this.#hide();
        break;
      case 'connecting':
        if (this.#interrupted) this.#say(`Coming back: ${state.reason}.`);
        else this.#later('Connecting …');
        break;
      case 'waiting':
        this.#interrupted = true;
        this.#count(state.reason, state.retryAt);
        break;
      case 'open':
        if (this.#interrupted || state.begun === 'rebuilt') this.#say(BEGUN[state.begun] ?? 'Back.');
        else this.#hide();
        this.#interrupted = false;
        this.#timer = setTimeout(() => {
          this.#hide();
        }, BACK_MS);
        break;
      case 'ended':
        this.#end(state.error.code, state.error.message);
        break;
    }
  }

  #end(code: string, message: string): void {
    switch (code) {
      case 'left':
        this.#hide();
        break;
      case 'close_4001':
        this.#say('This conversation goes on in another tab.', 'Continue here', () => {
          this.#ways.goOn();
        });
        break;
      case 'missing_api_key':
      case 'invalid_api_key':
        this.#ways.askKey(message);
        this.#say(message, 'Enter a key', () => {
          this.#ways.askKey(message);
        });
        break;
      default: {
        const words = message.endsWith('.') ? message : `${message}.`;
        this.#say(`${words} What was said is still here.`, 'Go on in a new session', () => {
          this.#ways.goOn();
        });
      }
    }
  }

  #count(reason: string, retryAt: number): void {
    const left = Math.ceil((retryAt - Date.now()) / 1000);
    const when = left > 0 ? `Trying again in ${left} s.` : 'Trying again.';
    this.#say(`Not connected: ${reason}. ${when}`, 'Try now', () => {
      this.#ways.retry();
    });
    this.#timer = setTimeout(() => {
      this.#count(reason, retryAt);
    }, 1000);
  }

  #later(words: string): void {
    this.#timer = setTimeout(() => {
      this.#say(words);
    }, SOON_MS);
  }

  #say(words: string, label?: string, act?: () => void): void {
    this.#words.textContent = words;
    this.#button.hidden = label === undefined;
    this.#button.textContent = label ?? '';
    this.#act = act;
    this.element.hidden = false;
  }

  #hide(): void {
    this.element.hidden = true;
  }
}
