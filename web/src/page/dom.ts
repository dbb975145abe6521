/** DOM helpers: element creation, icons, clipboard, and redraws per frame. */

type Child = Node | string | null | undefined | false;
type Props = Record<string, string | boolean | ((event: never) => void) | null | undefined>;

/** Create an element. Props named `on…` are event listeners; boolean props set or omit an attribute. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === 'function') {
      element.addEventListener(name.slice(2), value as EventListener);
    } else if (typeof value === 'string') element.setAttribute(name, value);
    else if (value) element.setAttribute(name, '');
  }
  element.append(...children.filter((child) => child instanceof Node || typeof child === 'string'));
  return element;
}

const SVG_NAMESPACE = 'http://www.w3.org/2000/svg';

const ICONS = {
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  edit: 'M4 20h4L19 9l-4-4L4 16z',
  refresh: 'M20 12a8 8 0 1 1-2.5-5.8M20 4v4h-4',
  branch: 'M7 4v16M7 14c0-5 10-3 10-8M17 6V4',
  copy: 'M9 9h10v11H9zM15 9V4H5v11h4',
  check: 'M5 13l4 4L19 7',
  close: 'M6 6l12 12M18 6L6 18',
  image: 'M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9h1',
  code: 'M8 7l-5 5 5 5M16 7l5 5-5 5M13.5 5l-3 14',
  settings: 'M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4',
  panel: 'M4 5h16v14H4zM14 5v14',
  search: 'M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14M16 16l4 4',
  previous: 'M15 5l-7 7 7 7',
  next: 'M9 5l7 7-7 7',
  more: 'M5 12h.01M12 12h.01M19 12h.01',
  clock: 'M12 4a8 8 0 1 1 0 16 8 8 0 0 1 0-16M12 8v4l3 2',
  import: 'M12 4v11M7 10l5 5 5-5M5 20h14',
  list: 'M4 6h16M4 12h16M4 18h10',
  mic: 'M12 4a3 3 0 0 1 3 3v4a3 3 0 0 1-6 0V7a3 3 0 0 1 3-3M5 11a7 7 0 0 0 14 0M12 18v3',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  server: 'M4 5h16v6H4zM4 13h16v6H4zM8 8h1M8 16h1',
  sun: 'M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2',
} as const;

export type IconName = keyof typeof ICONS;

export function icon(name: IconName): SVGElement {
  const svg = document.createElementNS(SVG_NAMESPACE, 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  svg.classList.add('icon');
  const path = document.createElementNS(SVG_NAMESPACE, 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

/** Create an icon button; its label, which contains the word beside the icon, is the accessible name and
 * the tooltip. */
export function iconButton(
  name: IconName,
  label: string,
  onClick: () => void,
  word?: string,
): HTMLButtonElement {
  return h(
    'button',
    { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick: onClick },
    icon(name),
    word !== undefined && h('span', { class: 'word' }, word),
  );
}

const CHECK_MARK_MS = 1200;

/** Show a check mark for a moment: in place of the button's icon, or after its text. */
export function flashCheckMark(button: HTMLElement): void {
  if (button.classList.contains('done')) return;
  const before = button.querySelector('.icon');
  const checkMark = icon('check');
  button.classList.add('done');
  if (before) before.replaceWith(checkMark);
  else button.append(checkMark);
  setTimeout(() => {
    button.classList.remove('done');
    if (before) checkMark.replaceWith(before);
    else checkMark.remove();
  }, CHECK_MARK_MS);
}

/** Copy a text, also over plain HTTP, where browsers provide no clipboard API. */
export async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h('textarea', { 'aria-hidden': 'true', class: 'unseen' });
    field.value = text;
    document.body.append(field);
    field.select();
    // eslint-disable-next-line @typescript-eslint/no-deprecated
    document.execCommand('copy');
    field.remove();
  }
}

/** Returns a function that schedules `draw` for the next frame, once per frame. */
export function throttleToFrame(draw: () => void): () => void {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    // A hidden page has no frames; it draws when it becomes visible.
    requestAnimationFrame(() => {
      scheduled = false;
      draw();
    });
  };
}
