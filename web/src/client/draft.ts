/**
 * The message being typed or dictated, synchronized with the server's input buffer.
 *
 * The server prefills the text as it arrives, so that generation starts at once on commit. Only the
 * difference is sent; while one write is in flight, later changes are merged into the next.
 */

import { countCodePoints } from './conversation.js';
import type { ClientEvent, ServerEvent } from './events.js';
import { EventRefusedError, type Receipt } from './outbox.js';

/** Send an event; after a lost connection `resendAs` is sent instead. */
export type SendEvent = (event: ClientEvent, resendAs?: ClientEvent[]) => Receipt;

export class Draft {
  readonly #send: SendEvent;
  #text = '';
  /** Content of the server's buffer once every sent event is applied; null if unknown. */
  #bufferText: string | null = '';
  /** Id of the write that awaits its acknowledgement. */
  #inFlightId: string | null = null;
  /** Receipt of the last write into the buffer. */
  #lastWrite: Receipt | null = null;
  #refusal: EventRefusedError | null = null;

  constructor(send: SendEvent) {
    this.#send = send;
  }

  get text(): string {
    return this.#text;
  }

  /** Why the server refused the current text. */
  get refusal(): EventRefusedError | null {
    return this.#refusal;
  }

  /** Replace the draft with `text` and send the difference. */
  set(text: string): void {
    this.#text = text;
    if (this.#inFlightId === null) this.#sendChanges();
  }

  /** Append words as they come. */
  append(text: string): void {
    this.set(this.#text + text);
  }

  /** Turn the draft into a user message, and begin an empty one. Resolves with the message's id; with null
   * if the draft was empty, in which case nothing is committed. Rejects with EventRefusedError if the text
   * was refused. */
  commit(): Promise<string | null> {
    this.#sendChanges();
    if (this.#text === '') return Promise.resolve(null);
    const commit: ClientEvent = { type: 'input_text_buffer.commit' };
    // A server that lost the buffer needs the text again; any other ignores the repeated event id.
    const lastWrite = this.#lastWrite;
    const writeAgain: ClientEvent[] =
      lastWrite === null
        ? []
        : [{ type: 'input_text_buffer.replace', event_id: lastWrite.eventId, text: this.#text }];
    const { acknowledged } = this.#send(commit, [...writeAgain, commit]);
    this.#lastWrite = null;
    this.#refusal = null;
    this.#text = '';
    this.#bufferText = '';
    this.#inFlightId = null;
    const committed = acknowledged.then(
      (event) => (event.type === 'input_text_buffer.committed' ? event.item_id : null),
      async (error: unknown) => {
        // The server keeps the text of a refused commit in its buffer.
        if (error instanceof EventRefusedError) this.#replaceBuffer();
        await lastWrite?.acknowledged; // a refused write explains the empty buffer
        throw error;
      },
    );
    committed.catch(() => undefined); // it may be ignored without an unhandled rejection
    return committed;
  }

  /** Mark the content of the server's buffer as unknown, so that the next write replaces all of it. */
  markBufferUnknown(): void {
    this.#bufferText = null;
    this.#inFlightId = null;
  }

  /** Replace all of the server's buffer with the next write, which is sent now if there is a text. */
  #replaceBuffer(): void {
    this.markBufferUnknown();
    if (this.#text !== '') this.#sendChanges();
  }

  /** Send the draft again if the server's buffer is out of date. */
  sync(): void {
    if (this.#text === '' && this.#bufferText === null) this.#bufferText = '';
    this.#sendChanges();
  }

  #sendChanges(): void {
    const text = this.#text;
    const bufferText = this.#bufferText;
    if (text === bufferText) return;
    this.#bufferText = text;
    this.#refusal = null;
    const replace: ClientEvent = { type: 'input_text_buffer.replace', text };
    if (text === '') this.#track(this.#send({ type: 'input_text_buffer.clear' }));
    else if (bufferText !== null && bufferText !== '' && text.startsWith(bufferText)) {
      const suffix = text.slice(bufferText.length);
      this.#track(this.#send({ type: 'input_text_buffer.append', text: suffix }, [replace]));
    } else if (bufferText === '') {
      this.#track(this.#send({ type: 'input_text_buffer.append', text }, [replace]));
    } else this.#track(this.#send(replace));
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
        this.#onSettled(receipt, false, error instanceof EventRefusedError ? error : null);
      },
    );
  }

  #onSettled(receipt: Receipt, bufferMatches: boolean, refusal: EventRefusedError | null): void {
    if (this.#inFlightId !== receipt.eventId) return;
    this.#inFlightId = null;
    this.#refusal = refusal;
    const stale = this.#text !== this.#bufferText;
    if (!bufferMatches) this.#bufferText = null;
    if (stale) this.#sendChanges();
  }
}

function lengthMatches(event: ServerEvent, expected: string): boolean {
  return event.type !== 'input_text_buffer.appended' || event.length === countCodePoints(expected);
}
