/** Log of all events on a page's WebSockets, in order and across connections. */

import type { Page } from 'playwright-core';
import type { ClientEvent, ServerEvent, ServerEventOf, ServerEventType } from '../../src/client/index.js';

export class WebSocketLog {
  readonly sent: ClientEvent[] = [];
  readonly received: ServerEvent[] = [];

  constructor(page: Page) {
    page.on('websocket', (socket) => {
      socket.on('framesent', ({ payload }) => this.sent.push(JSON.parse(String(payload)) as ClientEvent));
      socket.on('framereceived', ({ payload }) =>
        this.received.push(JSON.parse(String(payload)) as ServerEvent),
      );
    });
  }

  sentOf(type: ClientEvent['type']): ClientEvent[] {
    return this.sent.filter((event) => event.type === type);
  }

  receivedOf<T extends ServerEventType>(type: T): ServerEventOf<T>[] {
    return this.received.filter((event): event is ServerEventOf<T> => event.type === type);
  }

  /** How each reconnect was resumed. */
  get resumeOutcomes(): string[] {
    return this.receivedOf('session.updated').flatMap(({ session }) => session.resume?.resumed ?? []);
  }
}
