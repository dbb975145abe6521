/** Banner with the state of the connection, and the action the user can take. */

import type { ConnectionState, ResumeOutcome } from '../client/index.js';
import { h } from './dom.js';

const OPEN_MESSAGE_MS = 5000;
/** Connection attempts shorter than this show no message. */
const CONNECTING_DELAY_MS = 400;

export interface ConnectionBannerHandler {
  /** Skip the delay before the next attempt. */
  retryNow(): void;
  /** Continue after the connection was closed: take the session over in this tab, or begin a new one. */
  reconnect(): void;
  promptForApiKey(message: string): void;
}

const OPEN_MESSAGES: Partial<Record<ResumeOutcome, string>> = {
  exact: 'Reconnected. Nothing was lost.',
  snapshot: 'Reconnected. The conversation was reloaded from the server.',
  rehydrated: 'Reconnected. The server had lost this conversation; it was restored from this browser.',
};

export class ConnectionBanner {
  readonly element = h('div', { class: 'banner', role: 'status', hidden: true });
  readonly #message = h('span');
  readonly #button = h('button', { type: 'button', onclick: () => this.#action?.() });
  readonly #handler: ConnectionBannerHandler;
  #action: (() => void) | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #connectionLost = false;

  constructor(handler: ConnectionBannerHandler) {
    this.#handler = handler;
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
        if (this.#connectionLost) this.#showMessage(`Reconnecting: ${state.reason}.`);
        else this.#showMessageLater('Connecting …');
        break;
      case 'waiting':
        this.#connectionLost = true;
        this.#showCountdown(state.reason, state.retryAt);
        break;
      case 'open':
        if (this.#connectionLost || state.resumeOutcome === 'rehydrated') {
          this.#showMessage(OPEN_MESSAGES[state.resumeOutcome] ?? 'Reconnected.');
        } else this.#hide();
        this.#connectionLost = false;
        this.#timer = setTimeout(() => {
          this.#hide();
        }, OPEN_MESSAGE_MS);
        break;
      case 'closed':
        this.#showClosed(state.error.code, state.error.message);
        break;
    }
  }

  #showClosed(code: string, message: string): void {
    switch (code) {
      case 'disconnected':
        this.#hide();
        break;
      case 'close_4001':
        this.#showMessage('This conversation is open in another tab.', 'Continue here', () => {
          this.#handler.reconnect();
        });
        break;
      case 'close_4004':
      case 'missing_api_key':
      case 'invalid_api_key':
        this.#handler.promptForApiKey(message);
        this.#showMessage(message, 'Enter API key', () => {
          this.#handler.promptForApiKey(message);
        });
        break;
      default: {
        const text = message.endsWith('.') ? message : `${message}.`;
        this.#showMessage(`${text} The conversation is still here.`, 'Continue in a new session', () => {
          this.#handler.reconnect();
        });
      }
    }
  }

  #showCountdown(reason: string, retryAt: number): void {
    const remaining_s = Math.ceil((retryAt - Date.now()) / 1000);
    const when = remaining_s > 0 ? `Retrying in ${remaining_s} s.` : 'Retrying.';
    this.#showMessage(`Not connected: ${reason}. ${when}`, 'Retry now', () => {
      this.#handler.retryNow();
    });
    this.#timer = setTimeout(() => {
      this.#showCountdown(reason, retryAt);
    }, 1000);
  }

  #showMessageLater(text: string): void {
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
