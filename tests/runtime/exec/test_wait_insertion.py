"""Loads of handed values are waited for where the values are used, and accesses are rewritten."""

from __future__ import annotations

from textwrap import dedent

import pytest
from rdrr_runtime.exec.persistent.declarations import UnlinkableError, declarations
from rdrr_runtime.exec.persistent.elements import HandedElement, StoredElement, has_reads, rewritten
from rdrr_runtime.exec.persistent.wait_insertion import with_waits

X = HandedElement("from_0", "f32")
READS = {
    "x": X,
    "codes": HandedElement("from_1"),
    "pairs": HandedElement("from_2", "vec2<f32>", 2),
    "weights": StoredElement("buffer_0", "at_0"),
}
MEMORY = StoredElement("buffer_0", "at_0")


def _inserted(text):
    return with_waits(dedent(text).strip(), READS)


def _is(shader, expected):
    assert shader == dedent(expected).strip()


def _looks(name, array, index, space=""):
    element = READS[array]
    return (
        f"{space}let {name}_at = {element.offset} + ({index});\n"
        f"{space}let {name}_seen = {element.look(name + '_at')};"
    )


def test_a_value_that_is_used_once_is_waited_for_in_that_statement():
    shader = _inserted("""
        let v = x[i];
        work();
        y[i] = 2.0 * v;
    """)
    assert shader.split("\n") == [
        *_looks("v", "x", "i").split("\n"),
        "work();",
        "y[i] = 2.0 * bitcast<f32>(full1(v_seen, v_at));",
    ]


def test_a_value_that_is_used_once_is_waited_for_only_in_the_branch_that_is_taken():
    shader = _inserted("""
        let v = x[i];
        if (is_first) {
            y[i] = v;
        }
    """)
    _is(
        shader,
        """
        let v_at = from_0 + (i);
        let v_seen = seen1(v_at);
        if (is_first) {
            y[i] = bitcast<f32>(full1(v_seen, v_at));
        }
        """,
    )


def test_a_value_that_is_used_twice_is_waited_for_once_in_front_of_the_first_use():
    shader = _inserted("""
        let v = x[i];
        work();
        y[i] = v;
        z[i] = v * v;
    """)
    assert shader.split("\n")[2:] == [
        "work();",
        "let v = bitcast<f32>(full1(v_seen, v_at));",
        "y[i] = v;",
        "z[i] = v * v;",
    ]


def test_a_value_that_is_used_first_in_a_deeper_block_is_waited_for_in_front_of_the_block():
    shader = _inserted("""
        fn f() {
            let v = x[i];
            work();
            for (var j = 0u; j < 4u; j++) {
                if (j < n) {
                    y[j] = v;
                }
            }
            z[i] = v;
        }
    """)
    assert shader.split("\n")[3:6] == [
        "    work();",
        "    let v = bitcast<f32>(full1(v_seen, v_at));",
        "    for (var j = 0u; j < 4u; j++) {",
    ]
    assert shader.count("full1") == 1


@pytest.mark.parametrize(
    "head", ["if (a) {", "if (a &&\n    b) {", "if (a) {\n    work();\n} else if (v > 0.0) {"]
)
def test_a_value_is_waited_for_in_front_of_a_branch_with_several_lines_in_its_head(head):
    shader = with_waits(f"let v = x[i];\nwork();\n{head}\n    y[i] = v;\n}}\nz[i] = v;", READS)
    wait = "let v = bitcast<f32>(full1(v_seen, v_at));"
    assert (
        shader == f"{_looks('v', 'x', 'i')}\nwork();\n{wait}\n{head}\n    y[i] = v;\n}}\nz[i] = v;"
    )


def test_a_value_is_waited_for_in_front_of_a_statement_of_several_lines():
    shader = _inserted("""
        let v = x[i];
        work();
        y[i] = vec2<f32>(
            1.0, v,
        ) * v;
    """)
    assert shader.split("\n")[2:5] == [
        "work();",
        "let v = bitcast<f32>(full1(v_seen, v_at));",
        "y[i] = vec2<f32>(",
    ]


