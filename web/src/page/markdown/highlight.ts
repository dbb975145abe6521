/** Highlighting of code in the languages that models write most; loaded when code is shown. */

import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import csharp from 'highlight.js/lib/languages/csharp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import dockerfile from 'highlight.js/lib/languages/dockerfile';
import go from 'highlight.js/lib/languages/go';
import ini from 'highlight.js/lib/languages/ini';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import kotlin from 'highlight.js/lib/languages/kotlin';
import php from 'highlight.js/lib/languages/php';
import python from 'highlight.js/lib/languages/python';
import ruby from 'highlight.js/lib/languages/ruby';
import rust from 'highlight.js/lib/languages/rust';
import shell from 'highlight.js/lib/languages/shell';
import sql from 'highlight.js/lib/languages/sql';
import swift from 'highlight.js/lib/languages/swift';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';
import { createLowlight } from 'lowlight';
import { textNodes } from '../bounded_text.js';
import { h } from '../dom.js';

const lowlight = createLowlight({
  bash,
  c,
  cpp,
  csharp,
  css,
  diff,
  dockerfile,
  go,
  ini,
  java,
  javascript,
  json,
  kotlin,
  php,
  python,
  ruby,
  rust,
  shell,
  sql,
  swift,
  typescript,
  xml,
  yaml,
});

type HighlightNode = ReturnType<typeof lowlight.highlight>['children'][number];

/** Returns the code with an element for each token that has a color, or null if the language is unknown. */
export function highlight(code: string, language: string): DocumentFragment | null {
  const name = language.toLowerCase();
  if (!lowlight.registered(name)) return null;
  const fragment = document.createDocumentFragment();
  fragment.append(...lowlight.highlight(name, code).children.flatMap(toNodes));
  return fragment;
}

function toNodes(node: HighlightNode): (Node | string)[] {
  if (node.type === 'text') return textNodes(node.value);
  if (node.type !== 'element') return [];
  const names = node.properties.className;
  const className = Array.isArray(names) ? names.join(' ') : '';
  const element = h('span', { class: className });
  element.append(...node.children.flatMap(toNodes));
  return [element];
}
