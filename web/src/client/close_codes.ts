/** Close codes of WebSockets: what they mean here, and whether to come back. */

const CLOSE_CODES: Record<number, [words: string, recoverable: boolean]> = {
  1000: ['the session is finished', false],
  1001: ['the server goes away; another may take over', true],
  1003: ['the server does not take binary frames', false],
  1005: ['the connection was closed without a reason', true],
  1006: ['the connection was lost', true],
  1007: ['the server could not read what was sent', false],
  1008: ['the server refused', false],
  1009: ['a message was too large', false],
  1011: ['the server had a fault', true],
  1012: ['the server restarts', true],
  1013: ['the server is overloaded', true],
  1015: ['the secure connection could not be made', true],
  4001: ['another connection took this session over', false],
  4003: ['the session was ended by the operator', false],
};

export interface Closing {
  code: number;
  /** In plain words. */
  reason: string;
  recoverable: boolean;
}

/** An unknown code below 4000 is worth another try; 4xxx never is. */
export function closing(code: number, serverReason = ''): Closing {
  const [defaultReason, recoverable] = CLOSE_CODES[code] ?? ['the connection was closed', code < 3000];
  return { code, reason: serverReason || defaultReason, recoverable };
}
