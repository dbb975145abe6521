/** All that goes over the sockets of a page, in order, whichever connection it was. */

import type { Page } from 'playwright-core';
import type { ClientEvent, ServerEvent, ServerEventOf, ServerEventType } from '../../src/client/index.js';

export class Wire {
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

  asked(type: ClientEvent['type']): ClientEvent[] {
    return this.sent.filter((event) => event.type === type);
  }

  heard<T extends ServerEventType>(type: T): ServerEventOf<T>[] {
    return this.received.filter((event): event is ServerEventOf<T> => event.type === type);
  }

  /** How each connection after the first was taken up. */
  get resumed(): string[] {
    return this.heard('session.updated').flatMap(({ session }) => session.resume?.resumed ?? []);
  }
}
