/** MessagePack codec in binary frames; a separate module, so that JSON-only clients do not load it. */

import { decode, encode } from '@msgpack/msgpack';
import type { Codec } from './codec.js';

export const msgpack: Codec = {
  subprotocol: 'realtime.msgpack',
  encode: (event) => encode(event, { ignoreUndefined: true }),
  decode: (frame) => {
    if (typeof frame === 'string') throw new TypeError('text frame although MessagePack was negotiated');
    return decode(frame);
  },
};
