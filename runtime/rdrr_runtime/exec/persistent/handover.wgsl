// Values that are handed over word by word: a reader looks at the words that it needs until they are full.
//
// words1, words2, words4  the words of all values of a pass, twice, behind a head of 4 words: a pass uses one half
//                         and empties the other one for the next pass. The first word counts the passes
//
// A word is written once in a pass, so whoever sees that it is full has its value. With ALIASED reads and writes
// are those of @coherent buffers. Without it WebGPU lets no dispatch bind written memory twice, and the words are
// atomic ones (@coherent then only marks the module, see `for_compiler`). Each wait is bounded like those of gate.wgsl; a thread that gives up waits no more.
const EMPTY = {{ EMPTY }}u;
const HALF_WORDS = {{ HALF_WORDS }}u;

@coherent
var<storage, read_write> words1: array<{{ "u32" if ALIASED else "atomic<u32>" }}>;
{% if ALIASED %}
@coherent
var<storage, read_write> words2: array<vec2<u32>>;
@coherent
var<storage, read_write> words4: array<vec4<u32>>;
{% endif %}

var<private> first_word: u32;  // of the half that this pass uses

// Choose the half of this pass; returns whether it is the second one.
fn enter_half() -> bool {
    let second = (seen1(0u) & 1u) != 0u;
    first_word = select(4u, 4u + HALF_WORDS, second);
    return second;
}

// Empty a half for the next pass.
fn empty_half(second: bool, group: u32, groups: u32, index: u32) {
    let first = select(4u, 4u + HALF_WORDS, second) / 4u;
    for (var i = group * WG + index; i < HALF_WORDS / 4u; i += groups * WG) {
        put4(first + i, vec4<u32>(EMPTY));
    }
}

{% if not ALIASED %}

// Where a word is: neighbouring threads load the same words of neighbouring vectors, so these lie side by side.
// {{ SWIZZLED }} words change places among themselves.
fn place(word: u32) -> u32 {
    return (word & ~{{ SWIZZLED - 1 }}u) | ((word & 3u) * {{ SWIZZLED // 4 }}u + (word & {{ SWIZZLED - 1 }}u) / 4u);
}
{% endif %}
{% for width, type, any in ((1, "u32", ""), (2, "vec2<u32>", "any"), (4, "vec4<u32>", "any")) %}

fn seen{{ width }}(at: u32) -> {{ type }} {
{% if ALIASED %}
    return words{{ width }}[at];
{% else %}
    return {{ type }}({% for i in range(width) %}{{ ", " if i }}atomicLoad(&words1[place({{ width }}u * at + {{ i }}u)]){% endfor %});
{% endif %}
}

fn put{{ width }}(at: u32, value: {{ type }}) {
{% if ALIASED %}
    words{{ width }}[at] = value;
{% else %}
{% for i in range(width) %}
    atomicStore(&words1[place({{ width }}u * at + {{ i }}u)], value{{ "[%du]" % i if width > 1 }});
{% endfor %}
{% endif %}
}

// What element `at` of {{ width }} word{{ "s" if width > 1 }} is once it is full, with what it was at a first look; an empty one if it never is.
// There is a copy of this for each value that is read, so it has no branch beside the loop.
fn full{{ width }}(seen: {{ type }}, at: u32) -> {{ type }} {
    var word = seen;
    for (var looks = 0u; {{ any }}(word == {{ type }}(EMPTY)) & (looks < most_looks); looks++) {
        word = seen{{ width }}(at);
    }
    most_looks = select(most_looks, 0u, {{ any }}(word == {{ type }}(EMPTY)));
    return word;
}

fn taken{{ width }}(at: u32) -> {{ type }} {
    return full{{ width }}(seen{{ width }}(at), at);
}
{% endfor %}
