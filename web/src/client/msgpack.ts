/** The same events as MessagePack, in binary frames. Apart, so that who speaks JSON loads none of it. */

import { decode, encode } from '@msgpack/msgpack';
import type { Codec } from './codec.js';

export const msgpack: Codec = {
  subprotocol: 'realtime.msgpack',
  encode: (event) => encode(event, { ignoreUndefined: true }),
  decode: (frame) => {
    if (typeof frame === 'string') throw new TypeError('a text frame where MessagePack was agreed');
    return decode(frame);
  },
};
