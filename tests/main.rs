//! Real clients against a real server: one target, since each would start a server of its own.

mod calendar;
mod calls;
mod cases;
mod catchup;
mod crash;
mod docs;
mod dump;
mod effects;
mod eligible;
mod fence;
mod grids;
mod harness;
mod leases;
mod plans;
mod protection;
mod quarantine;
mod retarget;
mod rights;
mod slices;
mod story;
mod support;
mod surface;
mod targets;
mod tour;
mod waiting;
mod windows;
