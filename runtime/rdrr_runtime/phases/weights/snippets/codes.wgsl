// Codes of matrix {{ S }}: {{ F.bits }} bits{{ ", signed, shifted to the top of their bytes" if F.shift }}{{ ", floats, as int8 of twice the value" if F.floats }}.
{% set at = F.shift %}
{% set low_mask = "0x%02x%02x%02x%02xu" % ((15 * 2 ** at,) * 4) %}

// Half of a unit, 32 codes, as stored.
struct Half{{ S }} {
    low: vec4<u32>,
{% if F.bits == 8 %}
    last16: vec4<u32>,
{% elif F.high %}
    high: vec2<u32>,
{% endif %}
}

// Half `part` of a unit, given the index `unit_at{{ S }}` of the unit.
fn half{{ S }}(unit: u32, part: u32) -> Half{{ S }} {
{% if F.bits == 8 %}
    let at = 4u * unit + 2u * part;
    return Half{{ S }}(weight{{ S }}[at], weight{{ S }}[at + 1u]);
{% elif F.high == 2 %}
    let high = weight{{ S }}[HIGH{{ S }} + unit];
    return Half{{ S }}(weight{{ S }}[2u * unit + part], select(high.xy, high.zw, part == 1u));
{% elif F.high == 1 %}
    let at = 2u * unit + part;
    return Half{{ S }}(weight{{ S }}[at], vec2<u32>(weight{{ S }}[HIGH{{ S }} + at / 4u][at % 4u]));
{% else %}
    return Half{{ S }}(weight{{ S }}[2u * unit + part]);
{% endif %}
}

struct Halves{{ S }} {
    first: Half{{ S }},
    second: Half{{ S }},
}

fn halves{{ S }}(unit: u32) -> Halves{{ S }} {
{% if F.high == 2 %}
    let high = weight{{ S }}[HIGH{{ S }} + unit];
    return Halves{{ S }}(
        Half{{ S }}(weight{{ S }}[2u * unit], high.xy),
        Half{{ S }}(weight{{ S }}[2u * unit + 1u], high.zw),
    );
{% else %}
    return Halves{{ S }}(half{{ S }}(unit, 0u), half{{ S }}(unit, 1u));
{% endif %}
}

// Unpack the first or the last 16 codes of a half, in order, each into a byte.
{% for second in range(2) %}
fn {{ "last" if second else "first" }}_codes{{ S }}(half: Half{{ S }}) -> vec4<u32> {
{% if F.bits == 8 %}
    return half.{{ "last16" if second else "low" }};
{% else %}
{% set by = 4 * second - at %}
{% set low = "half.low" if by == 0 else "(half.low " ~ (">> " if by > 0 else "<< ") ~ "vec4<u32>(" ~ by | abs ~ "u))" %}
{% if not F.high %}
    return {{ "doubled_floats" if F.floats }}({{ low }} & vec4<u32>({{ low_mask }}));
{% else %}
{% set high_mask = "0x%02x%02x%02x%02xu" % (((2 ** F.high - 1) * 2 ** (at + 4),) * 4) %}
{% set here = at + 4 - 4 * second * (2 - F.high) %}
{% set up = here >= 3 * F.high %}
    let high = vec4<u32>(half.high.{{ "xy"[second] }}) {{ "<<" if up else ">>" }} vec4<u32>({% for t in range(4) %}{{ (here - F.high * t) | abs }}u{{ ", " if t < 3 }}{% endfor %});
    return ({{ low }} & vec4<u32>({{ low_mask }})) | (high & vec4<u32>({{ high_mask }}));
{% endif %}
{% endif %}
}
{% endfor %}
