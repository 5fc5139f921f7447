//! One call of every routine of the extension, and a database in which each of them has something to do.
//!
//! For tests that ask the same of all routines: who may call them, what they say to NULLs, what they do where
//! nothing may be written. A new routine must be entered here.

use pgrx_tests::{Database, Session};

/// What a role must be to the pipeline to make a call; each includes those above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Nobody,
    Read,
    Work,
    Operate,
    Owner,
    Superuser,
}

pub const LEVELS: [Level; 6] =
    [Level::Nobody, Level::Read, Level::Work, Level::Operate, Level::Owner, Level::Superuser];

pub struct Call {
    pub routine: &'static str,
    pub needs: Level,
    /// `{token}`, `{plan}`, `{id}`, `{effect}` and `{kept}` stand for what [`World`] holds.
    pub sql: &'static str,
}

const fn call(routine: &'static str, needs: Level, sql: &'static str) -> Call {
    Call { routine, needs, sql }
}

pub const CALLS: [Call; 80] = [
    call("bound", Level::Nobody, "SELECT DATE '2024-01-01'::backfill.bound"),
    call("bound_in", Level::Nobody, "SELECT '2024-01-01'::backfill.bound"),
    call("bound_out", Level::Nobody, "SELECT '2024-01-01'::backfill.bound"),
    call("bound_recv", Level::Nobody, "SELECT '2024-01-01'::backfill.bound"),
    call("bound_send", Level::Nobody, "SELECT backfill.bound_send('2024-01-01')"),
    // The views call these for whoever reads them; they show others nothing.
    call("windows_of", Level::Nobody, "SELECT * FROM backfill.windows_of({id})"),
    call("missed_of", Level::Nobody, "SELECT * FROM backfill.missed_of({id})"),
    call("waiting_of", Level::Nobody, "SELECT * FROM backfill.waiting_of({id})"),
    call("waiting_for", Level::Nobody, "SELECT backfill.waiting_for(1)"),
    call("stage_bytes", Level::Nobody, "SELECT backfill.stage_bytes('clicks')"),
    call("may_commit", Level::Nobody, "SELECT backfill.may_commit()"),
    call("window_key", Level::Nobody, "SELECT backfill.window_key({id}, '2024-01-02')"),
    call("plan_actual", Level::Nobody, "SELECT backfill.plan_actual(1, true)"),
    call("plan_eta", Level::Nobody, "SELECT backfill.plan_eta(1, 30)"),
    call("pipeline_windows", Level::Read, "SELECT * FROM pipeline_windows('clicks')"),
    call("window_why", Level::Read, "SELECT window_why('clicks', '2024-01-02')"),
    call("pipeline_calendar", Level::Read, "SELECT pipeline_calendar('clicks')"),
    call("pipeline_version", Level::Read, "SELECT pipeline_version('clicks')"),
    call("pipeline_explain_version", Level::Read, "SELECT * FROM pipeline_explain_version('clicks')"),
    call("slice_version", Level::Read, "SELECT slice_version('clicks', '2024-01-01Z')"),
    call("pipeline_lint", Level::Read, "SELECT * FROM pipeline_lint('clicks')"),
    call("backfill_explain", Level::Read, "SELECT backfill_explain({plan})"),
    call("backfill_diff", Level::Read, "SELECT * FROM backfill_diff(4)"),
    call("backfill_progress", Level::Read, "SELECT backfill_progress({plan})"),
    call("backfill_heartbeat", Level::Work, "SELECT backfill_heartbeat({token})"),
    call("backfill_finish", Level::Work, "SELECT backfill_finish({token}, 1)"),
    call("backfill_fail", Level::Work, "SELECT backfill_fail({token}, 'why')"),
    call("backfill_release", Level::Work, "SELECT backfill_release({token})"),
    call("backfill_stage", Level::Work, "SELECT backfill_stage({token})"),
    call("effect_emit", Level::Work, "SELECT effect_emit({token}, 'mail')"),
    call("effect_take", Level::Work, "SELECT * FROM effect_take('mail')"),
    call("effect_done", Level::Work, "SELECT effect_done({effect})"),
    call("effects_allowed", Level::Work, "SELECT effects_allowed({token})"),
    call("fence_check", Level::Work, "SELECT * FROM fence_check({token})"),
    call("replace_partition", Level::Work, "SELECT * FROM replace_partition({token})"),
    call("replace_or_keep", Level::Work, "SELECT * FROM replace_or_keep({token})"),
    call("backfill_claim", Level::Work, "SELECT * FROM backfill_claim('w', pipelines => ARRAY['clicks'])"),
    call(
        "backfill_work",
        Level::Work,
        "CALL backfill_work('w', pipelines => ARRAY['clicks'], max_windows => 1)",
    ),
    call("quarantine_accept", Level::Operate, "SELECT * FROM quarantine_accept({kept}, 'why')"),
    call("quarantine_discard", Level::Operate, "SELECT quarantine_discard({kept})"),
    call(
        "backfill_plan",
        Level::Operate,
        "SELECT * FROM backfill_plan('clicks', '2024-03-01', '2024-03-03', 'why')",
    ),
    call("backfill_approve", Level::Operate, "SELECT backfill_approve({plan}, 2)"),
    call("backfill_cancel", Level::Operate, "SELECT * FROM backfill_cancel({plan}, 'why')"),
    call("backfill_pause", Level::Operate, "SELECT backfill_pause(1, 'why')"),
    call("backfill_resume", Level::Operate, "SELECT backfill_resume(1)"),
    call("backfill_retry", Level::Operate, "SELECT backfill_retry(1)"),
    call("backfill_adjust", Level::Operate, "SELECT backfill_adjust(1, 1)"),
    call("backfill_extend", Level::Operate, "SELECT backfill_extend(1)"),
    call("backfill_publish", Level::Operate, "SELECT backfill_publish(4)"),
    call("backfill_revert", Level::Operate, "SELECT backfill_revert(3, 'why')"),
    call("backfill_verify", Level::Operate, "SELECT * FROM backfill_verify('clicks', NULL, '2024-03-01')"),
    call("window_skip", Level::Operate, "SELECT window_skip('clicks', '2024-04-01', '2024-04-02', 'why')"),
    call(
        "window_unskip",
        Level::Operate,
        "SELECT window_unskip('clicks', '2024-04-01', '2024-04-02', 'why')",
    ),
    call("window_lock", Level::Operate, "SELECT window_lock('clicks', '2024-04-01', '2024-04-02', 'why')"),
    call(
        "window_unlock",
        Level::Operate,
        "SELECT window_unlock('clicks', '2024-04-01', '2024-04-02', 'why')",
    ),
    call(
        "window_mark_stale",
        Level::Operate,
        "SELECT window_mark_stale('clicks', '2024-01-01', '2024-01-02', 'why')",
    ),
    call(
        "window_adopt",
        Level::Operate,
        "SELECT * FROM window_adopt('clicks', '2024-04-01', '2024-04-02', 'legacy', 'why')",
    ),
    call(
        "window_unadopt",
        Level::Operate,
        "SELECT window_unadopt('clicks', '2024-04-01', '2024-04-02', 'why')",
    ),
    call("pipeline_pause", Level::Operate, "SELECT pipeline_pause('clicks', 'why')"),
    call("pipeline_resume", Level::Operate, "SELECT * FROM pipeline_resume('clicks')"),
    call(
        "pipeline_define",
        Level::Owner,
        "SELECT pipeline_define('clicks', '1 day', '2024-01-01', 'clicks', 'at')",
    ),
    call("pipeline_alter", Level::Owner, "SELECT pipeline_alter('clicks', '{\"backlog\": 7}')"),
    call("pipeline_audit", Level::Owner, "SELECT pipeline_audit('clicks', 'some', 'SELECT true FROM slice')"),
    call("pipeline_audit_drop", Level::Owner, "SELECT pipeline_audit_drop('clicks', 'any')"),
    call("version_compatible", Level::Owner, "SELECT version_compatible('clicks', 'v1', 'v2', 'why')"),
    call("version_compatible_drop", Level::Owner, "SELECT version_compatible_drop('clicks', 'v1', 'v3')"),
    call("pipeline_grant", Level::Owner, "SELECT pipeline_grant('clicks', 'postgres', 'read')"),
    call("pipeline_revoke", Level::Owner, "SELECT pipeline_revoke('clicks', 'postgres')"),
    call("pipeline_rename", Level::Owner, "SELECT pipeline_rename('clicks', 'hits')"),
    call("pipeline_drop", Level::Owner, "SELECT pipeline_drop('clicks')"),
    call("fence_protect", Level::Owner, "SELECT fence_protect('clicks')"),
    call("fence_unprotect", Level::Owner, "SELECT fence_unprotect('clicks')"),
    call(
        "fence_guard",
        Level::Owner,
        "CREATE TRIGGER guard AFTER INSERT ON clicks FOR EACH ROW EXECUTE FUNCTION backfill.fence_guard('refuse')",
    ),
    call(
        "fence_look_first",
        Level::Superuser,
        "CREATE TRIGGER look AFTER UPDATE ON backfill.run_data FOR EACH ROW EXECUTE FUNCTION backfill.fence_look_first()",
    ),
    call("pool_define", Level::Superuser, "SELECT pool_define('live', 9)"),
    call("pool_pause", Level::Superuser, "SELECT pool_pause('live', 'why')"),
    call("pool_resume", Level::Superuser, "SELECT pool_resume('live')"),
    call("pool_drop", Level::Superuser, "SELECT pool_drop('spare')"),
    call("backfill_sweep", Level::Superuser, "SELECT * FROM backfill_sweep()"),
    call("backfill_new_epoch", Level::Superuser, "SELECT backfill_new_epoch('why')"),
];

