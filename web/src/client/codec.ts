/** Events to frames and back. JSON is always spoken; others are offered to the server first. */

export interface Codec {
  /** The WebSocket subprotocol that says it. */
  readonly subprotocol: string;
  encode(event: object): string | Uint8Array<ArrayBuffer>;
  /** Throws if the frame is not of this codec. */
  decode(frame: string | ArrayBuffer): unknown;
}

export const json: Codec = {
  subprotocol: 'realtime',
  encode: (event) => JSON.stringify(event),
  decode: (frame) => {
    if (typeof frame !== 'string') throw new TypeError('a binary frame where JSON was agreed');
    return JSON.parse(frame) as unknown;
  },
};
