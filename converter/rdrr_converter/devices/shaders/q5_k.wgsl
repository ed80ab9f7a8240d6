{% include "shaders/common.wgsl" %}
{% include "shaders/affine.wgsl" %}
const BLOCK_BYTES = 176u;
const LARGEST = 31.0;

fn byte_of(block: u32, at: u32) -> u32 {
    if at < 16u {
        return head_byte(block, at);
    }
    if at >= 48u {
        return low_byte(block, at - 48u);
    }
    var bits = 0u;
    for (var group = 0u; group < 8u; group++) {
        bits |= (code(block, group * 32u + at - 16u) >> 4u) << group;
    }
    return bits;
}
