/** Codecs between events and WebSocket frames. JSON is always offered last, after any others. */

export interface Codec {
  /** The WebSocket subprotocol that selects this codec. */
  readonly subprotocol: string;
  encode(event: object): string | Uint8Array<ArrayBuffer>;
  /** Throws if the frame does not belong to this codec. */
  decode(frame: string | ArrayBuffer): unknown;
}

export const json: Codec = {
  subprotocol: 'realtime',
  encode: (event) => JSON.stringify(event),
  decode: (frame) => {
    if (typeof frame !== 'string') throw new TypeError('binary frame although JSON was negotiated');
    return JSON.parse(frame) as unknown;
  },
};
