//! State on disk: one record per target, one private order per timer, and the history.
#![forbid(unsafe_code)]

pub mod change;
pub mod driver;
pub mod entry;
pub mod files;
pub mod history;
pub mod leaving;
pub mod logs;
pub mod newer;
pub mod order;
pub mod orders;
pub mod pending;
pub mod promise;
pub mod record;
pub mod reruns;
pub mod standing;
pub mod store;
pub mod together;
pub mod triggered;
pub mod unbegun;
pub mod upkeep;
