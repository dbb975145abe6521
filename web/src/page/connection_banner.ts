/** Banner with the state of the connection, and the action the user can take. */

import type { ConnectionState } from '../client/index.js';
import { h } from './dom.js';

const RESTORED_MESSAGE_MS = 5000;
/** Connection attempts shorter than this show no message. */
const CONNECTING_DELAY_MS = 400;

export interface BannerActions {
  /** Retry now. */
  retry(): void;
  /** After the end: take the conversation over in this tab, or rebuild it in a new session. */
  reconnect(): void;
  askKey(message: string): void;
}

const OPENED_MESSAGES: Record<string, string> = {
  exact: 'Reconnected. Nothing was lost.',
  snapshot: 'Reconnected. The conversation was reloaded from the server.',
  rehydrated: 'Reconnected. The server had lost this conversation; it was restored from this browser.',
};

export class ConnectionBanner {
  readonly element = h('div', { class: 'banner', role: 'status', hidden: true });
  readonly #message = h('span');
  readonly #button = h('button', { type: 'button', onclick: () => this.#action?.() });
  readonly #actions: BannerActions;
  #action: (() => void) | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #interrupted = false;

  constructor(actions: BannerActions) {
    this.#actions = actions;
    this.element.append(this.#message, this.#button);
  }

  show(state: ConnectionState): void {
    clearTimeout(this.#timer);
    this.element.dataset.phase = state.phase;
    switch (state.phase) {
      case 'idle':
        this.#hide();
        break;
      case 'connecting':
        if (this.#interrupted) this.#showMessage(`Reconnecting: ${state.reason}.`);
        else this.#showLater('Connecting …');
        break;
      case 'waiting':
        this.#interrupted = true;
        this.#showCountdown(state.reason, state.retryAt);
        break;
      case 'open':
        if (this.#interrupted || state.resumeOutcome === 'rehydrated') {
          this.#showMessage(OPENED_MESSAGES[state.resumeOutcome] ?? 'Reconnected.');
        } else this.#hide();
        this.#interrupted = false;
        this.#timer = setTimeout(() => {
          this.#hide();
        }, RESTORED_MESSAGE_MS);
        break;
      case 'closed':
        this.#showEnded(state.error.code, state.error.message);
        break;
    }
  }

  #showEnded(code: string, message: string): void {
    switch (code) {
      case 'disconnected':
        this.#hide();
        break;
      case 'close_4001':
        this.#showMessage('This conversation is open in another tab.', 'Continue here', () => {
          this.#actions.reconnect();
        });
        break;
      case 'missing_api_key':
      case 'invalid_api_key':
        this.#actions.askKey(message);
        this.#showMessage(message, 'Enter API key', () => {
          this.#actions.askKey(message);
        });
        break;
      default: {
        const text = message.endsWith('.') ? message : `${message}.`;
        this.#showMessage(`${text} The conversation is still here.`, 'Continue in a new session', () => {
          this.#actions.reconnect();
        });
      }
    }
  }

  #showCountdown(reason: string, retryAt: number): void {
    const left_s = Math.ceil((retryAt - Date.now()) / 1000);
    const when = left_s > 0 ? `Retrying in ${left_s} s.` : 'Retrying.';
    this.#showMessage(`Not connected: ${reason}. ${when}`, 'Retry now', () => {
      this.#actions.retry();
    });
    this.#timer = setTimeout(() => {
      this.#showCountdown(reason, retryAt);
    }, 1000);
  }

  #showLater(text: string): void {
    this.#timer = setTimeout(() => {
      this.#showMessage(text);
    }, CONNECTING_DELAY_MS);
  }

  #showMessage(text: string, label?: string, action?: () => void): void {
    this.#message.textContent = text;
    this.#button.hidden = label === undefined;
    this.#button.textContent = label ?? '';
    this.#action = action;
    this.element.hidden = false;
  }

  #hide(): void {
    this.element.hidden = true;
  }
}
