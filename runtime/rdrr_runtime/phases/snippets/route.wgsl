struct Route {
    expert: u32,
    share: f32,
}
