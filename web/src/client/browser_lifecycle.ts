/** Browser network and lifecycle events, forwarded to a client so that it reconnects at once. */

import type { RealtimeClient } from './client.js';
import type { Unsubscribe } from './observable.js';

const TICK_MS = 2000;
/** A timer this late means that the device was suspended or the hidden page throttled. */
const SUSPENDED_MS = 10_000;

/** Reconnect on network and lifecycle events until the returned function is called. */
export function followBrowser(client: RealtimeClient): Unsubscribe {
  const stop = new AbortController();
  const { signal } = stop;
  const reconnect = (): void => {
    client.retry();
    client.check();
  };
  addEventListener('online', reconnect, { signal });
  addEventListener('pageshow', reconnect, { signal });
  document.addEventListener('resume', reconnect, { signal });
  addEventListener(
    'offline',
    () => {
      client.drop('this device is offline');
    },
    { signal },
  );
  document.addEventListener(
    'visibilitychange',
    () => {
      if (document.visibilityState === 'visible') reconnect();
    },
    { signal },
  );
  let lastTickAt = Date.now();
  const timer = setInterval(() => {
    const now = Date.now();
    if (now - lastTickAt > SUSPENDED_MS) reconnect();
    lastTickAt = now;
  }, TICK_MS);
  return () => {
    stop.abort();
    clearInterval(timer);
  };
}
