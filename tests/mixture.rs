//! Tables that several code versions wrote: which of them go together, and where that is refused.

mod compatible;
