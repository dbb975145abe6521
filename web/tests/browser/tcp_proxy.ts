/** TCP proxy in front of servers, whose connections can be stalled. */

import { connect, createServer, type AddressInfo, type Server as Listener, type Socket } from 'node:net';

export class TcpProxy {
  readonly #server: Listener;
  readonly #connections = new Set<[Socket, Socket]>();

  private constructor(ports: () => number[]) {
    this.#server = createServer((socket) => {
      socket.on('error', () => undefined); // a close event follows
      this.#forward(socket, ports());
    });
  }

  /** Start a proxy that forwards each connection to the first of `ports` that accepts it. */
  static async listen(ports: () => number[]): Promise<TcpProxy> {
    const proxy = new TcpProxy(ports);
    await new Promise<void>((resolve) => proxy.#server.listen(0, '127.0.0.1', resolve));
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/`;
  }

  /** Stop forwarding on all open connections, without closing them. */
  stall(): void {
    for (const [client, upstream] of this.#connections) {
      client.unpipe().pause();
      upstream.unpipe().pause();
    }
  }

  close(): void {
    this.#server.close();
    for (const connection of this.#connections) for (const side of connection) side.destroy();
  }

  #forward(socket: Socket, [port, ...others]: number[]): void {
    if (port === undefined) {
      socket.destroy();
      return;
    }
    const upstream = connect(port, '127.0.0.1');
    const tryNext = (): void => {
      this.#forward(socket, others);
    };
    upstream.once('error', tryNext);
    upstream.once('connect', () => {
      upstream.off('error', tryNext);
      const connection: [Socket, Socket] = [socket, upstream];
      this.#connections.add(connection);
      const closeBoth = (): void => {
        this.#connections.delete(connection);
        upstream.destroy();
        socket.destroy();
      };
      for (const side of connection) side.on('error', closeBoth).on('close', closeBoth);
      upstream.pipe(socket).pipe(upstream);
    });
  }
}
