/** A child process that can be killed and started again. */

import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';

const ROOT = new URL('../../..', import.meta.url).pathname;
const PYTHON = process.env.CONTINUO_PYTHON ?? `${ROOT}.venv/bin/python`;

export class Subprocess {
  readonly #args: string[];
  readonly #readyText: string;
  readonly #env: Record<string, string>;
  #process: ChildProcess | null = null;
  #output = '';

  /** `readyText`: output that shows that the process is ready. */
  constructor(args: string[], readyText: string, env: Record<string, string> = {}) {
    this.#args = args;
    this.#readyText = readyText;
    this.#env = env;
  }

  /** `continuo ARGS`, with a model slowed down so that responses in progress can be observed. */
  static continuo(args: string[], readyText: string, env: Record<string, string> = {}): Subprocess {
    return Subprocess.python('tests.browser.paced', args, readyText, env);
  }

  static python(
    module: string,
    args: string[],
    readyText: string,
    env: Record<string, string> = {},
  ): Subprocess {
    return new Subprocess([PYTHON, '-m', module, ...args], readyText, env);
  }

  get pid(): number {
    return this.#process?.pid ?? 0;
  }

  /** What the process has printed since its last start. */
  get output(): string {
    return this.#output;
  }

  /** Start the process and wait until it is ready. */
  async start(): Promise<void> {
    const [program = '', ...args] = this.#args;
    const child = spawn(program, args, {
      cwd: ROOT,
      env: { ...process.env, ...this.#env },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#process = child;
    await new Promise<void>((resolve, reject) => {
      this.#output = '';
      child.stdout.on('data', (data: Buffer) => {
        this.#output += data.toString();
        if (this.#output.includes(this.#readyText)) resolve();
      });
      child.once('error', reject);
      child.once('exit', (code) => {
        reject(new Error(`${program} ended with status ${code}: ${this.#output}`));
      });
    });
  }

  /** Kill the process with SIGKILL. */
  async kill(): Promise<void> {
    await this.#terminate('SIGKILL');
  }

  async stop(): Promise<void> {
    await this.#terminate('SIGTERM');
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  /** Kill the children of the process with SIGKILL. */
  killChildren(): void {
    const pid = String(this.#process?.pid ?? '');
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ');
    for (const child of children) process.kill(Number(child), 'SIGKILL');
  }

  async #terminate(signal: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    this.#process = null;
    if (child?.exitCode !== null || child.signalCode !== null) return; // has ended
    const exited = new Promise((resolve) => child.once('exit', resolve));
    child.kill(signal);
    await exited;
  }
}

/** Ports that Linux gives neither to port 0 nor to outgoing connections, from which a server that is started
 * again would have to take its port back. Each worker of pytest-xdist has its own, as in
 * tests/support/ports.py. */
const PORTS_PER_WORKER = 1_375;
/** Chromium refuses port 10080 and several below. */
const FIRST_PORT = 10_100;
const WORKER = Number((process.env.PYTEST_XDIST_WORKER ?? 'gw0').slice('gw'.length)) % 16;
let nextPort = Math.floor(Math.random() * PORTS_PER_WORKER);

/** Return a port of 127.0.0.1 that no socket is bound to. */
export async function freePort(): Promise<number> {
  for (let n = 0; n < PORTS_PER_WORKER; n++) {
    const port = FIRST_PORT + WORKER * PORTS_PER_WORKER + (nextPort++ % PORTS_PER_WORKER);
    if (await isFree(port)) return port;
  }
  throw new Error('no port is free');
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => {
      resolve(false);
    });
    server.listen(port, '127.0.0.1', () => {
      server.close(() => {
        resolve(true);
      });
    });
  });
}
