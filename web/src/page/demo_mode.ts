/** Demo mode (`continuo serve --demo`): its token, and the kill of the engine.
 *
 * The token is in the fragment of the address that the server prints, `#demo=TOKEN`, which browsers do not
 * send. It is kept in this tab only. */

import { ApiError, fetchJson } from './api.js';

const TOKEN_STORAGE_KEY = 'continuo.demo';
const FRAGMENT_PREFIX = '#demo=';

export const demoToken = {
  get: (): string => sessionStorage.getItem(TOKEN_STORAGE_KEY) ?? '',

  /** Store the token of the address, and remove it from there and from the history. Returns whether there
   * was one. */
  takeFromAddress: (): boolean => {
    if (!location.hash.startsWith(FRAGMENT_PREFIX)) return false;
    sessionStorage.setItem(TOKEN_STORAGE_KEY, location.hash.slice(FRAGMENT_PREFIX.length));
    history.replaceState(null, '', location.pathname + location.search);
    return true;
  },
};

/** Kill the engine process in the middle of the next response. Returns its process id. Throws ApiError if the
 * server refuses. */
export async function killEngine(): Promise<number> {
  try {
    const killed = await fetchJson<{ pid: number }>('v1/demo/kill_engine?when=responding', {
      method: 'POST',
      headers: { 'X-Demo-Token': demoToken.get() },
    });
    return killed.pid;
  } catch (error) {
    // The token of an earlier start, or of a server that is no demonstration.
    if (error instanceof ApiError && (error.status === 403 || error.status === 404)) {
      sessionStorage.removeItem(TOKEN_STORAGE_KEY);
      throw new Error('The server has been restarted: open the address that it printed.');
    }
    throw error;
  }
}
