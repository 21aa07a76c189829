//! The vhost-user device against hostile guests ([`chains()`]) and hostile VMMs ([`messages()`]).

mod chains;
mod input;
mod messages;
mod walk;

pub use chains::chains;
pub use messages::messages;
