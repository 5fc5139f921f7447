//! Rows that were refused: accepted, discarded, swept.

use crate::support::{Calls, Lease, NOTING, Plan, daily};
use pgrx_tests::{Database, Session, assert_sqlstate};

/// An approved plan.
fn planned(session: &mut Session, arguments: &str) -> Plan {
    let plan = session.draft(arguments);
    session.approve(plan).unwrap();
    plan
}

/// The lease of a window in a plan of its own, refused with so many rows in quarantine.
fn refused(session: &mut Session, day: u32, rows: u32) -> Lease {
    let until = day + 1;
    planned(session, &format!("'2024-01-{day:02}', '2024-01-{until:02}', 'test'"));
    let lease = session.lease();
    stage(session, lease.token, day, rows);
    session.run(&format!("SELECT backfill_fail({}, 'too few', sqlstate => 'BF006')", lease.token));
    lease
}

fn stage(session: &mut Session, token: i64, day: u32, rows: u32) {
    session.run(&format!(
        "SELECT backfill_stage({token});
         INSERT INTO backfill.stage_{token}
         SELECT '2024-01-{day:02}Z'::timestamptz + n * interval '1 minute', {token} FROM generate_series(1, {rows}) n"
    ));
}

fn accept(token: i64) -> String {
    format!("SELECT rows, inserted, deleted, changed FROM quarantine_accept({token}, 'the shop was closed')")
}

fn in_quarantine(session: &mut Session) -> Vec<i64> {
    session.column("SELECT token FROM backfill.quarantine ORDER BY token", &[])
}

/// The rows of the target, by the token that they were made under.
fn facts(session: &mut Session) -> Vec<String> {
    session.lines("SELECT token, count(*) FROM facts GROUP BY token ORDER BY token")
}

#[test]
fn accepted_rows_are_the_slice_under_a_new_token() {
    let database = daily("");
    let mut session = database.connect();
    session.run("INSERT INTO facts SELECT '2024-01-01 01:00Z', 0 FROM generate_series(1, 50)");
    let lease = refused(&mut session, 1, 3);
    let plan = lease.plan_id.unwrap();
    assert_eq!(session.lines("SELECT state, failed FROM backfill.plans"), ["partial|1"]);

    assert_eq!(session.lines(&accept(lease.token)), ["3|3|50|t"]);
    assert_eq!(facts(&mut session), [format!("{}|3", lease.token)]);
    assert_eq!(
        session.lines(
            "SELECT token > $1, plan_id, rows, allow_shrink, code_version IS NOT DISTINCT FROM NULL FROM backfill.slices"
                .replace("$1", &lease.token.to_string())
                .as_str()
        ),
        [format!("t|{plan}|3|the shop was closed|t")]
    );
    assert_eq!(
        session.lines("SELECT outcome, worker IS NULL FROM backfill.runs ORDER BY token"),
        ["refused|f", "done|t"]
    );
    assert_eq!(session.lines("SELECT state, failed FROM backfill.plans"), ["completed|0"]);
    assert_eq!(session.lines("SELECT count(*) FROM backfill.stages"), ["0"]);
    assert_eq!(session.lines("SELECT in_use FROM backfill.pools WHERE pool = 'backfill'"), ["0"]);
    assert_sqlstate!(session.try_run(&accept(lease.token)), "42704");
}

#[test]
fn what_was_handed_out_again_closed_or_planned_is_not_accepted() {
    let database = daily("");
    let mut session = database.connect();
    let lease = refused(&mut session, 1, 1);
    let accept = accept(lease.token);

    session.run("SELECT window_lock('daily', '2024-01-01', '2024-01-02', 'the books are closed')");
    let failure = assert_sqlstate!(session.try_run(&accept), "55000");
    assert!(failure.detail.contains("locked"), "{failure}");
    session.run("SELECT window_unlock('daily', '2024-01-01', '2024-01-02', 'open again')");

    let other = planned(&mut session, "'2024-01-01', '2024-01-02', 'once more'").id;
    let failure = assert_sqlstate!(session.try_run(&accept), "BF009");
    assert!(failure.message.contains(&format!("plan {other} owns")), "{failure}");

    let newer = session.lease();
    let failure = assert_sqlstate!(session.try_run(&accept), "BF001");
    assert!(failure.detail.contains(&newer.token.to_string()), "{failure}");
    session.replace(newer.token).unwrap();
    assert_sqlstate!(session.try_run(&accept), "BF001");
    assert_eq!(facts(&mut session), [format!("{}|4", newer.token)]);
    assert_eq!(in_quarantine(&mut session), [lease.token], "it is still there to be looked at");
}

