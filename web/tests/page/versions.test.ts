import { expect, it } from 'vitest';
import { findVersionPoints, type VersionPath } from '../../src/page/versions.js';

let clock = 0;
/** A version with these items; versions are made and updated in the order of the calls. */
function version(items: string, updated?: number): VersionPath {
  clock += 1;
  return { id: items, made: clock, updated: updated ?? clock, itemIds: items.split(' ').filter(Boolean) };
}

it('finds no points without other versions, nor beside an identical one', () => {
  const only = version('u1 a1 u2 a2');
  expect(findVersionPoints(only, [])).toEqual(new Map());
  expect(findVersionPoints(only, [only, { ...only, id: 'copy' }])).toEqual(new Map());
});

it('numbers alternatives in the order in which they were made', () => {
  const [first, second, third] = [version('u1 a1'), version('u1 b1'), version('u1 c1')];
  const others = [third, first];
  expect(findVersionPoints(second, others)).toEqual(
    new Map([[1, { number: 2, count: 3, previous: 'u1 a1', next: 'u1 c1' }]]),
  );
  expect(findVersionPoints(first, [second, third]).get(1)).toEqual({
    number: 1,
    count: 3,
    previous: null,
    next: 'u1 b1',
  });
});

it('finds every point of nested versions, and shows the version that was open last', () => {
  const first = version('u1 a1 u2 a2 u3 a3');
  const editedSecond = version('u1 a1 v2 b2');
  const regenerated = version('u1 a1 u2 c2');
  const editedFirst = version('w1 d1');
  const all = [first, editedSecond, regenerated, editedFirst];
  expect([...findVersionPoints(first, all).keys()]).toEqual([0, 2, 3]);
  expect(findVersionPoints(editedFirst, all).get(0)).toMatchObject({
    number: 2,
    count: 2,
    previous: 'u1 a1 u2 c2', // not the first one that contains u1
  });
  const reopened = { ...first, updated: 100 };
  expect(findVersionPoints(editedFirst, [reopened, editedSecond, regenerated]).get(0)?.previous).toBe(first.id);
  expect(findVersionPoints(editedSecond, all).get(2)).toMatchObject({ number: 2, count: 2, next: null });
});

it('numbers an alternative by its first version, not by one made from that later', () => {
  const first = version('u1 a1 u2 a2');
  const second = version('u1 b1');
  const fromFirst = version('u1 a1 u3 a3');
  expect(findVersionPoints(second, [fromFirst, first]).get(1)).toMatchObject({ number: 2, count: 2 });
  expect(findVersionPoints(fromFirst, [first, second]).get(1)).toMatchObject({ number: 1, next: second.id });
});

it('counts a version that ends, or has not begun, as an alternative', () => {
  const first = version('u1 a1');
  const waiting = version('u1');
  const emptyVersion = version('');
  expect(findVersionPoints(waiting, [first]).get(1)).toMatchObject({ number: 2, count: 2, previous: first.id });
  expect(findVersionPoints(first, [waiting]).get(1)).toMatchObject({ number: 1, count: 2, next: waiting.id });
  expect(findVersionPoints(emptyVersion, [first]).get(0)).toMatchObject({ previous: first.id });
});
