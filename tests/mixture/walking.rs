//! Public calls in any order: the slices are never of more classes than before.

use super::january;
use crate::support::Calls;
use pgrx_tests::Session;

/// Numbers that look drawn at random, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn classes(session: &mut Session) -> i64 {
    session.one(
        "SELECT count(DISTINCT coalesce(c.class, s.code_version, 'unknown')) FROM backfill.slices s
         LEFT JOIN backfill.version_class_data c ON c.code_version = s.code_version",
        &[],
    )
}

fn any(session: &mut Session, dice: &mut Dice, sql: &str) -> Option<i64> {
    let found: Vec<i64> = session.column(sql, &[]);
    let n = dice.roll(found.len().max(1) as u64);
    found.get(n as usize).copied()
}

/// A call, whether it works or not.
fn step(session: &mut Session, dice: &mut Dice) -> String {
    let version = ["'v1'", "'v1'", "'v1'", "'v2'", "'v3'", "NULL"][dice.roll(6) as usize];
    let day = dice.roll(12) + 1;
    let (since, until) = (format!("2024-02-{day:02}"), format!("2024-02-{:02}", day + dice.roll(3) + 1));
    let token = any(session, dice, "SELECT token FROM backfill.leases ORDER BY 1").unwrap_or(0);
    let plan =
        any(session, dice, "SELECT plan_id FROM backfill.plans WHERE plan_id > 1 ORDER BY 1").unwrap_or(0);
    let rows = format!("query => 'SELECT $1, {token}'");
    match dice.roll(20) {
        0..=4 => format!(
            "SELECT count(*) FROM backfill_claim('w', 2, pipelines => '{{daily}}', code_version => {version})"
        ),
        5..=9 => format!("SELECT replace_partition({token}, {rows})"),
        10 => format!("SELECT replace_partition({token}, {rows}, finish => false)"),
        11 => format!("SELECT backfill_finish({token})"),
        12..=13 => format!(
            "SELECT backfill_approve(plan_id, windows) FROM backfill_plan('daily', '{since}', '{until}', 'x', code_version => {version}) WHERE plan_id > 0"
        ),
        14..=15 => format!(
            "SELECT backfill_approve(plan_id, windows) FROM backfill_plan('daily', '2024-02-01', '{until}', 'x', code_version => {version}, publish => 'together') WHERE plan_id > 0"
        ),
        16 => format!("SELECT backfill_publish({plan})"),
        17 => format!("SELECT backfill_cancel({plan}, 'x')"),
        18 => format!("SELECT window_adopt('daily', '{since}', '{until}', {version}, 'x')"),
        _ if dice.roll(8) > 0 => format!("SELECT backfill_release({token})"),
        _ => "SELECT version_compatible('daily', 'v1', 'v2', 'x')".to_owned(),
    }
}

#[test]
fn no_order_of_calls_makes_a_mixture() {
    for seed in [1, 2] {
        let (_database, mut session) = january("refuse");
        session.run("SELECT backfill_cancel(1, 'x')");
        let mut dice = Dice(seed);
        let mut before = 0;
        let mut worked = 0;
        let mut refused = 0;
        for n in 0..400 {
            let sql = step(&mut session, &mut dice);
            match session.try_run(&sql) {
                Ok(()) => worked += 1,
                Err(failure) => refused += i32::from(failure.sqlstate == "BF007"),
            }
            let now = classes(&mut session);
            assert!(now <= before.max(1), "seed {seed}, step {n}: {sql}");
            before = now;
        }
        let published = session.count("backfill.slice_history");
        assert!(
            worked > 100 && refused > 0 && published > 5,
            "seed {seed}: {worked} worked, {refused} were refused, {published} published"
        );
    }
}
