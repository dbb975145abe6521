/** A response with a table, code, formulas and tasks, for tests and screenshots. */

export const EXAMPLE_ANSWER = `A **KV cache** keeps the keys and values of the tokens that were computed, so that each new token costs one step. Here is how large it gets.

## How large is it?

For a model with $L$ layers and $h$ heads of size $d$, a token takes

$$
b = 2 \\cdot L \\cdot h \\cdot d \\cdot s, \\qquad s = \\begin{cases} 2 & \\text{in bfloat16} \\\\ 4 & \\text{in float32} \\end{cases}
$$

bytes. A context of $n$ tokens therefore takes \\(n \\cdot b\\) bytes:

| Model | Layers | Bytes per token | 8,192 tokens | Where it fits |
|:------|-------:|----------------:|-------------:|:--------------|
| Llama-3.2-1B | 16 | 32,768 | 256 MiB | a laptop |
| Qwen2.5-7B-Instruct | 28 | 57,344 | 448 MiB | a graphics card with 24 GiB |
| Llama-3.1-70B | 80 | 327,680 | 2.5 GiB | two accelerators with 80 GiB |

## Measure it

\`\`\`python
from dataclasses import dataclass

@dataclass
class Shape:
    layers: int
    heads: int
    size: int = 128

def bytes_per_token(shape: Shape, width: int = 2) -> int:
    """Keys and values of one token."""
    return 2 * shape.layers * shape.heads * shape.size * width

print(f"{bytes_per_token(Shape(28, 4)):,} bytes")  # 57,344 bytes
\`\`\`

1. Start the server with \`--max-model-len 8192\`.
2. Watch \`kv_pages_used\` while two people talk:
   - pages that they share are counted *once*;
   - pages in host memory are not counted.

> Pages that no session uses remain in the cache until the memory is needed.

- [x] measured in bfloat16
- [ ] measured with 8-bit keys

More in [the notes](https://example.org/kv) and in this drawing: ![Layout of a page](https://example.org/page.png)
`;