/// A pipeline `clicks` with an open lease, a plan with windows left, a draft, a plan that is over, one that is staged, an effect of
/// the first plan's last window, and rows in quarantine of the one before.
pub struct World {
    pub database: Database,
    pub owner: String,
    pub token: i64,
    plan: i64,
    id: i64,
    effect: i64,
    pub kept: i64,
}

impl World {
    pub fn new(database: Database) -> Self {
        let owner = database.role("owner");
        let mut admin = database.connect();
        admin.run(&format!(
            "CREATE TABLE clicks (at timestamptz NOT NULL, who text);
             ALTER TABLE clicks OWNER TO {owner};
             GRANT SELECT, INSERT, DELETE ON clicks TO PUBLIC;
             GRANT EXECUTE ON FUNCTION pipeline_define TO {owner};
             SET ROLE {owner};
             SELECT pipeline_define('clicks', '1 day', '2024-01-01', target => 'clicks', slice_column => 'at',
                                    query => 'SELECT $1, current_user::text', expected_duration => '1 minute',
                                    keep_previous => '1 hour');
             SELECT pipeline_audit('clicks', 'any', 'SELECT true FROM slice LIMIT 1');
             RESET ROLE;
             SELECT pool_define('backfill', 8);
             SELECT pool_define('spare', 1);
             INSERT INTO backfill.version_data (pipeline_id, code_version)
             SELECT p.pipeline_id, v FROM backfill.pipeline_data p, unnest(ARRAY['v1', 'v2', 'v3']) v;
             SELECT version_compatible('clicks', 'v1', 'v3', 'why');
             SELECT backfill_plan('clicks', '2024-01-01', '2024-02-01', 'history', effects => true, expect => 31);
             SELECT effect_emit(token, 'mail'), backfill_finish(token)
             FROM backfill_claim('w', pipelines => ARRAY['clicks'], window_key => '2024-01-31')"
        ));
        let kept = admin.one(
            "SELECT token FROM backfill_claim('w', pipelines => ARRAY['clicks'], window_key => '2024-01-30')",
            &[],
        );
        admin.run(&format!(
            "SELECT backfill_stage({kept}); INSERT INTO backfill.stage_{kept} VALUES ('2024-01-30 12:00Z', 'odd');
             SELECT backfill_fail({kept}, 'odd', sqlstate => 'BF006')"
        ));
        let plan =
            admin.one("SELECT plan_id FROM backfill_plan('clicks', '2024-02-01', '2024-02-03', 'more')", &[]);
        let id = admin.one("SELECT pipeline_id FROM backfill.pipeline_data", &[]);
        admin.run(
            "SELECT backfill_plan('clicks', '2024-02-10', '2024-02-11', 'over', expect => 1);
             SELECT replace_partition(token)
             FROM backfill_claim('w', pipelines => ARRAY['clicks'], window_key => '2024-02-10');
             DELETE FROM clicks;
             SELECT backfill_plan('clicks', '2024-02-11', '2024-02-12', 'staged', publish => 'together', expect => 1);
             SELECT replace_partition(token)
             FROM backfill_claim('w', pipelines => ARRAY['clicks'], window_key => '2024-02-11')",
        );
        let token = claim(&mut admin, "clicks");
        let effect = admin.one("SELECT id FROM backfill.effects", &[]);
        Self { database, owner, token, plan, id, effect, kept }
    }

