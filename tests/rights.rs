//! Who may call what, what each role sees, and in whose name SQL runs.

use crate::calls::{CALLS, LEVELS, Level, MEMBER_PROC, World, claim, ledger};
use pgrx_tests::{Cluster, Database, Session, assert_sqlstate};
use std::collections::BTreeSet;

fn database() -> Database {
    Cluster::shared().database()
}

fn world() -> World {
    World::new(database())
}

impl World {
    /// A session of a role that is this to the pipeline.
    fn connect_as(&self, level: Level) -> Session {
        let mut admin = self.database.connect();
        let role = match level {
            Level::Owner => self.owner.clone(),
            Level::Superuser => "postgres".into(),
            _ => self.database.role(&format!("{level:?}").to_lowercase()),
        };
        if let Some(name) = granted(level) {
            admin.run(&format!("SELECT pipeline_grant('clicks', '{role}', '{name}')"));
        }
        self.database.connect_as(&role)
    }
}

/// What `pipeline_grant` calls it.
fn granted(level: Level) -> Option<&'static str> {
    match level {
        Level::Read => Some("read"),
        Level::Work => Some("work"),
        Level::Operate => Some("operate"),
        Level::Nobody | Level::Owner | Level::Superuser => None,
    }
}

#[test]
fn every_routine_has_an_entry_in_the_table_of_calls() {
    let routines: BTreeSet<String> = database()
        .connect()
        .column(&format!("SELECT DISTINCT proname::text FROM pg_proc p WHERE {MEMBER_PROC}"), &[])
        .into_iter()
        .collect();
    assert_eq!(routines, CALLS.iter().map(|call| call.routine.to_owned()).collect());
}

