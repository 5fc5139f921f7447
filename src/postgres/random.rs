//! Random numbers from the server's own generator.

use pgrx::pg_sys;

/// Uniform in `[0, 1)`.
pub fn unit() -> f64 {
    unsafe { pg_sys::pg_prng_double(&raw mut pg_sys::pg_global_prng_state) }
}
