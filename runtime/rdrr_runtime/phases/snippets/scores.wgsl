// Which slots a row attends to, and the bound of its scores.
override HEADS: u32;
override SCALE: f32;
override WINDOW: u32;   // slots that a row attends to, its own included; 0 for all
override SOFTCAP: f32;  // 0 for none

const LOWEST = -3.0e38;  // finite, so that no difference of scores is NaN

// A row at a slot attends to the slots from x on that are below y.
fn attended_slots(slot: u32) -> vec2<u32> {
    let end = min(slot + 1u, CONTEXT);
    return vec2<u32>(select(0u, end - min(end, WINDOW), WINDOW > 0u), end);
}

// SOFTCAP tanh(score / SOFTCAP), or the score where SOFTCAP is 0.
fn softcapped(score: f32) -> f32 {
    if (SOFTCAP > 0.0) {
        return SOFTCAP * tanh(clamp(score / SOFTCAP, -15.0, 15.0));
    }
    return score;
}
