/**
 * The message that is being typed or spoken, kept in step with the server's input buffer.
 *
 * The server computes the words as they come, so that the answer begins at once on commit. Only what
 * is new is sent; while a piece is on its way the next ones gather behind it.
 */

import { codePoints } from './conversation.js';
import type { ClientEvent, ServerEvent } from './events.js';
import { type Receipt, Refused } from './outbox.js';

/** Sends an event; `again` instead of it after a lost connection. */
export type Send = (event: ClientEvent, again?: ClientEvent[]) => Receipt;

export class Draft {
  readonly #send: Send;
  #text = '';
  /** What the server's buffer holds when all is done that was sent; null: nobody knows. */
  #bufferText: string | null = '';
  #inFlightId: string | null = null;
  /** Of the last event that wrote into the buffer. */
  #lastWrite: Receipt | null = null;
  #refusal: Refused | null = null;

  constructor(send: Send) {
    this.#send = send;
  }

  get text(): string {
    return this.#text;
  }

  /** Why the server does not take the text as it is now. */
  get refusal(): Refused | null {
    return this.#refusal;
  }

  /** The whole text, as it is now. */
  set(text: string): void {
    this.#text = text;
    if (this.#inFlightId === null) this.#push();
  }

  /** It becomes a message of the user. Rejects with Refused where it is empty, or was not taken. */
  commit(): Receipt {
    this.#push();
    const commit: ClientEvent = { type: 'input_text_buffer.commit' };
    // A server that has lost the buffer hears it again; one that has not knows the id.
    const lastWrite = this.#lastWrite;
    const replay: ClientEvent[] =
      lastWrite === null
        ? []
        : [{ type: 'input_text_buffer.replace', event_id: lastWrite.eventId, text: this.#text }];
    const { eventId, acknowledged } = this.#send(commit, [...replay, commit]);
    this.#lastWrite = null;
    this.#refusal = null;
    this.#text = '';
    this.#bufferText = '';
    this.#inFlightId = null;
    const settled = acknowledged.catch(async (error: unknown) => {
      await lastWrite?.acknowledged; // why there was nothing to commit
      throw error;
    });
    settled.catch(() => undefined); // who does not ask is not told
    return { eventId, acknowledged: settled };
  }

  /** The server's buffer may be another one now: say all of it the next time. */
  unsure(): void {
    this.#bufferText = null;
    this.#inFlightId = null;
  }

  /** Says it again, if there is anything to say. */
  renew(): void {
    if (this.#text === '' && this.#bufferText === null) this.#bufferText = '';
    this.#push();
  }

  #push(): void {
    const text = this.#text;
    const bufferText = this.#bufferText;
    if (text === bufferText) return;
    this.#bufferText = text;
    this.#refusal = null;
    const replay: ClientEvent = { type: 'input_text_buffer.replace', text };
    if (text === '') this.#track(this.#send({ type: 'input_text_buffer.clear' }));
    else if (bufferText !== null && bufferText !== '' && text.startsWith(bufferText)) {
      const suffix = text.slice(bufferText.length);
      this.#track(this.#send({ type: 'input_text_buffer.append', text: suffix }, [replay]));
    } else if (bufferText === '') {
      this.#track(this.#send({ type: 'input_text_buffer.append', text }, [replay]));
    } else this.#track(this.#send(replay));
  }

  #track(receipt: Receipt): void {
    const expected = this.#bufferText ?? '';
    this.#inFlightId = receipt.eventId;
    this.#lastWrite = receipt;
    receipt.acknowledged.then(
      (event) => {
        this.#onSettled(receipt, lengthMatches(event, expected), null);
      },
      (error: unknown) => {
        this.#onSettled(receipt, false, error instanceof Refused ? error : null);
      },
    );
  }

  #onSettled(receipt: Receipt, agreed: boolean, refusal: Refused | null): void {
    if (this.#inFlightId !== receipt.eventId) return;
    this.#inFlightId = null;
    this.#refusal = refusal;
    const stale = this.#text !== this.#bufferText;
    if (!agreed) this.#bufferText = null;
    if (stale) this.#push();
  }
}

function lengthMatches(event: ServerEvent, expected: string): boolean {
  return event.type !== 'input_text_buffer.appended' || event.length === codePoints(expected);
}
