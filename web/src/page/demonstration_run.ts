/** One run of a demonstration: the steps it takes in the page, until it ends or is stopped. */

import {
  type Item,
  type ResponseSettings,
  type ServerEventOf,
  type ServerEventType,
  textOf,
  type Unsubscribe,
} from '../client/index.js';
import type { ConversationController } from './conversation_controller.js';
import type { BarContent } from './demonstration_bar.js';
import type { TurnMetrics } from './storage.js';

/** What a demonstration does to the page. */
export interface Stage {
  /** The open conversation. */
  readonly conversation: ConversationController | null;
  /** Show a text in the composer, and make it the draft. */
  setDraft(text: string): void;
  send(response?: ResponseSettings): void;
  /** Branch the open conversation after an item, and open the branch. */
  branch(itemId: string): void;
  openConversation(id: string): void;
  /** Open an empty conversation, with the welcome screen. */
  startConversation(): void;
  focusComposer(): void;
}

/** The end of a turn that has not failed. */
export interface TurnResult {
  item: Item;
  text: string;
  /** Undefined if the turn generated nothing. */
  metrics: TurnMetrics | undefined;
}

/** Rejection of every step after the end of the run. */
export class RunEnded extends Error {}

const WORD_MS = 70;
const PAUSE_MS = 250;

export class DemonstrationRun {
  readonly stage: Stage;
  /** Whether the user takes part by typing; otherwise typing stops the run. */
  acceptsInput = false;
  readonly #title: string;
  readonly #showContent: (content: BarContent) => void;
  readonly #abort = new AbortController();
  #conversation: ConversationController | null;
  #isTyping = false;

  constructor(stage: Stage, title: string, showContent: (content: BarContent) => void) {
    this.stage = stage;
    this.#title = title;
    this.#showContent = showContent;
    this.#conversation = stage.conversation;
  }

  /** Conversation that the run acts on. */
  get conversation(): ConversationController {
    this.#throwIfEnded();
    if (this.#conversation === null) throw new RunEnded('Stopped.');
    return this.#conversation;
  }

  /** Whether the run continues when the page opens `conversation`. */
  continuesIn(conversation: ConversationController): boolean {
    return this.#conversation === null || this.#conversation === conversation;
  }

  /** End the run: all its steps reject. */
  end(): void {
    if (this.#isTyping) this.stage.setDraft('');
    this.#abort.abort();
    if (this.#conversation) this.#conversation.shown = null;
  }

  /** Show what happens now. */
  show(text: string, more: Omit<BarContent, 'title' | 'text'> = {}): void {
    this.#throwIfEnded();
    this.#showContent({ title: this.#title, text, ...more });
  }

  /** Type a message word by word, send it, and wait for the response. */
  async ask(text: string, response?: ResponseSettings): Promise<TurnResult> {
    await this.type(text);
    const turn = this.nextTurn();
    this.stage.send(response);
    const result = await turn;
    await this.pause();
    return result;
  }

  /** Type a message word by word, without sending it. */
  async type(text: string): Promise<void> {
    this.#isTyping = true;
    let typed = '';
    for (const word of text.split(/(?<= )/)) {
      typed += word;
      this.#throwIfEnded();
      this.stage.setDraft(typed);
      await this.sleep(WORD_MS);
    }
    this.#isTyping = false;
  }

  /** Continue in a branch after an item. */
  branch(itemId: string): void {
    this.#throwIfEnded();
    this.#conversation = null; // so that opening the branch does not end the run
    this.stage.branch(itemId);
    this.#conversation = this.stage.conversation;
  }

  /** Wait for the end of the next response. Rejects if it fails or is cancelled. */
  nextTurn(): Promise<TurnResult> {
    const { conversation } = this;
    const turn = this.nextEvent('response.done').then(({ response }): TurnResult => {
      const { status, status_details } = response;
      if (status === 'failed') throw new RunEnded(`The response failed: ${status_details?.error?.message ?? ''}`);
      if (status === 'cancelled') throw new RunEnded('Stopped, because the response was stopped.');
      const id = conversation.client.conversation.turns.find((turn) => turn.id === response.id)?.items.at(-1);
      const item = conversation.client.conversation.findItem(id ?? '') ?? EMPTY_ITEM;
      return { item, text: textOf(item), metrics: conversation.metricsOf(response.id) };
    });
    return handled(turn);
  }

  /** Wait for an event, the next one that `isMeant`. Rejects if the connection is closed for good. */
  nextEvent<T extends ServerEventType>(
    type: T,
    isMeant: (event: ServerEventOf<T>) => boolean = () => true,
  ): Promise<ServerEventOf<T>> {
    return this.#next((resolve) =>
      this.conversation.client.on(type, (event) => {
        if (isMeant(event)) resolve(event);
      }),
    );
  }

  /** Wait until the connection, which was lost, is open again. Rejects if it is closed for good. */
  nextConnection(): Promise<void> {
    return this.#next((resolve) =>
      this.conversation.client.state.subscribe(({ phase }) => {
        if (phase === 'open') resolve();
      }),
    );
  }

  /** Returns what `listen` resolves. Rejects at the end of the run, or if the connection is closed for good. */
  #next<T>(listen: (resolve: (value: T) => void) => Unsubscribe): Promise<T> {
    const { client } = this.conversation;
    const listening = new AbortController();
    const value = new Promise<T>((resolve, reject) => {
      const unsubscribe = [
        listen(resolve),
        client.state.subscribe((state) => {
          if (state.phase === 'closed') reject(new RunEnded(`Stopped: ${state.error.message}`));
        }),
      ];
      const stopped = (): void => {
        reject(new RunEnded('Stopped.'));
      };
      this.#abort.signal.addEventListener('abort', stopped, { signal: listening.signal });
      listening.signal.addEventListener('abort', () => {
        for (const stop of unsubscribe) stop();
      });
    });
    return handled(
      value.finally(() => {
        listening.abort();
      }),
    );
  }

  async pause(times = 1): Promise<void> {
    await this.sleep(PAUSE_MS * times);
  }

  async sleep(ms: number): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, ms));
    this.#throwIfEnded();
  }

  #throwIfEnded(): void {
    if (this.#abort.signal.aborted) throw new RunEnded('Stopped.');
  }
}

const EMPTY_ITEM: Item = { id: '', type: 'message', role: 'assistant', content: [] };

/** Returns the promise, whose rejection may be ignored. */
function handled<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}
