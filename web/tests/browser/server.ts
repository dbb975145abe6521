/** `continuo serve` with the bundled model, as a process that can be killed and started again. */

import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const ROOT = new URL('../../..', import.meta.url).pathname;
const PYTHON = process.env.CONTINUO_PYTHON ?? `${ROOT}.venv/bin/python`;

export class Server {
  readonly port: number;
  /** What survives a kill. */
  readonly #folder = mkdtempSync(join(tmpdir(), 'continuo-'));
  readonly #options: string[];
  readonly #env: Record<string, string>;
  #process: ChildProcess | null = null;

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

  /** Resolves when it listens. */
  async start(): Promise<void> {
    const words = ['-m', 'realtime.server.cli', 'serve', '--port', String(this.port)];
    const given = ['--threads', '1', '--store', `sqlite:///${this.#folder}/store.db`];
    const child = spawn(PYTHON, [...words, ...given, ...this.#options], {
      cwd: ROOT,
      env: { ...process.env, ...this.#env },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#process = child;
    await new Promise<void>((resolve, reject) => {
      let said = '';
      child.stdout.on('data', (data: Buffer) => {
        said += data.toString();
        if (said.includes('Listening on')) resolve();
      });
      child.once('exit', (code) => {
        reject(new Error(`the server ended with status ${code}`));
      });
    });
  }

  /** As a crash would. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  async stop(): Promise<void> {
    await this.#end('SIGTERM');
    rmSync(this.#folder, { recursive: true });
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    this.#process = null;
    if (child?.exitCode !== null) return; // none, or gone already
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill(signal);
    await gone;
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as AddressInfo;
      probe.close(() => {
        resolve(port);
      });
    });
  });
}
