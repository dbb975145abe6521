/** Versions of a conversation: where they part, and which one to show next. Pure. */

/** One version: the ids of its items, in order. */
export interface VersionPath {
  /** Id of the stored version. */
  id: string;
  /** When an edit or a regeneration made it; 0 for the first version. */
  made: number;
  updated: number;
  itemIds: string[];
}

/** A position at which versions part, as seen from the current one. */
export interface VersionPoint {
  /** Number of the current alternative, from 1. */
  number: number;
  count: number;
  /** Ids of the versions that show the alternatives before and after; null at the ends. */
  previous: string | null;
  next: string | null;
}

/** Returns the points at which `others` part from the current version, by the position of the item.
 *
 *     u1 a1 u2  a2       the current version
 *     u1 a1 u2' a2'      parts at 2
 *     u1 a1 u2  a2'' …   parts at 3
 *
 * Alternatives are numbered in the order in which they were made. Of the versions that contain one, the
 * most recently updated is shown. */
export function findVersionPoints(current: VersionPath, others: VersionPath[]): Map<number, VersionPoint> {
  const points = new Map<number, VersionPoint>();
  let together = others.filter((one) => one.id !== current.id);
  for (let position = 0; together.length > 0 && position <= current.itemIds.length; position += 1) {
    const alternatives = groupByItem([current, ...together], position);
    const own = current.itemIds[position];
    if (alternatives.size > 1) {
      const ordered = [...alternatives].sort(([, a], [, b]) => madeAt(a) - madeAt(b));
      const index = ordered.findIndex(([itemId]) => itemId === own);
      const at = (i: number): string | null => {
        const versions = ordered[i]?.[1];
        return versions ? lastUpdated(versions).id : null;
      };
      const number = index + 1;
      points.set(position, { number, count: ordered.length, previous: at(index - 1), next: at(index + 1) });
    }
    if (own === undefined) break;
    together = together.filter((one) => one.itemIds[position] === own);
  }
  return points;
}

function groupByItem(versions: VersionPath[], position: number): Map<string | undefined, VersionPath[]> {
  const groups = new Map<string | undefined, VersionPath[]>();
  for (const one of versions) {
    const itemId = one.itemIds[position];
    groups.set(itemId, [...(groups.get(itemId) ?? []), one]);
  }
  return groups;
}

function madeAt(versions: VersionPath[]): number {
  return Math.min(...versions.map((one) => one.made));
}

function lastUpdated(versions: VersionPath[]): VersionPath {
  return versions.reduce((last, one) => (one.updated > last.updated ? one : last));
}
