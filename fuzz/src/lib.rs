//! What the fuzz targets do with their bytes. Each function is also run by the tests on seeds.

mod input;
mod layout;
mod printf;
mod server;
mod stream;

pub use layout::layout;
pub use printf::printf;
pub use server::server;
pub use stream::stream;
