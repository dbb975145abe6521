/** Two gateways before one engine, their conversations in Redis, and one address that leads to
 * whichever of them is there. */

import { Cable } from './tcp_proxy.js';
import { Command, freePort } from './subprocess.js';

interface Gateway {
  port: number;
  command: Command;
}

export class Gateways {
  readonly #others: Command[];
  readonly #gateways: Gateway[];
  readonly #cable: Cable;

  private constructor(others: Command[], gateways: Gateway[], cable: Cable) {
    this.#others = others;
    this.#gateways = gateways;
    this.#cable = cable;
  }

  static async start(): Promise<Gateways> {
    const [redis, engine, one, two] = await Promise.all([
      freePort(),
      freePort(),
      freePort(),
      freePort(),
    ]);
    const store = ['--store', `redis://127.0.0.1:${redis}`];
    const options = ['--save', '', '--appendonly', 'no', '--bind', '127.0.0.1'];
    const others = [
      new Command(['redis-server', '--port', String(redis), ...options], 'Ready to accept'),
      Command.continuo(
        ['engine', '--listen', `127.0.0.1:${engine}`, '--threads', '1', ...store],
        'Ready after',
      ),
    ];
    const gateways = [one, two].map((port) => ({
      port,
      command: Command.continuo(['gateway', '--port', String(port), ...store], 'Listening on'),
    }));
    for (const command of others) await command.start();
    await Promise.all(gateways.map(({ command }) => command.start()));
    const cable = await Cable.lay(() => gateways.map(({ port }) => port));
    return new Gateways(others, gateways, cable);
  }

  get url(): string {
    return this.#cable.url;
  }

  /** Ends the gateway that is in use, as a crash would; it does not come back. */
  async kill(): Promise<void> {
    await this.#gateways.shift()?.command.kill();
  }

  async stop(): Promise<void> {
    this.#cable.close();
    await Promise.all(this.#gateways.map(({ command }) => command.stop()));
    for (const command of this.#others.toReversed()) await command.stop();
  }
}
