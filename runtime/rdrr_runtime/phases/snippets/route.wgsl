struct Route {
    expert: u32,
    weight: f32,  // of the expert's result in the sum over the row's experts
}
