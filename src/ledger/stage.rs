//! Staging tables: one per token, for rows that arrive by COPY, and for refused ones.
//!
//! ```text
//!   backfill_stage ─▶ loading ─▶ (dropped by replace_partition)
//!                       │  backfill_fail          ┌▶ (dropped by quarantine_discard, or swept after 30 days)
//!                       ├──────────▶ quarantined ─┤
//!                       │                         └▶ loading, under a new token: quarantine_accept
//!                       └─ its run ended without it, or was revoked ─▶ dead ─▶ (swept)
//! ```
//!
//! Which of these a stage is, is derived (backfill.stage_state_data). Whoever makes a stage sweeps some of the same
//! pipeline, so that none pile up where no one ever calls `backfill_sweep`. A sweep takes what is idle: it waits for nobody.
//!
//! They are logged: a crash must not leave an empty stage that would then be published as an empty slice, and
//! rows in quarantine are kept for a person. They belong to the ledger, in whose schema nobody else may create
//! tables, and are granted to whoever works on the token.

use crate::error::{Code, Error, Result};
use crate::ledger::run::Run;
use crate::postgres::{executor, quote, role, spi, subtransaction, target};
use pgrx::pg_sys;

/// What a stage is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Rows will be loaded into it: columns that are left out get the target's defaults, and a NULL that the
    /// target would not take is refused at once.
    Loading,
    /// Rows that were refused are kept in it as they are.
    Keeping,
    /// Whole rows wait in it for their publication; a NULL that the target would not take is refused at once.
    Publishing,
}

/// The stage of a token.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    token: i64,
    pub relation: pg_sys::Oid,
}

const FIND: &str = "SELECT relation::pg_catalog.oid FROM backfill.stage_data
    WHERE token = $1 AND quarantined_at IS NULL";

const FIND_KEPT: &str = "SELECT relation::pg_catalog.oid FROM backfill.stage_data
    WHERE token = $1 AND quarantined_at IS NOT NULL";

const OWNER: &str = "SELECT token FROM backfill.stage_data WHERE relation::pg_catalog.oid = $1";

const INSERT: &str = "INSERT INTO backfill.stage_data (token, pipeline_id, relation, made_by)
    VALUES ($1, $2, $3::pg_catalog.regclass, $4)";

const DELETE: &str = "DELETE FROM backfill.stage_data WHERE token = $1";

/// What must be dropped before a table can be. A view depends by its rule.
const DEPENDENTS: &str = "SELECT DISTINCT CASE
        WHEN r.oid IS NULL THEN pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
        ELSE pg_catalog.pg_describe_object('pg_catalog.pg_class'::pg_catalog.regclass, r.ev_class, 0) END
    FROM pg_catalog.pg_depend d
    LEFT JOIN pg_catalog.pg_rewrite r ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND r.oid = d.objid
    WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = $1 AND d.deptype = 'n' ORDER BY 1";

const HAND_OVER: &str = "UPDATE backfill.stage_data
    SET token = $2, quarantined_at = NULL, reason = NULL, rows = NULL, sqlstate = NULL WHERE token = $1";

const ROWS: &str = "SELECT rows FROM backfill.stage_data WHERE token = $1";

/// The dead ones and those kept for long enough, oldest first.
const SWEEPABLE: &str = "SELECT s.token, s.relation::pg_catalog.oid FROM backfill.stage_state_data s
    WHERE (s.state = 'dead' OR s.kept_until < pg_catalog.clock_timestamp()) AND ($1 IS NULL OR s.pipeline_id = $1)
    ORDER BY s.token";

const BYTES: &str = "SELECT pg_catalog.pg_total_relation_size($1::pg_catalog.regclass)";

/// Stages that one makes room for: each costs the maker a lock.
const SWEPT_BY_MAKER: usize = 4;

/// The declarations of a stage's columns, without what the target always generates.
const DECLARATIONS: &str = include_str!("../../sql/query/stage_columns.sql");

const CHANGES: &str = include_str!("../../sql/query/stage_changes.sql");

