/** The open response streams of a client, and which events belong to which. */

import type { ServerEvent } from './events.js';
import type { Receipt } from './outbox.js';
import type { ResponseRequest, ResponseStream } from './response_stream.js';

/** A response in progress that the server no longer knows of, and its request. */
export interface LostResponse {
  id: string;
  request: ResponseRequest;
}

export class ResponseRouting {
  readonly #streams = new Set<ResponseStream>();
  /** Streams that wait for `response.created`, by the event id of their request. */
  readonly #requests = new Map<string, ResponseStream>();
  readonly #streamsByResponse = new Map<string, ResponseStream>();

  add(stream: ResponseStream): void {
    this.#streams.add(stream);
    const remove = (): void => {
      this.#streams.delete(stream);
    };
    stream.then(remove, remove);
  }

  /** Returns whether a stream reads the response `id`. */
  has(id: string): boolean {
    return this.#streamsByResponse.has(id);
  }

  /** Expect the response of `request`, before it is sent. */
  expect(stream: ResponseStream, request: ResponseRequest): void {
    this.#requests.set(request.event_id, stream);
  }

  /** Tell the stream of a request, if `receipt` is that of one, when the request is refused. */
  watch(receipt: Receipt): void {
    const stream = this.#requests.get(receipt.eventId);
    if (stream === undefined) return;
    receipt.acknowledged.catch((error: unknown) => {
      this.#requests.delete(receipt.eventId);
      stream.onRefused(error as Error);
    });
  }

  /** `acknowledgedId`: id of the client event that `event` acknowledges. */
  receive(event: ServerEvent, acknowledgedId: string | null): void {
    switch (event.type) {
      case 'response.created': {
        const { id } = event.response;
        const stream = this.#requests.get(acknowledgedId ?? '') ?? this.#streamsByResponse.get(id);
        if (stream === undefined) return;
        this.#requests.delete(acknowledgedId ?? '');
        this.#streamsByResponse.set(id, stream);
        stream.onCreated(event.response);
        break;
      }
      case 'response.output_text.delta':
        this.#streamsByResponse.get(event.response_id)?.onDelta(event.delta);
        break;
      case 'response.reasoning_text.delta':
        this.#streamsByResponse.get(event.response_id)?.onReasoning(event.delta);
        break;
      case 'response.done':
        this.#streamsByResponse.get(event.response.id)?.onDone(event.response);
        this.#streamsByResponse.delete(event.response.id);
        break;
      default:
        break;
    }
  }

  /** Expect every response in progress to be announced again. */
  expectAnnouncements(): void {
    for (const stream of this.#streams) stream.expectAnnouncement();
  }

  /** Returns the requests to send again, because the server no longer knows of their responses. */
  requestsAgain(isNewSession: boolean): LostResponse[] {
    const lost: LostResponse[] = [];
    for (const stream of this.#streams) {
      const request = stream.requestAgain(isNewSession);
      if (request === null || stream.responseId === null) continue;
      this.#requests.set(request.event_id, stream);
      lost.push({ id: stream.responseId, request });
    }
    return lost;
  }

  failAll(error: Error): void {
    for (const stream of [...this.#streams]) stream.fail(error);
  }
}