def test_a_value_that_is_used_once_in_a_statement_of_several_lines_is_waited_for_in_its_line():
    shader = _inserted("""
        let v = x[i];
        y[i] = vec2<f32>(
            1.0, v,
        );
    """)
    assert shader.split("\n")[2:] == [
        "y[i] = vec2<f32>(",
        "    1.0, bitcast<f32>(full1(v_seen, v_at)),",
        ");",
    ]


def test_consecutive_loads_all_look_before_any_waits():
    shader = _inserted("""
        let a = x[i];
        let b = pairs[i];
        let c = codes[i];
        use(a, b, c);
        again(a, b);
    """)
    looks = (_looks("a", "x", "i"), _looks("b", "pairs", "i"), _looks("c", "codes", "i"))
    waits = (
        "let a = bitcast<f32>(full1(a_seen, a_at));",
        "let b = bitcast<vec2<f32>>(full2(b_seen, b_at));",
        "use(a, b, full1(c_seen, c_at));",
        "again(a, b);",
    )
    assert shader == "\n".join((*looks, *waits))


def test_values_that_are_used_one_after_the_other_are_waited_for_one_after_the_other():
    shader = _inserted("""
        let a = x[i];
        let b = x[j];
        use(a);
        again(a);
        use(b);
        again(b);
    """)
    assert shader.split("\n")[4:] == [
        "let a = bitcast<f32>(full1(a_seen, a_at));",
        "use(a);",
        "again(a);",
        "let b = bitcast<f32>(full1(b_seen, b_at));",
        "use(b);",
        "again(b);",
    ]


def test_loads_in_two_branches_may_have_the_same_name():
    shader = _inserted("""
        if (a) {
            let v = x[i];
            use(v);
        } else {
            let v = pairs[i];
            use(v);
        }
    """)
    _is(
        shader,
        f"""
        if (a) {{
        {_looks("v", "x", "i", "    ").replace(chr(10), chr(10) + 8 * " ")}
            let v = bitcast<f32>(full1(v_seen, v_at));
            use(v);
        }} else {{
        {_looks("v", "pairs", "i", "    ").replace(chr(10), chr(10) + 8 * " ")}
            let v = bitcast<vec2<f32>>(full2(v_seen, v_at));
            use(v);
        }}
        """,
    )


def test_a_name_within_another_name_is_no_use():
    shader = _inserted("""
        let v = x[i];
        let value = other.v + v2;
        use(v);
    """)
    assert shader.split("\n")[2:] == [
        "let value = other.v + v2;",
        "use(bitcast<f32>(full1(v_seen, v_at)));",
    ]


def test_an_index_that_is_a_value_itself_is_waited_for_by_its_load():
    shader = _inserted("""
        let at = codes[i];
        let v = x[2u * at + 1u];
        use(v);
    """)
    assert shader.split("\n") == [
        *_looks("at", "codes", "i").split("\n"),
        "let v_at = from_0 + (2u * full1(at_seen, at_at) + 1u);",
        "let v_seen = seen1(v_at);",
        "use(bitcast<f32>(full1(v_seen, v_at)));",
    ]


def test_a_conversion_is_kept():
    shader = _inserted("""
        let v = f32(x[i]);
        use(v);
    """)
    assert shader.split("\n")[2] == "use(f32(bitcast<f32>(full1(v_seen, v_at))));"


@pytest.mark.parametrize(
    "text",
    [
        "let v = weights[i];\nuse(v);\nuse(v);",
        "let v = f32(weights[i]);\nuse(v);",
        "let v = x[i] + 1.0;\nuse(v);",
        "var v = x[i];\nuse(v);",
        "let v = other[i];\nuse(v);",
    ],
)
def test_other_statements_stay_as_they_are(text):
    assert with_waits(text, READS) == text
    assert with_waits("let v = x[i];\nuse(v);", READS) != text


