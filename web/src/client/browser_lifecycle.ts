/** Browser network and lifecycle events after which a client reconnects at once. */

import type { RealtimeClient } from './client.js';
import { OFFLINE_REASON } from './close_codes.js';
import type { Unsubscribe } from './observable.js';

const TICK_MS = 2000;
/** A timer this late means that the device was suspended or the hidden page throttled. */
const SUSPENDED_MS = 10_000;

/** Reconnect `client` on network and lifecycle events, until the returned function is called. */
export function reconnectOnBrowserEvents(client: RealtimeClient): Unsubscribe {
  const listeners = new AbortController();
  const { signal } = listeners;
  const reconnectIfDown = (): void => {
    client.retryNow();
    client.checkLiveness();
  };
  addEventListener('online', reconnectIfDown, { signal });
  addEventListener('pageshow', reconnectIfDown, { signal });
  document.addEventListener('resume', reconnectIfDown, { signal });
  addEventListener(
    'offline',
    () => {
      client.reconnect(OFFLINE_REASON);
    },
    { signal },
  );
  document.addEventListener(
    'visibilitychange',
    () => {
      if (document.visibilityState === 'visible') reconnectIfDown();
    },
    { signal },
  );
  let lastTickAt = Date.now();
  const timer = setInterval(() => {
    const now = Date.now();
    if (now - lastTickAt > SUSPENDED_MS) reconnectIfDown();
    lastTickAt = now;
  }, TICK_MS);
  return () => {
    listeners.abort();
    clearInterval(timer);
  };
}
