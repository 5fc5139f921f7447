//! The progress bar: redrawn in place on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, Write, stdout};
use std::time::Instant;

const WIDTH: usize = 40;
/// Lines where nothing can be redrawn.
const LINES: usize = 5;

pub struct Bar {
    start: Instant,
    in_place: bool,
    lines: usize,
    shown: String,
}

impl Bar {
    pub fn new() -> Self {
        Self { start: Instant::now(), in_place: stdout().is_terminal(), lines: 0, shown: String::new() }
    }

    pub fn draw(&mut self, done: usize, of: usize, running: usize) {
        let filled = WIDTH * done / of.max(1);
        let bar = "#".repeat(filled) + &".".repeat(WIDTH - filled);
        self.shown = format!(
            "  [{bar}] {done:3}/{of}, {running} leased, {:4.1} s",
            self.start.elapsed().as_secs_f64()
        );
        if self.in_place {
            self.redraw();
        } else if LINES * done / of.max(1) > self.lines {
            self.lines = LINES * done / of;
            println!("{}", self.shown);
        }
    }

    /// Prints a line above the bar.
    pub fn note(&self, line: &str) {
        if self.in_place {
            print!("\r\x1b[K");
        }
        println!("{line}");
        if self.in_place {
            self.redraw();
        }
    }

    /// Leaves the bar as it is and goes on below it.
    pub fn leave(self) {
        if self.in_place {
            println!();
        }
    }

    fn redraw(&self) {
        print!("\r{}\x1b[K", self.shown);
        // A terminal that went away ends the demo soon enough.
        let _ = stdout().flush();
    }
}
