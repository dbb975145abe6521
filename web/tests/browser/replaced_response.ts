/** Responses with a chosen text: the bundled model writes no Markdown. Everything but the text is the server's. */

import type { BrowserContext, WebSocketRoute } from 'playwright-core';

export interface Replacement {
  text: string;
  /** Characters of each delta. */
  deltaChars?: number;
}

/** Replace the text of each response on the context's connections; `next` returns it. */
export async function replaceResponses(context: BrowserContext, next: () => Replacement | null): Promise<void> {
  await context.routeWebSocket(/\/v1\/realtime/, (page) => {
    const relay = new Relay(page, next);
    page.connectToServer().onMessage((message) => {
      relay.receive(String(message));
    });
  });
}

class Relay {
  readonly #page: WebSocketRoute;
  readonly #next: () => Replacement | null;
  /** Text of the server's response, and the text in its place. */
  #original = '';
  #replacement: Replacement | null = null;
  #sending: Promise<void> = Promise.resolve();

  constructor(page: WebSocketRoute, next: () => Replacement | null) {
    this.#page = page;
    this.#next = next;
  }

  receive(message: string): void {
    const event = JSON.parse(message) as { type: string; delta: string };
    if (event.type === 'response.created') {
      this.#original = '';
      this.#replacement = this.#next();
    }
    if (event.type === 'response.output_text.delta' && this.#replacement) {
      const isFirst = this.#original === '';
      this.#original += event.delta;
      if (isFirst) this.#sending = this.#sending.then(() => this.#sendDeltas(event));
      return;
    }
    this.#sending = this.#sending.then(() => {
      this.#page.send(this.#replacement ? this.#replace(message, this.#replacement.text) : message);
    });
  }

  async #sendDeltas(event: object): Promise<void> {
    const { text = '', deltaChars = 24 } = this.#replacement ?? {};
    for (let start = 0; start < text.length; start += deltaChars) {
      this.#page.send(JSON.stringify({ ...event, delta: text.slice(start, start + deltaChars) }));
      await new Promise((resolve) => setTimeout(resolve, 4));
    }
  }

  #replace(message: string, text: string): string {
    const original = this.#original;
    if (!original) return message;
    return JSON.stringify(JSON.parse(message, (_key, value: unknown) => (value === original ? text : value)));
  }
}
