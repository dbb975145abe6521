/** Welcome screen of an empty conversation: what this is, and things to do that show it. */

import { demoToken } from './demo_mode.js';
import { DEMONSTRATIONS, type Demonstration } from './demonstrations.js';
import { h } from './dom.js';

export function createWelcome(play: (demonstration: Demonstration) => void): HTMLElement {
  return h(
    'section',
    { class: 'welcome', 'aria-labelledby': 'welcome-title' },
    h('h2', { id: 'welcome-title' }, 'A chat that never loses its place'),
    h(
      'p',
      { class: 'lead' },
      'Chat with a language model on a server that keeps each conversation ready to go on: it reads your words ' +
        'while you type them, never starts again from the beginning, and finishes its sentence after a reload, ' +
        'a lost connection or a crash.',
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
