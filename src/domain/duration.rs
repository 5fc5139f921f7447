//! Durations in words.

/// A duration in seconds as people read it: `0.4 ms`, `250 ms`, `2.5 s`, `3 min 20 s`, `5 h 10 min`, `4 days 2 h`.
pub fn text(seconds: f64) -> String {
    let ms = seconds * 1e3;
    let whole = seconds.round() as i64;
    match whole {
        _ if seconds < 0.0 => format!("-{}", text(-seconds)),
        _ if seconds == 0.0 => "0 s".to_owned(),
        _ if ms < 9.95 => format!("{ms:.1} ms"),
        _ if ms < 999.5 => format!("{ms:.0} ms"),
        _ if seconds < 9.95 => format!("{seconds:.1} s"),
        0..120 => format!("{whole} s"),
        120..7_200 => format!("{} min {} s", whole / 60, whole % 60),
        7_200..259_200 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ if whole % 86_400 < 3_600 => format!("{} days", whole / 86_400),
        _ => format!("{} days {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn short_and_long_ones_are_readable() {
        for (seconds, expected) in [
            (0.0, "0 s"),
            (0.000_04, "0.0 ms"),
            (0.000_4, "0.4 ms"),
            (0.009_97, "10 ms"),
            (0.25, "250 ms"),
            (0.999_7, "1.0 s"),
            (2.54, "2.5 s"),
            (9.96, "10 s"),
            (119.4, "119 s"),
            (200.0, "3 min 20 s"),
            (18_600.0, "5 h 10 min"),
            (352_800.0, "4 days 2 h"),
            (7_776_000.0, "90 days"),
            (-90.0, "-90 s"),
        ] {
            assert_eq!(text(seconds), expected, "{seconds}");
        }
    }
}
