//! Everything that is neither plain cargo nor for users.
fn main() {}
