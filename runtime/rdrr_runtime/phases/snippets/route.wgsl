// A route of a token row to an expert.
struct Route {
    expert: u32,
    weight: f32,  // routing weight: factor on the expert's result in the sum over the row's experts
}
