/**
 * Typesetting of TeX as MathML; loaded when there is a formula.
 *
 * The typesetter's tree is copied to elements of the kinds and with the attributes named here. It cannot
 * load anything or set a style that reaches beyond the formula, and a formula too large to lay out is none.
 */

import temml from 'temml';
import 'temml/dist/Temml-Local.css';
import { h } from '../dom.js';

const MATHML = 'http://www.w3.org/1998/Math/MathML';
const SOURCE_MAX_CHARS = 10_000;
const ELEMENTS_MAX = 5000;
const DEPTH_MAX = 60;
/** Largest length that a formula may ask for, in em and pt. */
const LENGTH_MAX: [number, number] = [50, 600];

const TAG = /^(math|semantics|none|m[a-z]+)$/;
const ATTRIBUTES = new Set(
  (
    'accent columnalign depth display displaystyle fence form height largeop linethickness lspace ' +
    'mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowspacing rspace ' +
    'scriptlevel separator stretchy symmetric voffset width'
  ).split(' '),
);
const STYLE = /^(color|display|fontWeight|height|justifyContent|mathDepth|textAlign|width|(border|padding|margin)\w*)$/;
const STYLE_VALUE = /^[\w#.,% -]*$/;

/** Node of the typesetter's tree. */
interface TreeNode {
  type?: string;
  text?: string;
  attributes?: Record<string, unknown>;
  style?: Record<string, string>;
  classes?: string[];
  children?: TreeNode[];
}

/** Formulas that were typeset; those of a growing paragraph are drawn many times. */
const cache = new Map<string, Node | null>();
const CACHE_SIZE = 200;

/** Returns the formula, or null if it is not valid TeX. */
export function typeset(source: string, isDisplayed: boolean): Node | null {
  const key = `${String(isDisplayed)}${source}`;
  let formula = cache.get(key);
  if (formula === undefined) {
    formula = create(source, isDisplayed);
    if (cache.size >= CACHE_SIZE) cache.clear();
    cache.set(key, formula);
  }
  return formula?.cloneNode(true) ?? null;
}

function create(source: string, isDisplayed: boolean): Node | null {
  if (source.length > SOURCE_MAX_CHARS) return null;
  try {
    const options = { displayMode: isDisplayed, throwOnError: true, maxSize: LENGTH_MAX };
    const tree = temml.__renderToMathMLTree(source, options) as TreeNode;
    return new TreeCopy().copy(tree, 0);
  } catch {
    return null; // not valid, too large, or nested so deeply that the stack overflows
  }
}

class TreeCopy {
  #elements = 0;

  copy(node: TreeNode, depth: number): Node {
    if (node.text !== undefined) return document.createTextNode(node.text);
    const isFragment = node.type === undefined && !node.classes?.length;
    const element = isFragment ? document.createDocumentFragment() : this.#element(node, depth);
    for (const child of node.children ?? []) element.append(this.copy(child, depth + 1));
    return element;
  }

  #element(node: TreeNode, depth: number): HTMLElement | MathMLElement {
    const { type = 'span', attributes = {}, classes = [], style = {} } = node;
    this.#elements += 1;
    if (depth > DEPTH_MAX || this.#elements > ELEMENTS_MAX) throw new RangeError('the formula is too large');
    if (type !== 'span' && !TAG.test(type)) throw new TypeError(`unexpected element ${type}`);
    const element = type === 'span' ? h('span') : document.createElementNS(MATHML, type);
    for (const [name, value] of Object.entries(attributes)) {
      if (ATTRIBUTES.has(name)) element.setAttribute(name, String(value));
    }
    if (classes.length > 0) element.setAttribute('class', classes.filter(Boolean).join(' '));
    for (const [name, value] of Object.entries(style)) {
      const isPermitted = STYLE.test(name) && STYLE_VALUE.test(value);
      if (isPermitted) element.style[name as 'color'] = value;
    }
    return element;
  }
}
