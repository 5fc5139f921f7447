//! Real clients against a real server: one target, since each would start a server of its own.

mod calendar;
mod calls;
mod catchup;
mod crash;
mod docs;
mod dump;
mod fence;
mod harness;
mod leases;
mod plans;
mod rights;
mod slices;
mod support;
mod surface;
mod tour;
