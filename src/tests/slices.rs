//! Slices, where one backend is enough to see it. What takes several is in `tests/slices.rs`.

mod audits;
mod differences;
mod digests;
mod queries;
mod replacing;
mod shapes;
mod stages;
mod support;