#[test]
fn a_cancelled_plan_s_rows_are_accepted_as_nobody_s_plan() {
    let database = daily("");
    let mut session = database.connect();
    planned(&mut session, "'2024-01-01', '2024-01-05', 'test'");
    let lease = session.lease();
    stage(&mut session, lease.token, 1, 2);
    session.run(&format!("SELECT backfill_fail({}, 'few', sqlstate => 'BF006')", lease.token));
    session.run(&format!("SELECT backfill_cancel({}, 'enough')", lease.plan_id.unwrap()));
    assert_eq!(session.lines(&accept(lease.token)), ["2|2|0|t"]);
    assert_eq!(session.lines("SELECT window_key, plan_id IS NULL FROM backfill.slices"), ["2024-01-01|t"]);
}

#[test]
fn rows_outside_the_window_are_never_accepted() {
    let database = daily("");
    let mut session = database.connect();
    let lease = refused(&mut session, 1, 1);
    session.run(&format!("INSERT INTO backfill.stage_{} VALUES ('2024-01-02Z', 0)", lease.token));
    assert_sqlstate!(session.try_run(&accept(lease.token)), "BF005");
    assert_eq!(in_quarantine(&mut session), [lease.token]);
    assert_eq!(session.lines("SELECT outcome FROM backfill.runs"), ["refused"]);
}

#[test]
fn a_claim_that_is_not_committed_is_not_waited_for() {
    let database = daily("");
    let [mut person, mut worker] = [(); 2].map(|()| database.connect());
    let lease = refused(&mut person, 1, 1);
    planned(&mut person, "'2024-01-01', '2024-01-02', 'once more'");
    worker.run("BEGIN");
    worker.lease();
    let failure = assert_sqlstate!(person.try_run(&accept(lease.token)), "40001");
    assert!(failure.message.contains("2024-01-01"), "{failure}");
    worker.run("ROLLBACK");
}

#[test]
fn a_claim_does_not_wait_for_an_acceptance() {
    let database = daily("max_attempts => 5, retry_delay => '0'");
    let [mut person, mut worker] = [(); 2].map(|()| database.connect());
    planned(&mut person, "'2024-01-01', '2024-01-02', 'test'");
    let lease = person.lease();
    stage(&mut person, lease.token, 1, 1);
    person.run(&format!("SELECT backfill_fail({}, 'odd')", lease.token));
    person.run(&format!("BEGIN; {}", accept(lease.token)));
    assert_eq!(worker.claim(), None);
    person.run("COMMIT");
    assert_eq!(worker.claim(), None, "it is done");
    assert_eq!(worker.lines("SELECT state FROM backfill.plans"), ["completed"]);
}

#[test]
fn an_accepted_window_lets_those_behind_it_go_on() {
    let database = daily("depends_on_past => true");
    let mut session = database.connect();
    planned(&mut session, "'2024-01-01', '2024-01-04', 'test', ordering => 'sequential'");
    let lease = session.lease();
    stage(&mut session, lease.token, 1, 1);
    session.run(&format!("SELECT backfill_fail({}, 'few', sqlstate => 'BF006')", lease.token));
    assert_eq!(session.claim(), None);
    session.run(&accept(lease.token));
    let second = session.lease();
    assert_eq!(second.key, "2024-01-02");

    // Nothing is accepted beside a lease, nor before what it rests on.
    stage(&mut session, second.token, 2, 1);
    session.run(&format!("SELECT backfill_fail({}, 'few', sqlstate => 'BF006')", second.token));
    planned(&mut session, "'2024-01-01', '2024-01-02', 'the first once more', ordering => 'sequential'");
    let failure = assert_sqlstate!(session.try_run(&accept(second.token)), "55000");
    assert!(failure.detail.contains("not settled"), "{failure}");
    let first = session.lease();
    assert_sqlstate!(session.try_run(&accept(second.token)), "40001");
    session.replace(first.token).unwrap();
    session.run(&accept(second.token));
    assert_eq!(session.lease().key, "2024-01-03");
}

#[test]
fn discarded_rows_are_gone_and_whoever_reads_them_is_not_waited_for() {
    let database = daily("");
    let [mut person, mut reader] = [(); 2].map(|()| database.connect());
    let lease = refused(&mut person, 1, 7);
    let discard = format!("SELECT quarantine_discard({})", lease.token);
    reader.run(&format!("BEGIN; TABLE backfill.stage_{}", lease.token));
    assert_sqlstate!(person.try_run(&discard), "40001");
    reader.run("COMMIT");
    assert_eq!(person.lines(&discard), ["7"]);
    assert_sqlstate!(person.try_run(&discard), "42704");
    assert_eq!(person.lines(&format!("SELECT to_regclass('backfill.stage_{}') IS NULL", lease.token)), ["t"]);
    assert_eq!(
        person.lines("SELECT outcome, error FROM backfill.runs"),
        ["refused|too few"],
        "the attempt stays on record"
    );
}