const GRANTEES: &str = "SELECT DISTINCT pg_catalog.pg_get_userbyid(a.grantee)::pg_catalog.text
    FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
    WHERE c.oid = $1 AND a.grantee <> 0 AND a.grantee <> c.relowner";

/// Makes a table of the ledger that is shaped like `target`. As the ledger, so that no text of a default may be read: to read
/// the text of a constant runs the checks of its domain. LIKE copies defaults as they were read when they were made.
pub fn make(name: &str, target: pg_sys::Oid, purpose: Purpose) -> pg_sys::Oid {
    let declared = |strict: bool| {
        spi::query(DECLARATIONS, &[target.into(), strict.into()], |row| row.at::<String>(1)).join(", ")
    };
    let columns = match purpose {
        Purpose::Loading => format!("LIKE {} INCLUDING DEFAULTS", quote::relation(target)),
        Purpose::Keeping => declared(false),
        Purpose::Publishing => declared(true),
    };
    executor::write(&format!("CREATE TABLE backfill.{name} ({columns})"), None, None);
    let changes = match purpose {
        Purpose::Loading => spi::query(CHANGES, &[target.into()], |row| row.at::<String>(1)),
        _ => vec![],
    };
    if !changes.is_empty() {
        executor::write(&format!("ALTER TABLE backfill.{name} {}", changes.join(", ")), None, None);
    }
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"backfill".as_ptr(), false);
        pg_sys::get_relname_relid(quote::c_string(name).as_ptr(), schema)
    }
}

pub fn grant(relation: pg_sys::Oid, rights: &str, role: &str) {
    let sql = format!("GRANT {rights} ON {} TO {}", quote::relation(relation), quote::identifier(role));
    role::as_ledger(|| executor::write(&sql, None, None));
}

/// Drops a table of the ledger if no transaction uses it, and nothing that somebody made depends on it. One that stays is not
/// locked.
pub fn drop_if_idle(relation: pg_sys::Oid, remove: impl FnOnce()) -> bool {
    let mode = pg_sys::AccessExclusiveLock as i32;
    let dropped = subtransaction::attempt(|| {
        let is_idle = unsafe { pg_sys::ConditionalLockRelationOid(relation, mode) };
        if is_idle {
            remove();
        }
        is_idle
    });
    match dropped {
        Err(caught) if subtransaction::is_interrupt(&caught) => caught.rethrow(),
        dropped => dropped.unwrap_or(false),
    }
}

/// The token whose stage a relation is, whether in quarantine or not.
pub fn token_of(relation: pg_sys::Oid) -> Option<i64> {
    role::as_ledger(|| spi::first(OWNER, &[relation.into()], |row| row.at(1)))
}

impl Stage {
    /// The stage of a token, if it has one that is not in quarantine.
    pub fn find(token: i64) -> Option<Self> {
        let relation =
            role::as_ledger(|| spi::latest(FIND, &[token.into()], |row| row.at(1)).into_iter().next());
        relation.map(|relation| Self { token, relation })
    }

    /// The stage of a token whose rows are in quarantine.
    pub fn in_quarantine(token: i64) -> Option<Self> {
        let relation =
            role::as_ledger(|| spi::latest(FIND_KEPT, &[token.into()], |row| row.at(1)).into_iter().next());
        relation.map(|relation| Self { token, relation })
    }

    /// Makes the stage of a fenced run, shaped like `target`.
    pub fn create(run: &Run, target: pg_sys::Oid, purpose: Purpose) -> Self {
        sweep(Some(run.pipeline.id), SWEPT_BY_MAKER);
        let token = run.token;
        let maker = role::name(role::caller());
        role::as_ledger(|| {
            let relation = make(&format!("stage_{token}"), target, purpose);
            let args = [token.into(), run.pipeline.id.into(), relation.into(), maker.as_str().into()];
            spi::run(INSERT, &args);
            Self { token, relation }
        })
    }

    /// The name with its schema.
    pub fn table(&self) -> String {
        quote::relation(self.relation)
    }

    /// How many rows it had when it came into quarantine.
    pub fn rows(&self) -> i64 {
        let rows = role::as_ledger(|| spi::first(ROWS, &[self.token.into()], |row| row.get(1)));
        rows.flatten().unwrap_or(0)
    }