/// Makes every call as every role that may not make it, then as every role that may.
fn check_every_call(world: &World, mut sessions: Vec<(Level, Session)>) {
    let mut admin = world.database.connect();
    let before = ledger(&mut admin);
    let mut wrong = vec![];
    for (level, session) in &mut sessions {
        for call in CALLS.iter().filter(|call| *level < call.needs) {
            match session.try_run(&world.sql(call)) {
                Err(failure) if failure.sqlstate == "42501" => {}
                Err(failure) => wrong.push(format!("{level:?} in {}: {failure}", call.routine)),
                Ok(()) => wrong.push(format!("{level:?} may call {}", call.routine)),
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert_eq!(ledger(&mut admin), before, "a refused call changes nothing");

    for (level, session) in &mut sessions {
        for call in CALLS.iter().filter(|call| *level >= call.needs) {
            let sql = world.sql(call);
            // A procedure that commits cannot be tried in a transaction.
            let outcome = match call.routine {
                "backfill_work" => session.try_run(&sql),
                _ => session.try_run(&format!("BEGIN; {sql}")),
            };
            session.run("ROLLBACK");
            if let Err(failure) = outcome {
                wrong.push(format!("{level:?} may not call {}: {failure}", call.routine));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn every_call_is_open_to_its_level_and_those_above() {
    let world = world();
    let sessions = LEVELS.map(|level| (level, world.connect_as(level))).into();
    check_every_call(&world, sessions);
}

#[test]
fn every_call_checks_the_level_itself_where_execute_is_granted_to_all() {
    let world = world();
    let sessions = LEVELS.map(|level| (level, world.connect_as(level))).into();
    world.database.connect().run("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO PUBLIC");
    check_every_call(&world, sessions);
}

#[test]
fn a_claim_that_names_no_pipeline_passes_over_those_of_others() {
    let world = world();
    world.database.connect().run("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO PUBLIC");
    let count = "SELECT count(*) FROM backfill_claim('w', 3)";
    assert_eq!(world.connect_as(Level::Read).one::<i64>(count, &[]), 0);
    assert_eq!(world.connect_as(Level::Work).one::<i64>(count, &[]), 3);
}

#[test]
fn no_routine_that_writes_is_executable_by_everyone() {
    let database = database();
    let nobody = database.role("nobody");
    let open: Vec<String> = database.connect().column(
        &format!(
            "SELECT p.oid::regprocedure::text FROM pg_proc p
             WHERE {MEMBER_PROC} AND p.provolatile = 'v' AND has_function_privilege('{nobody}', p.oid, 'EXECUTE')"
        ),
        &[],
    );
    assert_eq!(open, [""; 0]);
}

#[test]
fn everyone_may_read_views_and_touch_nothing_else() {
    let world = world();
    let mut admin = world.database.connect();
    let roles = [Level::Nobody, Level::Operate, Level::Owner].map(|level| (level, world.connect_as(level)));
    admin.run(&format!("SELECT backfill_stage({})", world.token));
    for (level, mut session) in roles {
        let open = session.lines(
            "SELECT c.relname, privilege FROM pg_class c,
                unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) privilege
             WHERE c.relnamespace = 'backfill'::regnamespace AND c.relkind NOT IN ('i', 'S', 'c')
               AND NOT (c.relkind = 'v' AND c.relname NOT LIKE '%\\_data' AND privilege = 'SELECT')
               AND (has_table_privilege(c.oid, privilege)
                    OR privilege NOT IN ('DELETE', 'TRUNCATE', 'TRIGGER') AND has_any_column_privilege(c.oid, privilege))
             UNION ALL
             SELECT c.relname, privilege FROM pg_class c, unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) privilege
             WHERE c.relnamespace = 'backfill'::regnamespace AND c.relkind = 'S'
               AND has_sequence_privilege(c.oid, privilege)
             UNION ALL
             SELECT 'backfill', 'CREATE' WHERE has_schema_privilege('backfill', 'CREATE')
             ORDER BY 1, 2",
        );
        // The owner may look at refused rows, and at those that a plan has staged.
        let owners = vec!["plan_stage_4|SELECT".to_owned(), format!("stage_{}|SELECT", world.kept)];
        assert_eq!(open, if level == Level::Owner { owners } else { vec![] });
    }
}

/// The routines that a role may execute and everyone may not.
fn executable(admin: &mut Session, role: &str) -> BTreeSet<String> {
    let sql = format!(
        "SELECT DISTINCT p.proname::text FROM pg_proc p, aclexplode(p.proacl) a
         WHERE {MEMBER_PROC} AND a.privilege_type = 'EXECUTE' AND a.grantee = $1::text::regrole
           AND p.proowner <> a.grantee"
    );
    admin.column(&sql, &[&format!("\"{}\"", role.replace('"', "\"\""))]).into_iter().collect()
}

/// The routines that the level needs and everyone may not execute.
fn needed_by(admin: &mut Session, level: Level) -> BTreeSet<String> {
    let writing: BTreeSet<String> = admin
        .column(
            &format!("SELECT proname::text FROM pg_proc p WHERE {MEMBER_PROC} AND provolatile = 'v'"),
            &[],
        )
        .into_iter()
        .collect();
    let calls = CALLS.iter().filter(|call| call.needs <= level).map(|call| call.routine.to_owned());
    calls.filter(|routine| writing.contains(routine)).collect()
}

fn define_two_pipelines(admin: &mut Session) {
    admin.run("SELECT pipeline_define(name, '1 day', '2024-01-01') FROM unnest(ARRAY['a', 'b']) name");
}

#[test]
fn execute_follows_the_highest_level_that_a_role_has_anywhere() {
    let database = database();
    let role = database.role("Role's 🐘");
    let mut admin = database.connect();
    define_two_pipelines(&mut admin);
    for (call, level) in [
        ("pipeline_grant('a', $1, 'work')", Level::Work),
        ("pipeline_grant('b', $1, 'operate')", Level::Operate),
        ("pipeline_grant('a', $1, 'read')", Level::Operate),
        ("pipeline_revoke('b', $1)", Level::Read),
        ("pipeline_grant('b', $1, 'operate')", Level::Operate),
        ("pipeline_grant('b', $1, 'work')", Level::Work),
        ("pipeline_revoke('a', $1)", Level::Work),
        ("pipeline_revoke('b', $1)", Level::Nobody),
    ] {
        admin.one::<String>(&format!("SELECT {call}"), &[&role]);
        let needed = needed_by(&mut admin, level);
        assert_eq!(executable(&mut admin, &role), needed, "after {call}");
    }
}

#[test]
fn an_owner_may_execute_all_that_an_owner_needs() {
    let database = database();
    let owner = database.role("owner");
    let mut admin = database.connect();
    admin.run(&format!("GRANT EXECUTE ON FUNCTION pipeline_define TO {owner}"));
    database.connect_as(&owner).run("SELECT pipeline_define('own', '1 day', '2024-01-01')");
    let needed = needed_by(&mut admin, Level::Owner);
    assert_eq!(executable(&mut admin, &owner), needed);

    // What others grant him and take from him again is another matter.
    define_two_pipelines(&mut admin);
    for call in ["pipeline_grant('a', $1, 'read')", "pipeline_revoke('a', $1)"] {
        admin.one::<String>(&format!("SELECT {call}"), &[&owner]);
        assert_eq!(executable(&mut admin, &owner), needed, "after {call}");
    }
}

#[test]
fn grants_at_the_same_time_do_not_fail() {
    let database = database();
    let roles: Vec<String> = (0..4).map(|i| database.role(&format!("r{i}"))).collect();
    database
        .connect()
        .run("SELECT pipeline_define('p' || i, '1 day', '2024-01-01') FROM generate_series(0, 3) i");
    database.many(4, |i, session| {
        for level in ["work", "operate", "read", "work"] {
            let sql = format!("SELECT pipeline_grant('p{i}', '{}', '{level}')", roles[i]);
            session.run(&sql);
        }
    });
    let mut admin = database.connect();
    let needed = needed_by(&mut admin, Level::Work);
    for role in &roles {
        assert_eq!(executable(&mut admin, role), needed);
    }
}

/// Fills every view with rows about a pipeline of somebody who is not its reader.
fn fill_every_view(database: &Database) {
    let owner = database.role("bob");
    let mut admin = database.connect();
    admin.run(&format!(
        "CREATE TABLE clicks (at timestamptz NOT NULL);
         GRANT SELECT, INSERT, DELETE ON clicks TO {owner};
         GRANT EXECUTE ON FUNCTION pipeline_define TO {owner};
         SET ROLE {owner};
         SELECT pipeline_define('bobs', '1 day', '2024-01-01', target => 'clicks', slice_column => 'at',
                                query => 'SELECT $1', keep_previous => '1 day');
         SELECT pipeline_audit('bobs', 'some', 'SELECT count(*) > 0 FROM slice');
         RESET ROLE;
         SELECT backfill_plan('bobs', '2024-01-01', '2024-01-02', 'first', expect => 1);
         SELECT effect_emit(token, 'mail'), replace_partition(token) FROM backfill_claim('w', pipelines => ARRAY['bobs']);
         SELECT backfill_plan('bobs', '2024-01-01', '2024-01-05', 'rest', mode => 'missing', expect => 3);
         SELECT window_lock('bobs', '2024-02-01', '2024-02-02', 'closed');
         INSERT INTO backfill.version_data (pipeline_id, code_version)
         SELECT p.pipeline_id, v FROM backfill.pipeline_data p, unnest(ARRAY['v1', 'v2']) v;
         SELECT version_compatible('bobs', 'v1', 'v2', 'why')"
    ));
    let token = claim(&mut admin, "bobs");
    admin.run(&format!(
        "SELECT backfill_stage({token}); INSERT INTO backfill.stage_{token} VALUES ('2024-01-02');
         SELECT backfill_fail({token}, 'boom')"
    ));
    claim(&mut admin, "bobs");
    admin.run("SELECT backfill_plan('bobs', '2024-03-01', '2024-03-02', 'at once', publish => 'together', expect => 1)");
    admin.run(
        "SELECT backfill_verify('bobs', '2024-01-01', '2024-01-02');
         SELECT replace_partition(token)
         FROM backfill_claim('w', pipelines => ARRAY['bobs'], window_key => '2024-01-01')",
    );
    admin.run("SELECT backfill_pause(2, 'why'); SELECT fence_protect('clicks', 'log')");
    admin.run("INSERT INTO clicks VALUES ('2024-01-20')");
    admin.run(
        "SELECT window_adopt('bobs', '2024-01-20', '2024-01-21', 'legacy', 'why');
         SELECT version_compatible('bobs', 'legacy', pipeline_version('bobs'), 'why');
         SELECT backfill_verify('bobs', '2024-01-01', '2024-01-02');
         SELECT replace_partition(token)
         FROM backfill_claim('w', pipelines => ARRAY['bobs'], window_key => '2024-01-01')",
    );
}

/// Views that say nothing about any one pipeline.
const ABOUT_NO_PIPELINE: [&str; 1] = ["pools"];

#[test]
fn no_view_shows_a_pipeline_to_those_who_may_not_read_it() {
    let database = database();
    fill_every_view(&database);
    let [alice, reader] = ["alice", "reader"].map(|name| database.role(name));
    let mut admin = database.connect();
    admin.run(&format!("SELECT pipeline_grant('bobs', '{reader}', 'read')"));
    let columns = admin.rows(
        "SELECT c.relname::text, array_agg(a.attname::text) FROM pg_class c
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
         WHERE c.relnamespace = 'backfill'::regnamespace AND c.relkind IN ('v', 'm')
           AND has_table_privilege($1, c.oid, 'SELECT') AND c.relname <> ALL ($2)
         GROUP BY c.relname",
        &[&alice, &ABOUT_NO_PIPELINE.as_slice()],
    );
    assert!(columns.len() > 10, "{columns:?}");
    let mut alice = database.connect_as(&alice);
    let mut reader = database.connect_as(&reader);
    alice.run(
        "CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001
         AS $$ BEGIN RAISE NOTICE 'leaked %', $1; RETURN true; END $$",
    );
    for row in columns {
        let (view, columns): (String, Vec<String>) = (row.get(0), row.get(1));
        let count = format!("SELECT count(*) FROM backfill.{view}");
        assert!(reader.one::<i64>(&count, &[]) > 0, "{view} shows the reader nothing");
        // The planner tries a condition on one column before the view's own, if it may.
        for column in columns {
            let leaking = format!("{count} WHERE pg_temp.leak(\"{column}\"::text)");
            assert_eq!(alice.one::<i64>(&leaking, &[]), 0, "{view}");
            assert_eq!(alice.notices(), [], "{view}.{column} leaks");
        }
    }
}

#[test]
fn what_the_views_call_shows_nothing_to_those_who_may_not_read() {
    let world = world();
    let [mut nobody, mut reader] = [Level::Nobody, Level::Read].map(|level| world.connect_as(level));
    world.database.connect().run(&format!("SELECT replace_partition({})", world.token));
    for routine in ["windows_of", "missed_of", "plan_actual", "plan_eta", "window_key"] {
        let call = CALLS.iter().find(|call| call.routine == routine).expect("it has an entry");
        let shown = |session: &mut Session| session.lines(&world.sql(call)).concat();
        assert_ne!(shown(&mut reader), "", "{routine}");
        assert_eq!(shown(&mut nobody), "", "{routine}");
    }
}

#[test]
fn pools_are_shown_alike_to_all() {
    let world = world();
    // Its lease is void, and holds no slot.
    world.database.connect().run("SELECT backfill_cancel(1, 'why')");
    let [mut nobody, mut admin] = [Level::Nobody, Level::Superuser].map(|level| world.connect_as(level));
    let pools = "SELECT * FROM backfill.pools";
    assert_eq!(nobody.lines(pools), admin.lines(pools));
}

#[test]
fn a_security_definer_function_calls_with_the_rights_of_its_owner() {
    let world = world();
    world.connect_as(Level::Operate);
    let mut nobody = world.connect_as(Level::Nobody);
    let mut admin = world.database.connect();
    let name = world.database.name();
    for (owner, function) in [("operate", "lent"), ("nobody", "given_away")] {
        admin.run(&format!(
            "CREATE FUNCTION {function}() RETURNS text LANGUAGE sql SECURITY DEFINER
             RETURN pipeline_pause('clicks', 'why');
             CREATE FUNCTION {function}_view() RETURNS bigint LANGUAGE sql SECURITY DEFINER
             RETURN (SELECT count(*) FROM backfill.pipelines);
             ALTER FUNCTION {function}() OWNER TO {name}_{owner};
             ALTER FUNCTION {function}_view() OWNER TO {name}_{owner};"
        ));
    }
    admin.run("GRANT EXECUTE ON FUNCTION pipeline_pause TO PUBLIC");

    assert_sqlstate!(admin.try_run("SELECT given_away()"), "42501");
    assert_eq!(admin.one::<i64>("SELECT given_away_view()", &[]), 0);
    assert_eq!(nobody.one::<String>("SELECT lent()", &[]), "paused");
    assert_eq!(nobody.one::<i64>("SELECT lent_view()", &[]), 1);
    let by: String = admin.one("SELECT paused_by FROM backfill.pipelines", &[]);
    assert_eq!(by, format!("{name}_operate"));
}

/// Lets triggers on the target note in whose name it is written.
fn watch_writes(world: &World) {
    world.database.connect().run(
        "CREATE TABLE writes (what text, who text);
         GRANT INSERT ON writes TO PUBLIC;
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql
         AS $$ BEGIN INSERT INTO writes VALUES (TG_OP, current_user); RETURN NULL; END $$;
         CREATE TRIGGER note AFTER INSERT OR DELETE ON clicks FOR EACH ROW EXECUTE FUNCTION note();
         CREATE TABLE secret (at timestamptz, who text);",
    );
}

/// In whose name the target's rows say they were made, and in whose name they were written.
fn authors(world: &World) -> Vec<String> {
    world.database.connect().lines("SELECT who FROM clicks UNION ALL SELECT what || ' ' || who FROM writes")
}

#[test]
fn the_pipelines_query_runs_and_writes_as_its_owner() {
    let world = world();
    watch_writes(&world);
    let mut worker = world.connect_as(Level::Work);
    worker.run(&format!("SELECT replace_partition({})", world.token));
    assert_eq!(authors(&world), [world.owner.clone(), format!("INSERT {}", world.owner)]);
}

#[test]
fn backfill_work_runs_the_pipelines_query_as_its_owner() {
    let world = world();
    watch_writes(&world);
    world.connect_as(Level::Work).run("CALL backfill_work(max_windows => 1)");
    assert_eq!(authors(&world), [world.owner.clone(), format!("INSERT {}", world.owner)]);
}

#[test]
fn a_query_given_at_the_call_runs_and_writes_as_the_caller() {
    let world = world();
    watch_writes(&world);
    let mut worker = world.connect_as(Level::Work);
    let worker_name = format!("{}_work", world.database.name());
    worker
        .run(&format!("SELECT replace_partition({}, query => 'SELECT $1, current_user::text')", world.token));
    assert_eq!(authors(&world), [worker_name.clone(), format!("INSERT {worker_name}")]);
}

#[test]
fn rows_given_at_the_call_are_read_with_the_rights_of_the_caller() {
    let world = world();
    watch_writes(&world);
    let mut worker = world.connect_as(Level::Work);
    world.database.connect().run(&format!("GRANT SELECT ON secret TO {}", world.owner));
    for given in ["query => 'SELECT * FROM secret'", "staging => 'secret'"] {
        let sql = format!("SELECT replace_partition({}, {given})", world.token);
        assert_sqlstate!(worker.try_run(&sql), "42501");
    }
}

#[test]
fn whoever_sets_off_the_pipelines_query_must_be_allowed_to_write_the_target() {
    let world = world();
    let mut worker = world.connect_as(Level::Work);
    let mut admin = world.database.connect();
    admin
        .run(&format!("REVOKE ALL ON clicks FROM PUBLIC; GRANT INSERT, DELETE ON clicks TO {}", world.owner));
    for lacking in ["INSERT", "DELETE"] {
        admin.run(&format!(
            "GRANT INSERT, DELETE ON clicks TO {0}_work; REVOKE {lacking} ON clicks FROM {0}_work",
            world.database.name()
        ));
        for routine in ["replace_partition", "replace_or_keep"] {
            let failure =
                assert_sqlstate!(worker.try_run(&format!("SELECT {routine}({})", world.token)), "42501");
            assert!(failure.detail.contains(lacking), "{failure}");
        }
    }
    assert_eq!(admin.one::<i64>("SELECT count(*) FROM clicks", &[]), 0);
}

#[test]
fn rows_given_at_the_call_need_rights_on_the_target_that_an_error_names() {
    let world = world();
    let mut worker = world.connect_as(Level::Work);
    let mut admin = world.database.connect();
    let name = format!("{}_work", world.database.name());
    admin.run(&format!("REVOKE ALL ON clicks FROM PUBLIC; GRANT INSERT, DELETE ON clicks TO {name}"));
    admin.run("CREATE TABLE given AS SELECT * FROM clicks LIMIT 0; INSERT INTO given VALUES ('2024-01-01 12:00Z'); GRANT SELECT ON given TO PUBLIC");
    for given in ["query => 'SELECT $1, NULL'", "staging => 'given'"] {
        let sql = format!("SELECT replace_partition({}, {given}, finish => false)", world.token);
        let failure = assert_sqlstate!(worker.try_run(&sql), "42501");
        assert!(failure.detail.contains("needs SELECT"), "{failure}");
        assert!(failure.hint.contains("GRANT SELECT, INSERT, DELETE ON public.clicks"), "{failure}");
        admin.run(&format!("GRANT SELECT ON clicks TO {name}"));
        worker.run(&sql);
        admin.run(&format!("REVOKE SELECT ON clicks FROM {name}"));
    }
    // The pipeline's query runs as its owner, who has it.
    admin.run(&format!("GRANT SELECT, INSERT, DELETE ON clicks TO {}", world.owner));
    worker.run(&format!("SELECT replace_partition({})", world.token));
}

#[test]
fn a_live_pipeline_that_cannot_run_any_more_keeps_no_other_from_running() {
    let database = database();
    let owner = database.role("owner");
    let mut admin = database.connect();
    admin.run("CREATE TABLE source (i int)");
    let pipelines = ["fine", "orphan", "sourceless"];
    for (pipeline, role, from) in [
        (pipelines[0], "postgres", ""),
        (pipelines[1], owner.as_str(), ""),
        (pipelines[2], "postgres", "FROM source"),
    ] {
        admin.run(&format!(
            "CREATE TABLE {pipeline} (at timestamptz NOT NULL);
             GRANT SELECT, INSERT, DELETE ON {pipeline} TO {role};
             GRANT EXECUTE ON FUNCTION pipeline_define TO {role};
             SET ROLE {role};
             SELECT pipeline_define('{pipeline}', '1 second', now(), target => '{pipeline}', slice_column => 'at',
                                    query => 'SELECT $1 {from}');
             RESET ROLE"
        ));
    }
    admin.run(&format!("DROP TABLE source; DROP OWNED BY {owner}; DROP ROLE {owner}"));
    for pipeline in pipelines {
        let eligible =
            format!("SELECT count(*) > 0 FROM pipeline_windows('{pipeline}') WHERE state = 'eligible'");
        database.wait_for("a window is due", &eligible);
    }
    let claimed = admin.lines("SELECT pipeline FROM backfill_claim('w', 10)");
    assert!(claimed.contains(&"fine".to_owned()), "{claimed:?}");
}

/// What a session is, as far as anything that runs in it could change that.
fn state(session: &mut Session) -> Vec<String> {
    session.lines(
        "SELECT current_user, session_user
         UNION ALL SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'transaction\\_%'
         UNION ALL SELECT 'role', current_setting('role')
         UNION ALL SELECT 'prepared', name FROM pg_prepared_statements WHERE from_sql
         UNION ALL SELECT 'cursor', name FROM pg_cursors WHERE is_holdable
         UNION ALL SELECT 'listens', pg_listening_channels()
         UNION ALL SELECT 'temporary', relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()",
    )
}

/// What the owner of a pipeline might have its query do to a superuser who runs it.
const TRICKS: [&str; 22] = [
    "RESET ROLE",
    "SET ROLE postgres",
    "SET LOCAL ROLE postgres",
    "SET SESSION AUTHORIZATION DEFAULT",
    "RESET SESSION AUTHORIZATION",
    "RESET ALL",
    "DISCARD ALL",
    "SELECT set_config('role', 'postgres', false)",
    "SELECT set_config('search_path', 'bait', false)",
    "SET search_path = bait",
    "SET LOCAL search_path = bait",
    "SET TimeZone = 'Asia/Tokyo'",
    "SET DateStyle = 'German'",
    "SET row_security = off",
    "SET lock_timeout = '1h'",
    "SET default_transaction_read_only = on",
    "CREATE TEMP TABLE left_behind ()",
    "PREPARE left_behind AS SELECT 1",
    "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1",
    "LISTEN left_behind",
    "INSERT INTO bait.late VALUES (1)",
    "SELECT bait.as_postgres()",
];

#[test]
fn an_owners_query_gains_nothing_from_a_superuser_who_runs_it_and_leaves_nothing_behind() {
    let world = world();
    let mut admin = world.database.connect();
    let owner = &world.owner;
    // Whatever a trick brings about, the query then tries what only a superuser may.
    admin.run(&format!(
        "CREATE TABLE tricked (at timestamptz NOT NULL, who text);
         GRANT SELECT, INSERT, DELETE ON tricked TO {owner};
         CREATE SCHEMA bait AUTHORIZATION {owner};
         SET ROLE {owner};
         CREATE TABLE bait.trick (sql text);
         INSERT INTO bait.trick VALUES ('SELECT 1');
         CREATE FUNCTION bait.gain() RETURNS text LANGUAGE plpgsql AS $$
         BEGIN
             CREATE TABLE public.gained ();
             RETURN 'gained';
         EXCEPTION WHEN insufficient_privilege THEN
             RETURN current_user;
         END $$;
         CREATE FUNCTION bait.play() RETURNS text LANGUAGE plpgsql
         AS $$ BEGIN EXECUTE (SELECT sql FROM bait.trick); RETURN bait.gain(); END $$;
         CREATE FUNCTION bait.as_postgres() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
         AS $$ BEGIN EXECUTE 'SET ROLE postgres'; END $$;
         CREATE TABLE bait.late (i int);
         CREATE FUNCTION bait.at_commit() RETURNS trigger LANGUAGE plpgsql
         AS $$ BEGIN CREATE TABLE public.gained (); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON bait.late DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION bait.at_commit();
         SELECT pipeline_define('tricked', '1 day', '2024-01-01', target => 'tricked', slice_column => 'at',
                                query => 'SELECT $1, bait.play()');
         RESET ROLE;
         SELECT backfill_plan('tricked', '2024-01-01', '2024-01-02', 'why', expect => 1)"
    ));
    let token = claim(&mut admin, "tricked");
    let call = format!("SELECT replace_partition({token}, finish => false)");
    admin.run(&call);
    let before = state(&mut admin);
    for trick in TRICKS {
        admin.run(&format!("UPDATE bait.trick SET sql = $trick${trick}$trick$"));
        let outcome = admin.try_run(&call);
        assert_eq!(state(&mut admin), before, "{trick}: {outcome:?}");
        admin.run("BEGIN; SAVEPOINT s");
        let _ = admin.try_run(&call);
        admin.run("ROLLBACK TO s");
        assert_eq!(state(&mut admin), before, "{trick}, rolled back");
        admin.run("COMMIT");
        let who: Vec<String> = admin.column("SELECT DISTINCT who FROM tricked", &[]);
        assert_eq!(who, [owner.as_str()], "{trick}");
    }
    assert!(admin.one::<bool>("SELECT to_regclass('public.gained') IS NULL", &[]));
}

#[test]
fn a_failing_call_gives_the_callers_role_back() {
    let world = world();
    let mut worker = world.connect_as(Level::Work);
    let mut holder = world.database.connect();
    holder.run(&format!("BEGIN; SELECT fence_check({})", world.token));
    worker.run("SET lock_timeout = '20ms'");
    let token = world.token;
    for failing in [
        // The ledger's own statement fails, the owner's query, the caller's, the check before any of them.
        format!("fence_check({token})"),
        "replace_partition(1)".to_owned(),
        format!("replace_partition({token}, query => 'SELECT $1, (1 / 0)::text')"),
        "backfill_claim('')".to_owned(),
        "pipeline_windows('clicks', '2024-01-01 05:00')".to_owned(),
    ] {
        worker.run(&format!(
            "DO $do$
             DECLARE me text := current_user;
             BEGIN
                 BEGIN
                     PERFORM {failing};
                     RAISE 'it should have failed';
                 EXCEPTION WHEN OTHERS THEN
                     ASSERT SQLERRM <> 'it should have failed', SQLERRM;
                 END;
                 ASSERT current_user = me, current_user;
                 ASSERT NOT has_table_privilege('backfill.run_data', 'SELECT');
             END $do$"
        ));
    }
}
