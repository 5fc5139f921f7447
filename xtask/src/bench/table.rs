//! Tables for people to read.

/// Columns of text under headings, the first to the left, the others to the right. A row is printed as soon as
/// it is known: the next one may take a minute.
pub struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// Prints the headings; the first column has room for `first` letters.
    pub fn start<S: AsRef<str>>(first: usize, headings: &[S]) -> Self {
        let width = |heading: &S| heading.as_ref().chars().count().max(7);
        let mut widths: Vec<usize> = headings.iter().map(width).collect();
        widths[0] = widths[0].max(first);
        let table = Self { widths };
        table.row(headings);
        table
    }

    pub fn row<S: AsRef<str>>(&self, cells: &[S]) {
        let mut line = String::from(" ");
        for (i, (cell, width)) in cells.iter().zip(&self.widths).enumerate() {
            let cell = cell.as_ref();
            line.push_str(&if i == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") });
        }
        println!("{}", line.trim_end());
    }
}

/// `12,345`.
pub fn whole(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn thousands_are_marked() {
        assert_eq!(whole(7.4), "7");
        assert_eq!(whole(1_234.0), "1,234");
        assert_eq!(whole(1_000_000.0), "1,000,000");
    }
}
