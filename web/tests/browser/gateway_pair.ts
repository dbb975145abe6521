/** Two gateways that share one engine and a Redis store, behind a proxy that connects to the first one
 * available. */

import { freePort, Subprocess } from './subprocess.js';
import { TcpProxy } from './tcp_proxy.js';

interface Gateway {
  port: number;
  process: Subprocess;
}

export class GatewayPair {
  readonly #dependencies: Subprocess[];
  readonly #gateways: Gateway[];
  readonly #proxy: TcpProxy;

  private constructor(dependencies: Subprocess[], gateways: Gateway[], proxy: TcpProxy) {
    this.#dependencies = dependencies;
    this.#gateways = gateways;
    this.#proxy = proxy;
  }

  static async start(): Promise<GatewayPair> {
    const [redis, engine, one, two] = await Promise.all([
      freePort(),
      freePort(),
      freePort(),
      freePort(),
    ]);
    const store = ['--store', `redis://127.0.0.1:${redis}`];
    const options = ['--save', '', '--appendonly', 'no', '--bind', '127.0.0.1'];
    const dependencies = [
      new Subprocess(['redis-server', '--port', String(redis), ...options], 'Ready to accept'),
      Subprocess.continuo(
        ['engine', '--listen', `127.0.0.1:${engine}`, '--threads', '1', ...store],
        'Ready after',
      ),
    ];
    const gateways = [one, two].map((port) => ({
      port,
      process: Subprocess.continuo(['gateway', '--port', String(port), ...store], 'Listening on'),
    }));
    for (const process of dependencies) await process.start();
    await Promise.all(gateways.map(({ process }) => process.start()));
    const proxy = await TcpProxy.listen(() => gateways.map(({ port }) => port));
    return new GatewayPair(dependencies, gateways, proxy);
  }

  get url(): string {
    return this.#proxy.url;
  }

  /** Kill the gateway in use with SIGKILL; it is not restarted. */
  async kill(): Promise<void> {
    await this.#gateways.shift()?.process.kill();
  }

  async stop(): Promise<void> {
    this.#proxy.close();
    await Promise.all(this.#gateways.map(({ process }) => process.stop()));
    for (const process of this.#dependencies.toReversed()) await process.stop();
  }
}