@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        ("y[i] = x[i];", True),
        ("x[i] = 1.0;", False),
        ("x[i] = x[j];", True),
        ("x[u32(x[j])] = 1.0;", True),
        ("x[i] += 1.0;", True),
        ("if (x[i] == 1.0) { return; }", True),
        ("y[i] = box[i] + a.x[i];", False),
    ],
)
def test_reads_are_told_from_writes(body, is_read):
    assert has_reads(declarations(f"fn phase() {{ {body} }}"), "x") == is_read


def test_a_read_waits_for_its_element():
    pairs, codes = READS["pairs"], READS["codes"]
    assert rewritten("use(x[i + 1u]);", "x", X, X) == (
        "use(bitcast<f32>(taken1(from_0 + (i + 1u))));"
    )
    assert rewritten("use(x[i].y);", "x", pairs, pairs) == (
        "use(bitcast<vec2<f32>>(taken2(from_2 + (i))).y);"
    )
    assert rewritten("use(x[i]);", "x", codes, codes) == "use(taken1(from_1 + (i)));"
    assert rewritten("use(x[i]);", "x", MEMORY, MEMORY) == "use(buffer_0[at_0 + (i)]);"
    assert (
        rewritten("use(x[i]);", "x", StoredElement("pool"), StoredElement("pool"))
        == "use(pool[i]);"
    )


def test_a_write_converts_all_but_words():
    pairs, codes = READS["pairs"], READS["codes"]
    assert rewritten("x[i] = a + b;", "x", X, X) == "put1(from_0 + (i), bitcast<u32>(a + b));"
    assert rewritten("x[i] = v;", "x", pairs, pairs) == (
        "put2(from_2 + (i), bitcast<vec2<u32>>(v));"
    )
    assert rewritten("x[i] = v;", "x", codes, codes) == "put1(from_1 + (i), v);"
    assert rewritten("x[i] = v;", "x", MEMORY, MEMORY) == "buffer_0[at_0 + (i)] = v;"


def test_reads_within_indices_and_written_values_are_rewritten_as_well():
    to = HandedElement("to_0")
    from_ = HandedElement("from_0")
    assert rewritten("use(x[x[x[0u]]]);", "x", from_, from_) == (
        "use(taken1(from_0 + (taken1(from_0 + (taken1(from_0 + (0u)))))));"
    )
    assert rewritten("x[x[i]] = x[j] + x[k];\nuse(x[m]);", "x", from_, to) == (
        "put1(to_0 + (taken1(from_0 + (i))), taken1(from_0 + (j)) + taken1(from_0 + (k)));\n"
        "use(taken1(from_0 + (m)));"
    )


@pytest.mark.parametrize("change", ["+=", "-=", "*=", "|="])
def test_only_an_element_in_memory_can_be_changed_by_an_operator(change):
    text = f"x[i] {change} v;"
    assert rewritten(text, "x", MEMORY, MEMORY) == f"buffer_0[at_0 + (i)] {change} v;"
    with pytest.raises(UnlinkableError, match="x is changed in place"):
        rewritten(text, "x", X, X)


def test_an_array_that_is_used_as_a_whole_is_refused():
    for element in (X, MEMORY):
        with pytest.raises(UnlinkableError, match="x is used as a whole"):
            rewritten("use(arrayLength(&x));", "x", element, element)
    with pytest.raises(UnlinkableError, match="x is used as a whole"):
        has_reads(declarations("fn phase() { use(&x); }"), "x")
    assert rewritten("use(arrayLength(&y));", "x", X, X) == "use(arrayLength(&y));"


def test_an_index_without_an_end_is_refused():
    with pytest.raises(UnlinkableError, match="an index has no end"):
        rewritten("use(x[i);", "x", X, X)
