/** What a browser knows about its network and its sleep, told to a client. */

import type { RealtimeClient } from './client.js';
import type { Unsubscribe } from './observable.js';

const TICK_MS = 2000;
/** A timer that is so late has slept, or was throttled in a hidden page. */
const SLEPT_MS = 10_000;

/** Follows the browser until it is told not to. */
export function followBrowser(client: RealtimeClient): Unsubscribe {
  const stop = new AbortController();
  const { signal } = stop;
  const awake = (): void => {
    client.retry();
    client.check();
  };
  addEventListener('online', awake, { signal });
  addEventListener('pageshow', awake, { signal });
  document.addEventListener('resume', awake, { signal });
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
      if (document.visibilityState === 'visible') awake();
    },
    { signal },
  );
  let last = Date.now();
  const ticking = setInterval(() => {
    const now = Date.now();
    if (now - last > SLEPT_MS) awake();
    last = now;
  }, TICK_MS);
  return () => {
    stop.abort();
    clearInterval(ticking);
  };
}
