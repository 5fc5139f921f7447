//! Real clients against a real server: one target, since each would start a server of its own.

mod harness;
