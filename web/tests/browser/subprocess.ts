/** A program as a process that can be killed and started again. */

import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';

const ROOT = new URL('../../..', import.meta.url).pathname;
const PYTHON = process.env.CONTINUO_PYTHON ?? `${ROOT}.venv/bin/python`;

export class Command {
  readonly #words: string[];
  readonly #ready: string;
  readonly #env: Record<string, string>;
  #process: ChildProcess | null = null;

  /** `ready`: what it prints when it can be used. */
  constructor(words: string[], ready: string, env: Record<string, string> = {}) {
    this.#words = words;
    this.#ready = ready;
    this.#env = env;
  }

  /** `continuo WORDS`, whose model can be watched. */
  static continuo(words: string[], ready: string, env: Record<string, string> = {}): Command {
    return Command.python('tests.browser.paced', words, ready, env);
  }

  static python(
    module: string,
    words: string[],
    ready: string,
    env: Record<string, string> = {},
  ): Command {
    return new Command([PYTHON, '-m', module, ...words], ready, env);
  }

  /** Resolves when it is ready. */
  async start(): Promise<void> {
    const [program = '', ...words] = this.#words;
    const child = spawn(program, words, {
      cwd: ROOT,
      env: { ...process.env, ...this.#env },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#process = child;
    await new Promise<void>((resolve, reject) => {
      let said = '';
      child.stdout.on('data', (data: Buffer) => {
        said += data.toString();
        if (said.includes(this.#ready)) resolve();
      });
      child.once('error', reject);
      child.once('exit', (code) => {
        reject(new Error(`${program} ended with status ${code}: ${said}`));
      });
    });
  }

  /** As a crash would. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  async stop(): Promise<void> {
    await this.#end('SIGTERM');
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  /** Kills the processes it has started itself, as crashes would. */
  killChildren(): void {
    const pid = String(this.#process?.pid ?? '');
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ');
    for (const child of children) process.kill(Number(child), 'SIGKILL');
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

export function freePort(): Promise<number> {
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
