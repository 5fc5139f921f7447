//! The ledger outlives its server: dump and restore, a standby, a promotion.

use crate::calls::{CALLS, MEMBER_PROC, World, claim, ledger};
use crate::tour::ident;
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate, wait_until};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

/// Runs a program with something to read, and returns what it wrote.
#[track_caller]
fn pipe(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("it is piped");
    let output = thread::scope(|scope| {
        // What it does not read is its own affair: its exit status says how it went.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    });
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaints}");
    output.stdout
}

/// What pg_dump writes about a database.
#[track_caller]
pub fn dump(database: &Database, arguments: &[&str]) -> Vec<u8> {
    pipe(database.command("pg_dump").args(arguments), &[])
}

const STRICTLY: [&str; 4] = ["-X", "-q", "-v", "ON_ERROR_STOP=1"];

/// A new database made from a dump, as strictly as psql can.
#[track_caller]
pub fn restored(dump: &[u8]) -> Database {
    let database = Cluster::shared().empty_database();
    pipe(database.command("psql").args(STRICTLY), dump);
    database
}

/// A database in which everything that the ledger can hold has happened.
struct Life {
    database: Database,
    /// Open leases: one that writes into its stage, one that was heard of again.
    open: [i64; 2],
}

impl Life {
    fn new() -> Self {
        let database = Cluster::shared().database();
        let [owner, worker] = ["owner", "worker"].map(|name| database.role(name));
        let mut admin = database.connect();
        admin.run(&format!(
            "CREATE TABLE clicks (at timestamptz NOT NULL, who text);
             CREATE SCHEMA \"The owner's\" AUTHORIZATION {owner};
             CREATE TABLE \"The owner's\".days (day date NOT NULL, made_by text);
             ALTER TABLE \"The owner's\".days OWNER TO {owner};
             GRANT EXECUTE ON FUNCTION pipeline_define TO {owner};
             SET ROLE {owner};
             SELECT pipeline_define('days', '1 month', '2023-01-01', target => '\"The owner''s\".days',
                                    slice_column => 'day', query => 'SELECT $1::date, current_user::text',
                                    on_mixture => 'refuse');
             SELECT pipeline_grant('days', '{worker}', 'work');
             RESET ROLE;
             SELECT pool_define('nightly', 4);
             SELECT pipeline_define('clicks', '1 day', '2024-01-01', target => 'clicks', slice_column => 'at',
                time_zone => 'America/New_York', query => 'SELECT $1, ''x''', pool => 'nightly', retry_delay => '0',
                keep_previous => '99 years', on_impure => 'allow');
             SELECT pipeline_define('outside', '1 hour', '2024-01-01', code_version => 'v1');
             SELECT pipeline_pause('outside', 'not yet');
             SELECT window_skip('outside', '2024-01-01', '2024-01-01 02:00', 'too early');
             SELECT pipeline_alter('outside', '{{\"cadence\": \"1 day\", \"switch_at\": \"2024-01-02\"}}');
             SELECT pipeline_alter('outside', '{{\"start_at\": \"2023-12-31\"}}');
             SELECT window_skip('outside', '2024-01-02', '2024-01-03', 'nothing there');
             SELECT pipeline_alter('outside', '{{\"cadence\": \"1 month\", \"time_zone\": \"Europe/London\",
                                                \"start_at\": \"2024-01-01\", \"switch_at\": \"2024-02-01\"}}');
             SELECT pipeline_define('gone', '1 day', '2024-01-01');
             SELECT pipeline_drop('gone');"
        ));
        admin.run(
            "SELECT backfill_plan('clicks', '2024-01-01', '2024-01-11', 'history', pool => 'nightly', expect => 10);
             SELECT backfill_plan('days', '2023-01-01', '2023-04-01', 'history', expect => 3);
             SELECT backfill_plan('clicks', '2024-03-01', '2024-03-03', 'wrong', expect => 2);
             SELECT backfill_cancel(3, 'why')",
        );
        admin.run("CALL backfill_work(pipelines => ARRAY['clicks'], max_windows => 3)");
        admin.run("CALL backfill_work(pipelines => ARRAY['days'], max_windows => 1)");
        // The first window again, by other code.
        admin.run(
            "SELECT pipeline_alter('clicks', '{\"query\": \"SELECT $1, ''y''\"}');
             SELECT backfill_cancel(1, 'the code was wrong');
             SELECT backfill_plan('clicks', '2024-01-01', '2024-01-11', 'history', pool => 'nightly', expect => 10);
             SELECT window_skip('clicks', '2024-02-02', '2024-02-03', 'holiday');
             SELECT window_lock('clicks', '2024-02-10', '2024-02-12', 'closed');
             SELECT window_unlock('clicks', '2024-02-11', '2024-02-12', 'not that one');
             INSERT INTO clicks VALUES ('2024-02-20 12:00-05', 'old');
             SELECT window_adopt('clicks', '2024-02-20', '2024-02-21', 'legacy', 'the old job made it');
             SELECT version_compatible('clicks', 'legacy', max(code_version), 'the old job was right')
             FROM backfill.versions WHERE pipeline = 'clicks' AND code_version LIKE 'sql:%';
             SELECT window_mark_stale('clicks', '2024-02-20', '2024-02-21', 'late data');
             SELECT backfill_plan('clicks', '2024-02-01', '2024-02-04', 'a draft')",
        );
        admin.run("CALL backfill_work(pipelines => ARRAY['clicks'], max_windows => 1)");
        admin.run("SELECT backfill_verify('days', '2023-01-01', '2023-02-01')");
        admin.run(
            "SELECT replace_partition(token)
             FROM backfill_claim('w', pipelines => ARRAY['days'], window_key => '2023-01-01')",
        );
        let refused = claim(&mut admin, "clicks");
        admin.run(&format!(
            "SELECT backfill_stage({refused}); INSERT INTO backfill.stage_{refused} VALUES ('2024-01-02', 'bad');
             SELECT backfill_fail({refused}, 'boom', sqlstate => 'BF005')"
        ));
        let retried = claim(&mut admin, "clicks");
        admin.run(&format!("SELECT backfill_fail({retried}, 'boom')"));
        admin.run("SELECT window_skip('clicks', '2024-01-10', '2024-01-11', 'holiday')");
        let open = [(); 2].map(|()| claim(&mut admin, "clicks"));
        // Effects of each state.
        admin.run(&format!(
            "SELECT effect_emit({}, 'mail');
             SELECT backfill_plan('days', '2023-05-01', '2023-06-01', 'and tell them', effects => true, expect => 1);
             SELECT effect_emit(token, 'mail', '{{\"n\": 1.50}}', key), effect_emit(token, 'other')
             FROM (SELECT token FROM backfill_claim('w', pipelines => ARRAY['days'], window_key => '2023-05-01')) l,
                  unnest(ARRAY['a', 'b']) key",
            open[0]
        ));
        admin.run(
            "SELECT backfill_finish(token) FROM backfill.leases WHERE window_key = '2023-05-01';
             SELECT effect_done(id) FROM effect_take('mail');
             SELECT backfill_plan('days', '2023-06-01', '2023-07-01', 'and tell them', effects => true, expect => 1);
             SELECT effect_emit(token, 'mail'), backfill_fail(token, 'boom', false)
             FROM backfill_claim('w', pipelines => ARRAY['days'], window_key => '2023-06-01')",
        );
        admin.run(&format!(
            "SELECT backfill_stage({0}); INSERT INTO backfill.stage_{0} VALUES ('2024-01-04', 'half');
             SELECT backfill_heartbeat({1})",
            open[0], open[1]
        ));
        Self { database, open }
    }
}

/// The ledger without what is not dumped: heartbeats are of leases that are void in a restored database.
fn kept(database: &Database) -> Vec<String> {
    let mut held = ledger(&mut database.connect());
    held.retain(|line| !line.starts_with("backfill.heartbeat_data"));
    held
}

#[test]
fn a_dump_keeps_the_whole_ledger() {
    let life = Life::new();
    let expected = kept(&life.database);
    assert!(expected.len() > 60, "{expected:#?}");

    let plain = restored(&dump(&life.database, &[]));
    assert_eq!(kept(&plain), expected, "pg_dump | psql");

    let custom = Cluster::shared().empty_database();
    let archive = dump(&life.database, &["-Fc"]);
    let mut pg_restore = custom.command("pg_restore");
    pipe(pg_restore.args(["--exit-on-error", "--dbname", custom.name()]), &archive);
    assert_eq!(kept(&custom), expected, "pg_dump -Fc | pg_restore");

    let apart = restored(&dump(&life.database, &["--schema-only"]));
    let data = dump(&life.database, &["--data-only"]);
    pipe(apart.command("psql").args(STRICTLY), &data);
    assert_eq!(kept(&apart), expected, "--schema-only, then --data-only");
}

#[test]
fn a_restored_database_answers_as_the_old_one_did() {
    let life = Life::new();
    let new = restored(&dump(&life.database, &[]));
    let [mut old, mut new] = [&life.database, &new].map(Database::connect);
    for view in [
        "SELECT * FROM backfill.pipelines",
        "SELECT * FROM backfill.grids",
        "SELECT * FROM pipeline_windows('outside', NULL, '2024-06-01')",
        // When a plan ends depends on the clock, and on its leases, which are void in the copy.
        "SELECT to_jsonb(p) - 'eta' - 'running' FROM backfill.plans p",
        "SELECT * FROM backfill.plan_declined",
        "SELECT * FROM backfill.slices",
        "SELECT * FROM backfill.window_marks",
        "SELECT * FROM backfill.slice_history",
        "SELECT * FROM backfill.versions",
        "SELECT * FROM backfill.compatible_versions",
        "SELECT * FROM backfill.version_mix",
        "SELECT * FROM backfill.quarantine",
        "SELECT * FROM backfill.kept_slices",
        "SELECT * FROM backfill.verifications",
        "SELECT * FROM backfill.effects",
        "SELECT * FROM backfill.runs WHERE outcome <> 'revoked'",
        "SELECT * FROM backfill.windows WHERE state <> 'leased'",
        "SELECT pipeline, oldest FROM backfill.missed",
        "SELECT * FROM backfill_explain(5)",
        "SELECT pool, slots FROM backfill.pools",
    ] {
        let [mut before, mut after] = [&mut old, &mut new].map(|session| session.lines(view));
        before.sort();
        after.sort();
        assert!(!before.is_empty(), "{view}");
        let open = |line: &String| life.open.iter().any(|token| line.contains(&token.to_string()));
        before.retain(|line| !open(line));
        after.retain(|line| !open(line));
        assert_eq!(after, before, "{view}");
    }
}

/// Asserts that the token may do nothing at all.
#[track_caller]
fn assert_void(session: &mut Session, token: i64) {
    for call in [
        "fence_check",
        "backfill_heartbeat",
        "backfill_finish",
        "backfill_release",
        "backfill_stage",
        "replace_partition",
    ] {
        let failure = session.failure(&format!("SELECT {call}({token})"));
        assert!(["BF001", "BF002"].contains(&failure.sqlstate.as_str()), "{call}: {failure}");
    }
    let failure = session.failure(&format!("SELECT backfill_fail({token}, 'why')"));
    assert!(["BF001", "BF002"].contains(&failure.sqlstate.as_str()), "{failure}");
}

#[test]
fn the_leases_of_the_dump_are_void_from_the_start() {
    let life = Life::new();
    let new = restored(&dump(&life.database, &[]));
    let mut session = new.connect();
    life.open.iter().for_each(|token| assert_void(&mut session, *token));
    assert_eq!(session.lines("SELECT token FROM backfill.leases"), [""; 0]);
    let running = "SELECT sum(running) FROM backfill.plans";
    assert_eq!(session.lines(running), ["0"]);
    assert_eq!(life.database.connect().lines(running), ["2"]);
}

#[test]
fn the_windows_of_the_dumps_leases_are_claimed_again_under_higher_tokens() {
    let life = Life::new();
    let new = restored(&dump(&life.database, &[]));
    let mut session = new.connect();
    let newest: i64 = session.one("SELECT max(token) FROM backfill.runs", &[]);
    let windows = |session: &mut Session, tokens: &[i64]| -> Vec<String> {
        session.column("SELECT window_key FROM backfill.runs WHERE token = ANY ($1) ORDER BY 1", &[&tokens])
    };
    // Their windows keep their place, so that they are the first to be claimed.
    let tokens = [(); 2].map(|()| claim(&mut session, "clicks"));
    assert!(newest < tokens[0] && tokens[0] < tokens[1], "{newest} {tokens:?}");
    assert_eq!(windows(&mut session, &tokens), windows(&mut session, &life.open));
    let attempts: Vec<i32> = session.column("SELECT attempt FROM backfill.leases", &[]);
    assert_eq!(attempts, [1, 1], "a restore costs no attempt");
    life.open.iter().for_each(|token| assert_void(&mut session, *token));

    let outcomes: Vec<String> =
        session.column("SELECT outcome FROM backfill.runs WHERE token = ANY ($1)", &[&life.open.as_slice()]);
    assert_eq!(outcomes, ["revoked", "revoked"]);
}

#[test]
fn plans_go_on_by_themselves_where_the_dump_left_them() {
    let life = Life::new();
    let new = restored(&dump(&life.database, &[]));
    let mut session = new.connect();
    session.run("CALL backfill_work()");
    // Of ten windows one was refused and one skipped before the dump.
    assert_eq!(
        session.lines("SELECT plan_id, state, done, failed, skipped FROM backfill.plans ORDER BY plan_id"),
        [
            "1|cancelled|3|0|1",
            "2|completed|3|0|0",
            "3|cancelled|0|0|0",
            "4|partial|8|1|1",
            "5|draft|0|0|0",
            "6|completed|1|0|0",
            "7|completed|1|0|0",
            "8|partial|0|1|0"
        ]
    );
    assert_eq!(
        session.lines(
            "SELECT (at AT TIME ZONE 'America/New_York')::date, who FROM clicks WHERE who <> 'old' ORDER BY 1"
        ),
        (1..10).map(|day| format!("2024-01-0{day}|{}", if day == 2 { "x" } else { "y" })).collect::<Vec<_>>()
    );
    session.run("SELECT backfill_approve(5, 2)");
    session.run("CALL backfill_work()");
    let plan = "SELECT state FROM backfill.plans WHERE plan_id = 5";
    assert_eq!(session.one::<String>(plan, &[]), "completed");
}

#[test]
fn a_role_that_is_missing_stops_neither_the_restore_nor_the_pipelines_of_others() {
    let life = Life::new();
    let dumps = [dump(&life.database, &[]), dump(&life.database, &["--no-owner", "--no-acl"])];
    let runs = life.database.connect().lines("SELECT * FROM backfill.run_data ORDER BY token");
    let owner = format!("{}_owner", life.database.name());
    // The roles go with it.
    drop(life);
    let strict = restored(&dumps[1]);
    let lenient = Cluster::shared().empty_database();
    pipe(lenient.command("psql").args(["-X", "-q"]), &dumps[0]);
    for new in [strict, lenient] {
        let mut session = new.connect();
        assert_eq!(session.lines("SELECT * FROM backfill.run_data ORDER BY token"), runs);
        assert_eq!(session.one::<i64>("SELECT count(*) FROM backfill.pipelines", &[]), 3);
        session.run("CALL backfill_work()");
        assert_eq!(
            session
                .lines("SELECT pipeline, state FROM backfill.plans WHERE plan_id IN (2, 4) ORDER BY plan_id"),
            ["days|running", "clicks|partial"]
        );
        let failed =
            "SELECT DISTINCT sqlstate, error FROM backfill.runs WHERE plan_id = 2 AND outcome = 'failed'";
        assert_eq!(session.lines(failed), [format!("42704|role \"{owner}\" does not exist")]);
    }
}

#[test]
fn a_dump_of_any_schema_can_be_restored() {
    for schema in ["My Schema", "backfill"] {
        let old = Cluster::shared().empty_database();
        old.connect().run(&format!(
            "CREATE SCHEMA {0}; CREATE EXTENSION pg_backfill SCHEMA {0}; SET search_path = {0};
             SELECT pipeline_define('clicks', '1 day', '2024-01-01');
             SELECT backfill_plan('clicks', '2024-01-01', '2024-01-11', 'history', expect => 10)",
            ident(schema)
        ));
        let new = restored(&dump(&old, &[]));
        let mut session = new.connect();
        session.run(&format!("SET search_path = {}", ident(schema)));
        claim(&mut session, "clicks");
        assert_eq!(session.one::<i64>("SELECT count(*) FROM backfill.leases", &[]), 1, "{schema}");
    }
}

#[test]
fn a_dump_waits_for_no_worker_and_holds_nothing_of_what_was_not_committed() {
    let life = Life::new();
    let [mut claiming, mut writing] = [(); 2].map(|()| life.database.connect());
    claiming.run("BEGIN");
    let uncommitted = claim(&mut claiming, "clicks");
    writing.run(&format!("BEGIN; SELECT replace_partition({})", life.open[1]));

    let new = restored(&dump(&life.database, &["--lock-wait-timeout=1s"]));
    let mut session = new.connect();
    let count = "SELECT count(*) FROM backfill.runs WHERE token = $1";
    assert_eq!(session.one::<i64>(count, &[&uncommitted]), 0);
    session.run("CALL backfill_work()");
    assert_eq!(
        session.lines("SELECT state, done, failed, skipped FROM backfill.plans WHERE plan_id = 4"),
        ["partial|8|1|1"]
    );
    claiming.run("COMMIT");
    writing.run("COMMIT");
}

#[test]
fn a_standby_shows_everything_and_changes_nothing() {
    let primary = Cluster::private(&[]);
    let world = World::new(primary.database());
    let mut admin = world.database.connect();
    let writing: Vec<String> = admin.column(
        &format!("SELECT DISTINCT proname::text FROM pg_proc p WHERE {MEMBER_PROC} AND provolatile = 'v'"),
        &[],
    );
    let views: Vec<String> = admin.column(
        "SELECT relname::text FROM pg_class
         WHERE relnamespace = 'backfill'::regnamespace AND relkind = 'v' AND relname NOT LIKE '%\\_data'",
        &[],
    );
    let standby = primary.standby();
    let mut session = standby.connect(world.database.name());
    wait_until("the standby has the lease", || {
        session.try_one::<i64>("SELECT token FROM backfill.leases", &[]).is_ok()
    });
    for call in CALLS {
        let outcome = session.try_run(&world.sql(&call));
        // That of a trigger is PostgreSQL's to refuse.
        if ["fence_guard", "fence_look_first"].contains(&call.routine) {
            assert_sqlstate!(outcome, "25006");
        } else if writing.iter().any(|name| name == call.routine) {
            let failure = assert_sqlstate!(outcome, "25006");
            assert!(!failure.detail.is_empty() && !failure.hint.is_empty(), "{}\n{failure}", call.routine);
        } else {
            outcome.unwrap_or_else(|failure| panic!("{}\n{failure}", call.routine));
        }
    }
    for view in views {
        session.run(&format!("SELECT * FROM backfill.{view}"));
    }

    // Once it is promoted, it is another server.
    primary.crash();
    assert!(session.one::<bool>("SELECT pg_promote()", &[]));
    let token = claim(&mut session, "clicks");
    assert!(token > world.token, "{token}");
    assert_void(&mut session, world.token);
}