/// Leases of one plan, with a stage each.
fn staged(database: &Database, n: usize) -> Vec<Lease> {
    let mut session = database.connect();
    session.run("SELECT pool_define('backfill', 16)");
    planned(&mut session, "'2024-01-01', '2024-01-20', 'test', concurrency => 16");
    let leases = session.leases(n);
    leases.iter().for_each(|lease| {
        session.run(&format!("SELECT backfill_stage({})", lease.token));
    });
    leases
}

fn stages(session: &mut Session) -> Vec<String> {
    session.lines("SELECT window_key, state FROM backfill.stages ORDER BY token")
}

#[test]
fn stages_of_attempts_that_ended_are_swept_and_those_in_use_are_left() {
    let database = daily("");
    let leases = staged(&database, 5);
    let [mut person, mut worker] = [(); 2].map(|()| database.connect());
    let [ref finished, ref skipped, ref kept, ref read, ref viewed] = leases[..] else { unreachable!() };
    person.call("finish", finished.token);
    person.run("SELECT window_skip('daily', '2024-01-02', '2024-01-03', 'why')");
    person.run(&format!("SELECT backfill_fail({}, 'why', sqlstate => 'BF006')", kept.token));
    person.call("release", read.token);
    person.call("release", viewed.token);
    person.run(&format!("CREATE VIEW mine AS TABLE backfill.stage_{}", viewed.token));
    worker.run(&format!("BEGIN; TABLE backfill.stage_{}", read.token));
    assert_eq!(
        stages(&mut person),
        [
            format!("{}|dead", finished.key),
            format!("{}|dead", skipped.key),
            format!("{}|quarantined", kept.key),
            format!("{}|dead", read.key),
            format!("{}|dead", viewed.key),
        ]
    );
    person.run("BEGIN");
    assert_eq!(person.lines("SELECT * FROM backfill_sweep()"), ["2|2"]);
    // Whoever swept holds nothing of what is left over.
    worker.run("COMMIT; SET lock_timeout = '50ms'; TABLE mine");
    person.run("COMMIT");
    person.run("DROP VIEW mine");
    assert_eq!(person.lines("SELECT * FROM backfill_sweep()"), ["2|0"]);
    assert_eq!(stages(&mut person), [format!("{}|quarantined", kept.key)]);

    // Thirty days later.
    person.run("UPDATE backfill.stage_data SET quarantined_at = now() - interval '30 days 1 second'");
    assert_eq!(person.lines("SELECT kept_until < now() FROM backfill.quarantine"), ["t"]);
    assert_eq!(person.lines("SELECT * FROM backfill_sweep()"), ["1|0"]);
    assert_eq!(
        person.lines("SELECT count(*) FROM pg_class WHERE relname LIKE 'stage\\_%' AND relkind = 'r' AND relname <> 'stage_data'"),
        ["0"]
    );
}

#[test]
fn an_overdue_lease_keeps_its_stage_until_it_is_taken_over() {
    let database = daily("lease_for => '1 second', max_attempts => 9");
    let mut session = database.connect();
    planned(&mut session, "'2024-01-01', '2024-01-02', 'test'");
    let first = session.lease();
    stage(&mut session, first.token, 1, 2);
    assert_eq!(stages(&mut session), ["2024-01-01|loading"]);
    session.let_expire(first.token);
    assert_eq!(session.lines("SELECT * FROM backfill_sweep()"), ["0|0"]);
    let second = session.lease();
    assert_ne!(second.token, first.token);
    // Whoever makes a stage makes room first.
    stage(&mut session, second.token, 1, 1);
    assert_eq!(
        session.lines("SELECT token, state FROM backfill.stages"),
        [format!("{}|loading", second.token)]
    );
}

#[test]
fn sizes_are_shown_and_nobody_is_waited_for() {
    let database = daily("");
    let [mut person, mut worker] = [(); 2].map(|()| database.connect());
    planned(&mut person, "'2024-01-01', '2024-01-02', 'test'");
    let lease = person.lease();
    stage(&mut person, lease.token, 1, 1000);
    let bytes = "SELECT bytes FROM backfill.stages";
    assert!(person.one::<i64>(bytes, &[]) >= 40_000);
    worker.run(&format!("BEGIN; TRUNCATE backfill.stage_{}", lease.token));
    assert_eq!(person.one::<Option<i64>>(bytes, &[]), None);
    worker.run("COMMIT");
    assert_eq!(person.one::<i64>(bytes, &[]), 0);
}

