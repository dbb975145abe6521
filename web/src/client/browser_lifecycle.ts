/** What a browser knows about its network and its sleep, told to a client. */

import type { RealtimeClient } from './client.js';
import type { Unsubscribe } from './observable.js';

const TICK_MS = 2000;
/** A timer that is so late has slept, or was throttled in a hidden page. */
const SUSPENDED_MS = 10_000;

/** Follows the browser until it is told not to. */
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
