/** Welcome screen of an empty conversation: what this is, and things to do that show it. */

import { demoToken } from './demo_mode.js';
import { DEMONSTRATIONS, type Demonstration } from './demonstrations.js';
import { h } from './dom.js';

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
    h('ul', { class: 'demonstrations' }, ...playable().map((one) => h('li', {}, card(one, play)))),
  );
}

/** Only a page with the token of `continuo serve --demo` may kill the engine. */
function playable(): Demonstration[] {
  return DEMONSTRATIONS.filter(({ name }) => name !== 'kill' || demoToken.get() !== '');
}

function card(demonstration: Demonstration, play: (demonstration: Demonstration) => void): HTMLElement {
  return h(
    'button',
    {
      type: 'button',
      class: 'card',
      onclick: () => {
        play(demonstration);
      },
    },
    h('strong', {}, demonstration.title),
    h('span', {}, demonstration.summary),
  );
}
