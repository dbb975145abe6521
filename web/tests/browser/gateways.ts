/** Two gateways before one engine, their conversations in Redis, and one address that leads to
 * whichever of them is there. */

import { connect, createServer, type AddressInfo, type Server as Listener, type Socket } from 'node:net';
import { Command, freePort } from './command.js';

interface Gateway {
  port: number;
  command: Command;
}

export class Gateways {
  readonly #entry: Listener;
  readonly #others: Command[];
  readonly #gateways: Gateway[];

  private constructor(others: Command[], ports: number[], options: string[]) {
    this.#others = others;
    this.#gateways = ports.map((port) => ({
      port,
      command: Command.continuo(['gateway', '--port', String(port), ...options], 'Listening on'),
    }));
    this.#entry = createServer((socket) => {
      socket.on('error', () => undefined); // a close follows
      this.#lead(socket, this.#gateways);
    });
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
    const all = new Gateways(others, [one, two], store);
    for (const command of others) await command.start();
    await Promise.all(all.#gateways.map(({ command }) => command.start()));
    await new Promise<void>((resolve) => all.#entry.listen(0, '127.0.0.1', resolve));
    return all;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#entry.address() as AddressInfo).port}/`;
  }

  /** Ends the gateway that is in use, as a crash would; it does not come back. */
  async kill(): Promise<void> {
    await this.#gateways.shift()?.command.kill();
  }

  async stop(): Promise<void> {
    this.#entry.close();
    await Promise.all(this.#gateways.map(({ command }) => command.stop()));
    for (const command of this.#others.toReversed()) await command.stop();
  }

  /** To the first that takes it. */
  #lead(socket: Socket, [gateway, ...others]: Gateway[]): void {
    if (!gateway) {
      socket.destroy();
      return;
    }
    const there = connect(gateway.port, '127.0.0.1');
    const refused = (): void => {
      this.#lead(socket, others);
    };
    there.once('error', refused);
    there.once('connect', () => {
      there.off('error', refused);
      const part = (): void => {
        there.destroy();
        socket.destroy();
      };
      for (const end of [there, socket]) end.on('error', part).on('close', part);
      there.pipe(socket).pipe(there);
    });
  }
}
