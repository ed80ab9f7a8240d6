// Staging for blocks along N. The outputs of a tile are {{ TILE_GROUPS }} group{{ "s" if TILE_GROUPS > 1 }} that share scales{{ ", first of gate, then of up" if GATE }}, and the
// input is staged once for each group, multiplied by its scales. A thread stages {{ QUADS or 1 }} quad{{ "s" if QUADS > 1 }} of inputs at a
// time{% if QUADS %}, which it holds for all tiles{% endif %}.
{% set HELD = QUADS or 1 %}
struct TileScales {
    scale: vec4<f32>,
{% if MINIMUMS %}
    minimum: vec4<f32>,
{% endif %}
}

alias Inputs = array<vec4<f32>, {{ HELD }}>;
// Those of quad 0 for each group, then of quad 1, ...
alias Scales = array<TileScales, {{ HELD * STAGES }}>;
alias Stored = array<StoredScales, {{ HELD * STAGES }}>;

// The index of the first quad that this thread stages; the others are every WG-th after it.
fn own_quad(thread: Thread, subgroup_size: u32) -> u32 {
    return {{ "first_quad(thread, subgroup_size)" if INT8 else "thread.index" }};
}

// Load the scales of a tile for the quads from `first` on, as they are stored.
fn load_stored(tile: u32, first: u32, stored: ptr<function, Stored>) {
{% for F in FORMATS %}
{% if not GATE or loop.first %}
{% set s = loop.index0 %}
    {% if MATRICES > 1 and not GATE %}if (tile_of{{ s }}(tile) < TILES{{ s }}) {% endif %}{
        let row = tile_of{{ s }}(tile) * ROWS;
        let last = N{{ s }}{{ " / 2u" if GATE and GATED_MATRICES == 1 }} - 1u;
{% for number in range(STAGES) %}
{% set up = number >= TILE_GROUPS %}
{% set S = 1 if up and GATED_MATRICES == 2 else s %}
        let offsets{{ number }} = group{{ S }}({{ "N0 / 2u + " if up and GATED_MATRICES == 1 }}min(row + {{ number % TILE_GROUPS }}u * (ROWS / {{ TILE_GROUPS }}u), last));
{% endfor %}
{% for q in range(HELD) %}
        let quad{{ q }} = min(first + {{ q }}u * WG, K / 4u - 1u);
{% for number in range(STAGES) %}
{% set S = 1 if number >= TILE_GROUPS and GATED_MATRICES == 2 else s %}
        (*stored)[{{ q * STAGES + number }}] = stored_scales{{ S }}(offsets{{ number }}, quad{{ q }});
{% endfor %}
{% endfor %}
    }
{% endif %}
{% endfor %}
}

// Load the quads of inputs from `first` on, zeros past the end; returns the sum of their squares for a norm.
fn load_inputs(first: u32, inputs: ptr<function, Inputs>) -> f32 {
    var squares = 0.0;
{% for q in range(HELD) %}
    let quad{{ q }} = min(first + {{ q }}u * WG, K / 4u - 1u);
{% if INPUT == "plain" and not ADDED %}
    let v{{ q }} = vec4<f32>(x[quad{{ q }}]);
{% endif %}
{% endfor %}
{% for q in range(HELD) %}
{% if INPUT != "plain" or ADDED %}
    var squares{{ q }} = 0.0;
    let v{{ q }} = input(quad{{ q }}, &squares{{ q }});
{% endif %}
    let inside{{ q }} = first + {{ q }}u * WG < K / 4u;
    (*inputs)[{{ q }}] = select(vec4<f32>(0.0), v{{ q }}, inside{{ q }});
{% if INPUT == "norm" %}
    squares += select(0.0, squares{{ q }}, inside{{ q }});
{% endif %}
{% endfor %}
    return squares;
}

// Unpack the scales of a tile.
fn unpack_scales(tile: u32, stored: ptr<function, Stored>, scales_of_tile: ptr<function, Scales>) {
{% for F in FORMATS %}
{% if not GATE or loop.first %}
{% set s = loop.index0 %}
    {% if MATRICES > 1 and not GATE %}if (tile_of{{ s }}(tile) < TILES{{ s }}) {% endif %}{
{% for i in range(HELD * STAGES) %}
        let f{{ i }} = unpacked_scales{{ s }}((*stored)[{{ i }}]);
        (*scales_of_tile)[{{ i }}] = TileScales(f{{ i }}.scale{{ ", f" ~ i ~ ".minimum" if F.minimum else ", vec4<f32>(0.0)" if MINIMUMS }});
{% endfor %}
    }
{% endif %}
{% endfor %}
}

// Stage quad `quad` with values `v` for group `number` of a tile; returns the product with the minimums.
fn stage_scaled(thread: Thread, subgroup_size: u32, number: u32, quad: u32, v: vec4<f32>, f: TileScales) -> f32 {
    let at = number * (K_STAGED / 4u) + quad;
    let inside = quad < K_STAGED / 4u;
{% if INT8 %}
    stage_quad(thread, subgroup_size, at, inside, v * f.scale);
{% else %}
    if (inside) {
        staged[place(at)] = v * f.scale;
    }
{% endif %}
    return {{ "dot(v, f.minimum)" if MINIMUMS else "0.0" }};
}

// Stage the quads from `first` on for all groups of a tile; returns the sums of their products with the minimums.
fn stage_quads(
    thread: Thread, subgroup_size: u32, first: u32, inputs: ptr<function, Inputs>, scales_of_tile: ptr<function, Scales>
) -> Minimums {
    var minimums = Minimums();
{% for q in range(HELD) %}
{% for number in range(STAGES) %}
    minimums{{ "." ~ "xyzw"[number] if STAGES > 1 }} += stage_scaled(
        thread, subgroup_size, {{ number }}u, first + {{ q }}u * WG, (*inputs)[{{ q }}], (*scales_of_tile)[{{ q * STAGES + number }}]
    );
{% endfor %}
{% endfor %}
    return minimums;
}
{% if QUADS %}

// Load the scales of a tile for the quads from `first` on. They are unpacked at once: compilers move loads whose results
// are used later behind the waits for inputs that another phase hands over.
fn load_scales(tile: u32, first: u32, scales_of_tile: ptr<function, Scales>) {
    var stored: Stored;
    load_stored(tile, first, &stored);
    unpack_scales(tile, &stored, scales_of_tile);
}
{% else %}

// Load and stage all inputs for a tile; returns the sums of minimums, and adds to the sum of squares.
fn stage_tile(thread: Thread, subgroup_size: u32, tile: u32, squares: ptr<function, f32>) -> Minimums {
    var inputs: Inputs;
    var stored: Stored;
    var scales_of_tile: Scales;
    var minimums = Minimums();
    for (var begin = 0u; begin < K_STAGED / 4u; begin += WG) {
        let first = begin + own_quad(thread, subgroup_size);
        load_stored(tile, first, &stored);
        *squares += load_inputs(first, &inputs);
        unpack_scales(tile, &stored, &scales_of_tile);
        minimums += stage_quads(thread, subgroup_size, first, &inputs, &scales_of_tile);
    }
    return minimums;
}
{% endif %}
