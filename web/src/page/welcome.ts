/** Welcome screen of an empty conversation: what this is, and things to do that show it. */

import { demoToken } from './demo_mode.js';
import { DEMONSTRATIONS, type Demonstration } from './demonstrations.js';
import { copyText, flashCheckMark, h, iconButton } from './dom.js';

const KILL_COMMAND = 'pkill -KILL -f "m continuo.engine"';

export function createWelcome(play: (demonstration: Demonstration) => void): HTMLElement {
  return h(
    'section',
    { class: 'welcome', 'aria-labelledby': 'welcome-title' },
    h('h2', { id: 'welcome-title' }, 'Conversations that are never lost, and never read twice'),
    h(
      'p',
      { class: 'lead' },
      'Continuo serves language models and keeps the KV cache of each conversation: it reads only what is new, ' +
        'while you type it, and goes on after a reload, a lost connection or a dead engine.',
    ),
    h('h3', {}, 'Try what only this server does, or type a message below'),
    h('ul', { class: 'demonstrations' }, ...DEMONSTRATIONS.map((one) => h('li', {}, card(one, play)))),
  );
}

function card(demonstration: Demonstration, play: (demonstration: Demonstration) => void): HTMLElement {
  const { name, title, summary } = demonstration;
  const text = [h('strong', {}, title), h('span', {}, summary)];
  if (name === 'kill' && demoToken.get() === '') {
    const summary = 'Run this on the server while it answers. The sentence is finished all the same.';
    return h('div', { class: 'card' }, h('strong', {}, title), h('span', {}, summary), killCommand());
  }
  return h(
    'button',
    {
      type: 'button',
      class: 'card',
      onclick: () => {
        play(demonstration);
      },
    },
    ...text,
  );
}

/** How to kill the engine without a button, which only `continuo serve --demo` has. */
function killCommand(): HTMLElement {
  const copy = iconButton('copy', 'Copy the command', () => {
    void copyText(KILL_COMMAND).then(() => {
      flashCheckMark(copy);
    });
  });
  return h('span', { class: 'command' }, h('code', {}, KILL_COMMAND), copy);
}