    /// Takes its rows out of quarantine, for another token to publish.
    pub fn hand_over(self, token: i64) {
        role::as_ledger(|| spi::run(HAND_OVER, &[self.token.into(), token.into()]));
    }

    /// Lets a role fill, change and read it, if it may not yet.
    pub fn open_to(&self, who: pg_sys::Oid) {
        let may = |right| target::may(who, self.relation, right);
        if !may(pg_sys::ACL_SELECT) || !may(pg_sys::ACL_INSERT) {
            grant(self.relation, "SELECT, INSERT, UPDATE, DELETE, TRUNCATE", &role::name(who));
        }
    }

    /// Refuses to drop it while something that somebody made depends on it (55000).
    pub fn require_free(&self) -> Result<()> {
        let dependent =
            role::as_ledger(|| spi::latest(DEPENDENTS, &[self.relation.into()], |row| row.at::<String>(1)));
        if dependent.is_empty() {
            return Ok(());
        }
        let (table, dependent) = (self.table(), dependent.join(", "));
        Err(Error::new(Code::NotInState, format!("stage {table} cannot be dropped"))
            .detail(format!("On it depends: {dependent}. A stage goes with the token whose rows it holds."))
            .hint(format!("Drop {dependent}, then repeat the call.")))
    }

    /// Drops it with its rows; 55000 where something depends on it.
    pub fn drop(&self) -> Result<()> {
        self.require_free()?;
        self.remove();
        Ok(())
    }

    fn remove(&self) {
        role::as_ledger(|| {
            spi::run(DELETE, &[self.token.into()]);
            executor::write(&format!("DROP TABLE {}", self.table()), None, None);
        });
    }

    /// Drops it if no transaction uses it, and nothing that somebody made depends on it.
    pub fn drop_if_idle(&self) -> bool {
        drop_if_idle(self.relation, || self.remove())
    }

    /// Keeps its rows for a person: from here on they can be read but not changed, by the pipeline's owner too.
    pub fn quarantine(&self, owner: &str, reason: &str, sqlstate: Option<&str>) {
        let table = self.table();
        role::as_ledger(|| {
            let grantees = spi::query(GRANTEES, &[self.relation.into()], |row| row.at::<String>(1));
            for grantee in grantees {
                let grantee = quote::identifier(&grantee);
                let sql = format!("REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {table} FROM {grantee}");
                executor::write(&sql, None, None);
            }
            let sql = format!(
                "UPDATE backfill.stage_data SET quarantined_at = pg_catalog.clock_timestamp(), \
                     reason = {}, sqlstate = {}, rows = (SELECT pg_catalog.count(*) FROM {table}) \
                 WHERE token = {}",
                quote::literal(reason),
                sqlstate.map_or("NULL".into(), quote::literal),
                self.token,
            );
            executor::write(&sql, None, None);
        });
        if role::find(owner).is_some() {
            grant(self.relation, "SELECT", owner);
        }
    }
}

/// Drops stages that nobody can use any more, of one pipeline or of all, at most so many; says how many are gone, and how
/// many are left: those in use, those that something depends on, and those beyond the limit.
pub fn sweep(pipeline_id: Option<i64>, at_most: usize) -> (i64, i64) {
    role::as_ledger(|| {
        let stages = spi::latest(SWEEPABLE, &[pipeline_id.into()], |row| Stage {
            token: row.at(1),
            relation: row.at(2),
        });
        let dropped = stages.iter().filter(|stage| stage.drop_if_idle()).take(at_most).count();
        (dropped as i64, (stages.len() - dropped) as i64)
    })
}

/// What a relation takes on disk; `None` while a transaction keeps others from looking.
pub fn bytes(relation: pg_sys::Oid) -> Option<i64> {
    let mode = pg_sys::AccessShareLock as i32;
    if !unsafe { pg_sys::ConditionalLockRelationOid(relation, mode) } {
        return None;
    }
    let bytes = spi::read(BYTES, &[relation.into()], |row| row.get(1)).into_iter().next().flatten();
    unsafe { pg_sys::UnlockRelationOid(relation, mode) };
    bytes
}