    /// The statement of a call, about this world.
    pub fn sql(&self, call: &Call) -> String {
        self.fill(call.sql)
    }

    /// The text with what this world holds.
    pub fn fill(&self, sql: &str) -> String {
        sql.replace("{token}", &self.token.to_string())
            .replace("{plan}", &self.plan.to_string())
            .replace("{id}", &self.id.to_string())
            .replace("{effect}", &self.effect.to_string())
            .replace("{kept}", &self.kept.to_string())
    }
}

/// The token of one more lease.
pub fn claim(session: &mut Session, pipeline: &str) -> i64 {
    session.one("SELECT token FROM backfill_claim('w', pipelines => ARRAY[$1])", &[&pipeline])
}

/// All that the ledger holds, who may execute what, and which tables there are: to see that nothing changed.
pub fn ledger(session: &mut Session) -> Vec<String> {
    let mut held =
        session.lines(&format!("SELECT p.oid::regprocedure, p.proacl FROM pg_proc p WHERE {MEMBER_PROC}"));
    let relations: Vec<String> = session.column(
        "SELECT c.oid::regclass::text FROM pg_class c
         WHERE c.relnamespace = 'backfill'::regnamespace AND c.relkind IN ('r', 'S') ORDER BY 1",
        &[],
    );
    for relation in relations {
        // A sequence also counts what it has written ahead.
        let columns = if relation.ends_with("_seq") { "last_value, is_called" } else { "*" };
        held.extend(session.lines(&format!("SELECT '{relation}', {columns} FROM {relation}")));
    }
    held.sort();
    held
}

/// Whether `p` of `pg_proc` is a routine of the extension; a build for tests has some of its own.
pub const MEMBER_PROC: &str = "p.pronamespace <> 'tests'::regnamespace AND EXISTS (SELECT FROM pg_depend d
    WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
      AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_backfill'))";
