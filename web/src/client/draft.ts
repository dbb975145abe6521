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
  #told: string | null = '';
  #underWay: string | null = null;
  /** Of the last event that wrote into the buffer. */
  #written: Receipt | null = null;
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
    if (this.#underWay === null) this.#push();
  }

  /** It becomes a message of the user. Rejects with Refused where it is empty, or was not taken. */
  commit(): Receipt {
    this.#push();
    const commit: ClientEvent = { type: 'input_text_buffer.commit' };
    // A server that has lost the buffer hears it again; one that has not knows the id.
    const written = this.#written;
    const whole: ClientEvent[] =
      written === null
        ? []
        : [{ type: 'input_text_buffer.replace', event_id: written.eventId, text: this.#text }];
    const { eventId, acknowledged } = this.#send(commit, [...whole, commit]);
    this.#written = null;
    this.#refusal = null;
    this.#text = '';
    this.#told = '';
    this.#underWay = null;
    const explained = acknowledged.catch(async (error: unknown) => {
      await written?.acknowledged; // why there was nothing to commit
      throw error;
    });
    explained.catch(() => undefined); // who does not ask is not told
    return { eventId, acknowledged: explained };
  }

  /** The server's buffer may be another one now: say all of it the next time. */
  unsure(): void {
    this.#told = null;
    this.#underWay = null;
  }

  /** Says it again, if there is anything to say. */
  renew(): void {
    if (this.#text === '' && this.#told === null) this.#told = '';
    this.#push();
  }

  #push(): void {
    const text = this.#text;
    const told = this.#told;
    if (text === told) return;
    this.#told = text;
    this.#refusal = null;
    const whole: ClientEvent = { type: 'input_text_buffer.replace', text };
    if (text === '') this.#follow(this.#send({ type: 'input_text_buffer.clear' }));
    else if (told !== null && told !== '' && text.startsWith(told)) {
      const more = text.slice(told.length);
      this.#follow(this.#send({ type: 'input_text_buffer.append', text: more }, [whole]));
    } else if (told === '') {
      this.#follow(this.#send({ type: 'input_text_buffer.append', text }, [whole]));
    } else this.#follow(this.#send(whole));
  }

  #follow(receipt: Receipt): void {
    const said = this.#told ?? '';
    this.#underWay = receipt.eventId;
    this.#written = receipt;
    receipt.acknowledged.then(
      (event) => {
        this.#landed(receipt, agrees(event, said), null);
      },
      (error: unknown) => {
        this.#landed(receipt, false, error instanceof Refused ? error : null);
      },
    );
  }

  #landed(receipt: Receipt, agreed: boolean, refusal: Refused | null): void {
    if (this.#underWay !== receipt.eventId) return;
    this.#underWay = null;
    this.#refusal = refusal;
    const unsaid = this.#text !== this.#told;
    if (!agreed) this.#told = null;
    if (unsaid) this.#push();
  }
}

function agrees(event: ServerEvent, said: string): boolean {
  return event.type !== 'input_text_buffer.appended' || event.length === codePoints(said);
}
