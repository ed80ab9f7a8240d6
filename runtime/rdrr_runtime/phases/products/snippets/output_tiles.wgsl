{# The tiles of a product's matrices, counted from the first tile of the first one, and the outputs of a tile. #}
{% for F in FORMATS %}
{% if not GATE or loop.first %}
// Number of a tile of matrix {{ loop.index0 }} within it; at least TILES{{ loop.index0 }} for a tile of another one.
fn tile_of{{ loop.index0 }}(tile: u32) -> u32 {
    return tile{% for s in range(loop.index0) %} - TILES{{ s }}{% endfor %};
}

{% endif %}
{% endfor %}
// The first output of a tile and the end of those of its matrix, counted over all matrices; zeros for no tile.
fn outputs_of(tile: u32) -> vec2<u32> {
    var outputs = vec2<u32>(0u);
    var first = 0u;
{% for F in FORMATS %}
{% if not GATE or loop.first %}
{% set s = loop.index0 %}
    if (tile_of{{ s }}(tile) < TILES{{ s }}) {
        outputs = first + vec2<u32>(tile_of{{ s }}(tile) * ROWS, N{{ s }}{{ " / 2u" if GATE and GATED_MATRICES == 1 }});
    }
    first += N{{ s }};
{% endif %}
{% endfor %}
    return outputs;
}

// Number of a tile's outputs that output `r` of a team is.
fn in_tile(team: u32, r: u32) -> u32 {
{% if TILE_GROUPS > 1 %}
    return r / {{ EACH }}u * (ROWS / {{ TILE_GROUPS }}u) + team * {{ EACH }}u + r % {{ EACH }}u;
{% else %}
    return team * {{ PER_TEAM }}u + r;
{% endif %}
}
