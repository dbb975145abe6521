/** `continuo serve` with the bundled model, and a store that outlives it. */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command, freePort } from './subprocess.js';

export class Server {
  readonly port: number;
  /** What survives a kill. */
  readonly #folder = mkdtempSync(join(tmpdir(), 'continuo-'));
  readonly #env: Record<string, string>;
  #options: string[];
  #command: Command | null = null;

  private constructor(port: number, options: string[], env: Record<string, string>) {
    this.port = port;
    this.#options = options;
    this.#env = env;
  }

  static async start(options: string[] = [], env: Record<string, string> = {}): Promise<Server> {
    const server = new Server(await freePort(), options, env);
    await server.start();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}/`;
  }

  get socketUrl(): string {
    return `ws://127.0.0.1:${this.port}/v1/realtime`;
  }

  /** Resolves when it listens. `options`: others than before. */
  async start(options = this.#options): Promise<void> {
    this.#options = options;
    const words = ['serve', '--port', String(this.port), '--threads', '1'];
    const store = ['--store', `sqlite:///${this.#folder}/store.db`];
    this.#command = Command.continuo([...words, ...store, ...options], 'Listening on', this.#env);
    await this.#command.start();
  }

  /** As a crash would. */
  async kill(): Promise<void> {
    await this.#command?.kill();
  }

  /** The process with the model; the server starts another one. */
  killEngine(): void {
    this.#command?.killChildren();
  }

  async stop(): Promise<void> {
    await this.#command?.stop();
    rmSync(this.#folder, { recursive: true });
  }
}
