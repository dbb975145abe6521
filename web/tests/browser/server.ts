/** `continuo serve` with the bundled model, computed by the server at CONTINUO_ENGINE_URL if it is set, and a store
 * that survives a kill. */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort, Subprocess } from './subprocess.js';

export class Server {
  readonly port: number;
  /** Folder of the store. */
  readonly #folder = mkdtempSync(join(tmpdir(), 'continuo-'));
  readonly #env: Record<string, string>;
  #options: string[];
  #process: Subprocess | null = null;

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

  /** Address of the page as the server has printed it, with the token of a demonstration. */
  get printedUrl(): string {
    return /Open +(\S+)/.exec(this.#process?.output ?? '')?.[1] ?? '';
  }

  get socketUrl(): string {
    return `ws://127.0.0.1:${this.port}/v1/realtime`;
  }

  /** Start the server, optionally with other options, and wait until it accepts connections. */
  async start(options = this.#options): Promise<void> {
    this.#options = options;
    const args = ['serve', '--port', String(this.port), '--store', `sqlite:///${this.#folder}/store.db`];
    if (process.env.CONTINUO_ENGINE_URL === undefined) args.push('--threads', '1'); // of our own engine alone
    this.#process = Subprocess.continuo([...args, ...options], 'Listening on', this.#env);
    await this.#process.start();
  }

  /** Kill the server with SIGKILL. */
  async kill(): Promise<void> {
    await this.#process?.kill();
  }

  /** Kill the engine process, which the server then restarts. */
  killEngine(): void {
    this.#process?.killChildren();
  }

  async stop(): Promise<void> {
    await this.#process?.stop();
    rmSync(this.#folder, { recursive: true });
  }
}
