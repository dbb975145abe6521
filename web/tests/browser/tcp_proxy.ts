/** An address that leads to a server, and what can happen on the way. */

import { connect, createServer, type AddressInfo, type Server as Listener, type Socket } from 'node:net';

export class Cable {
  readonly #entry: Listener;
  readonly #lines = new Set<[Socket, Socket]>();

  private constructor(ports: () => number[]) {
    this.#entry = createServer((socket) => {
      socket.on('error', () => undefined); // a close follows
      this.#lead(socket, ports());
    });
  }

  /** `ports`: each connection goes to the first that takes it. */
  static async lay(ports: () => number[]): Promise<Cable> {
    const cable = new Cable(ports);
    await new Promise<void>((resolve) => cable.#entry.listen(0, '127.0.0.1', resolve));
    return cable;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#entry.address() as AddressInfo).port}/`;
  }

  /** Nothing comes through the connections there are any more, and nobody is told. */
  fallSilent(): void {
    for (const [here, there] of this.#lines) {
      here.unpipe().pause();
      there.unpipe().pause();
    }
  }

  close(): void {
    this.#entry.close();
    for (const line of this.#lines) for (const end of line) end.destroy();
  }

  #lead(socket: Socket, [port, ...others]: number[]): void {
    if (port === undefined) {
      socket.destroy();
      return;
    }
    const there = connect(port, '127.0.0.1');
    const refused = (): void => {
      this.#lead(socket, others);
    };
    there.once('error', refused);
    there.once('connect', () => {
      there.off('error', refused);
      const line: [Socket, Socket] = [socket, there];
      this.#lines.add(line);
      const part = (): void => {
        this.#lines.delete(line);
        there.destroy();
        socket.destroy();
      };
      for (const end of line) end.on('error', part).on('close', part);
      there.pipe(socket).pipe(there);
    });
  }
}
