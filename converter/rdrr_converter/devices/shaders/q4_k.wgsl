{% include "shaders/common.wgsl" %}
{% include "shaders/affine.wgsl" %}
const BLOCK_BYTES = 144u;
const LARGEST = 15.0;

fn byte_of(block: u32, at: u32) -> u32 {
    if at < 16u {
        return head_byte(block, at);
    }
    return low_byte(block, at - 16u);
}