#[test]
fn rows_that_an_audit_refuses_are_kept_and_a_person_may_accept_them() {
    let database = daily("query => 'SELECT $1 + interval ''1 hour'' * n, n FROM generate_series(1, 3) n'");
    let mut session = database.connect();
    session.run("SELECT pipeline_audit('daily', 'enough', 'SELECT count(*) > 3 FROM slice')");
    planned(&mut session, "'2024-01-01', '2024-01-02', 'test'");
    session.run("CALL backfill_work('here')");
    assert_eq!(session.lines("SELECT state FROM backfill.plans"), ["partial"]);
    assert_eq!(session.state("2024-01-01"), "refused");
    let kept = session
        .lines("SELECT rows, sqlstate, reason LIKE '%audit \"enough\" refuses%' FROM backfill.quarantine");
    assert_eq!(kept, ["3|BF006|t"]);
    let token = in_quarantine(&mut session)[0];
    assert_eq!(session.lines(&accept(token)), ["3|3|0|t"]);
    assert_eq!(session.state("2024-01-01"), "done");
}

#[test]
fn an_acceptance_waits_for_a_reader_no_longer_than_others_can_wait_for_it() {
    let database = daily("");
    let [mut session, mut reader] = [(); 2].map(|()| database.connect());
    let lease = refused(&mut session, 1, 3);
    reader.run(&format!("BEGIN; SELECT count(*) FROM backfill.stage_{}", lease.token));
    assert_sqlstate!(session.try_run(&accept(lease.token)), "55P03");
    reader.run("COMMIT");
    session.run(&accept(lease.token));
}

#[test]
fn what_may_wait_for_a_worker_does_not_follow_a_decision() {
    let database = daily("");
    let mut session = database.connect();
    let lease = refused(&mut session, 1, 3);
    let calls = [
        accept(lease.token),
        "SELECT fence_protect('facts')".into(),
        "SELECT fence_unprotect('facts')".into(),
    ];
    let decisions = [
        "SELECT window_lock('daily', '2024-02-01', '2024-02-02', 'test')",
        "SELECT pool_pause('backfill', 'test')",
    ];
    for (call, decision) in calls.iter().flat_map(|call| decisions.map(|decision| (call, decision))) {
        session.run(&format!("BEGIN; {decision}"));
        let failure = assert_sqlstate!(session.try_run(call), "55000");
        assert!(failure.message.contains("cannot follow a decision"), "{failure}");
        session.run("ROLLBACK");
        session.run(&format!("BEGIN; SAVEPOINT s; {decision}; ROLLBACK TO s; {call}; ROLLBACK"));
        session.run(&format!("BEGIN; {call}; {decision}; ROLLBACK"));
    }
}

#[test]
fn a_stage_that_something_depends_on_is_named_with_it() {
    let database = daily("");
    let mut session = database.connect();
    let kept = refused(&mut session, 1, 3).token;
    planned(&mut session, "'2024-01-02', '2024-01-03', 'test'");
    let token = session.lease().token;
    stage(&mut session, token, 2, 3);
    for stage in [kept, token] {
        session.run(&format!("CREATE VIEW looked_at_{stage} AS SELECT * FROM backfill.stage_{stage}"));
    }
    for (token, call) in [
        (kept, accept(kept)),
        (kept, format!("SELECT quarantine_discard({kept})")),
        (token, format!("SELECT replace_partition({token})")),
    ] {
        let failure = assert_sqlstate!(session.try_run(&call), "55000");
        assert!(failure.message.contains(&format!("backfill.stage_{token}")), "{failure}");
        assert!(failure.hint.starts_with(&format!("Drop view public.looked_at_{token}, then")), "{failure}");
    }
    session.run(&format!("DROP VIEW looked_at_{kept}, looked_at_{token}"));
    session.run(&accept(kept));
    session.run(&format!("SELECT replace_partition({token})"));
}

#[test]
fn triggers_find_their_names_by_the_search_path_of_whoever_accepts() {
    let database = daily("");
    let mut session = database.connect();
    session.run(NOTING);
    let lease = refused(&mut session, 1, 3);
    session.run(&accept(lease.token));
    assert_eq!(session.count("noted"), 3);
}
