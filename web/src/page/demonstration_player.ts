/** Plays demonstrations, one at a time, and shows their steps and results in a bar. */

import type { ConversationController } from './conversation_controller.js';
import { DemonstrationBar } from './demonstration_bar.js';
import { DemonstrationRun, type Stage } from './demonstration_run.js';
import type { Demonstration, DemonstrationResult } from './demonstrations.js';

export class DemonstrationPlayer {
  readonly #stage: Stage;
  readonly #bar: DemonstrationBar;
  #run: DemonstrationRun | null = null;
  #title = '';

  constructor(stage: Stage) {
    this.#stage = stage;
    this.#bar = new DemonstrationBar({
      stop: () => {
        this.#finish({ text: 'Stopped. Go on as you like: type a message.' });
      },
      close: () => {
        this.stop();
      },
      more: () => {
        this.stop();
        stage.startConversation();
      },
    });
  }

  get element(): HTMLElement {
    return this.#bar.element;
  }

  /** Play a demonstration in the open conversation. */
  play({ title, play }: Demonstration): void {
    this.stop();
    this.#title = title;
    const run = new DemonstrationRun(this.#stage, title, (content) => {
      this.#bar.show(content, true);
    });
    this.#run = run;
    const finish = (result: DemonstrationResult): void => {
      if (run === this.#run) this.#finish(result);
    };
    play(run).then(finish, (error: unknown) => {
      finish({ text: error instanceof Error ? error.message : String(error) });
    });
  }

  /** Stop the demonstration, if one is played, and hide the bar. */
  stop(): void {
    this.#end();
    this.#bar.hide();
  }

  /** The user has typed. */
  onUserInput(): void {
    if (this.#run !== null && !this.#run.acceptsInput) {
      this.#finish({ text: 'Stopped, because you typed. Go on as you like.' });
    }
  }

  /** The user has sent a message. */
  onUserSend(): void {
    if (this.#run === null) this.#bar.hide();
  }

  onConversationOpened(conversation: ConversationController): void {
    if (!this.#run?.continuesIn(conversation)) this.stop();
  }

  #finish(result: DemonstrationResult): void {
    this.#end();
    this.#bar.show({ title: this.#title, ...result }, false);
  }

  #end(): void {
    const run = this.#run;
    this.#run = null;
    run?.end();
  }
}
