/** WebSocket close codes: their meaning, and whether the client reconnects. */

/** Reason of a lost connection while the browser has no network. */
export const OFFLINE_REASON = 'this device is offline';

const CONNECTION_LOST = 1006;
const CLOSE_CODES: Record<number, [reason: string, recoverable: boolean]> = {
  1000: ['the session is finished', false],
  1001: ['the server is going away; another one may take over', true],
  1003: ['the server does not accept binary frames', false],
  1005: ['the connection was closed without a reason', true],
  [CONNECTION_LOST]: ['the connection was lost', true],
  1007: ['the server received malformed data', false],
  1008: ['the server refused the connection', false],
  1009: ['a message was too large', false],
  1011: ['the server had an internal error', true],
  1012: ['the server is restarting', true],
  1013: ['the server is overloaded', true],
  1015: ['the TLS handshake failed', true],
  4001: ['another connection took over this session', false],
  4003: ['the session was ended by the operator', false],
  4004: ['the key was revoked or has expired', false],
};

export interface CloseInfo {
  code: number;
  /** Human-readable. */
  reason: string;
  recoverable: boolean;
}

/** Look up a close code. Unknown codes below 3000 are recoverable; unknown codes from 3000 on are not. */
export function describeCloseCode(code: number, serverReason = ''): CloseInfo {
  const [defaultReason, recoverable] = CLOSE_CODES[code] ?? ['the connection was closed', code < 3000];
  const reason = code === CONNECTION_LOST && isOffline() ? OFFLINE_REASON : serverReason || defaultReason;
  return { code, reason, recoverable };
}

/** Whether the browser says that there is no network. Not known outside browsers. */
function isOffline(): boolean {
  return (globalThis as { navigator?: { onLine?: boolean } }).navigator?.onLine === false;
}
