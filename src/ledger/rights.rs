//! Who may do what with a pipeline.
//!
//! A pipeline has an owner role. A role that was granted a level may make the calls of that level and of
//! those below it; whoever has the rights of the owner, and superusers, may make all.

use crate::error::{Code, Error, Result};
use crate::ledger::pipeline::Pipeline;
use crate::postgres::role;
use crate::postgres::spi;
use pgrx::pg_sys;

/// What a role may do with a pipeline; each level includes those above it in this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// See the pipeline, its windows, plans and runs.
    Read,
    /// Claim windows and produce them.
    Work,
    /// Plan, approve, cancel, pause, resume, decide about windows.
    Operate,
    /// Change, drop and grant.
    Owner,
}

impl Level {
    /// The level that [`crate::api::grant`] and the tables call by this name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "read" => Some(Self::Read),
            "work" => Some(Self::Work),
            "operate" => Some(Self::Operate),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Work => "work",
            Self::Operate => "operate",
            Self::Owner => "owner",
        }
    }
}

const GRANTS: &str =
    "SELECT grantee, level FROM backfill.grant_data WHERE pipeline_id OPERATOR(pg_catalog.=) $1";

/// Whether `who` holds `level` on the pipeline.
pub fn has(who: pg_sys::Oid, pipeline_id: i64, owner: &str, level: Level) -> bool {
    if role::is_superuser(who) || role::find(owner).is_some_and(|owner| role::has_rights_of(who, owner)) {
        return true;
    }
    if level == Level::Owner {
        return false;
    }
    let grants = role::as_ledger(|| {
        spi::query(GRANTS, &[pipeline_id.into()], |row| (row.at::<String>(1), row.at::<String>(2)))
    });
    grants.into_iter().any(|(grantee, granted)| {
        Level::parse(&granted).is_some_and(|granted| granted >= level)
            && role::find(&grantee).is_some_and(|grantee| role::has_rights_of(who, grantee))
    })
}

const OWNER: &str = "SELECT owner FROM backfill.pipeline_data WHERE pipeline_id = $1";

/// Whether the effective caller may read the pipeline with that number. For STABLE functions.
pub fn may_read(pipeline_id: i64) -> bool {
    let who = role::caller();
    let owner = role::as_ledger(|| spi::read(OWNER, &[pipeline_id.into()], |row| row.at::<String>(1)));
    owner.first().is_some_and(|owner| has(who, pipeline_id, owner, Level::Read))
}

/// Refuses the call unless the effective caller holds `level` on the pipeline (42501).
pub fn require(pipeline: &Pipeline, level: Level) -> Result<()> {
    let who = role::caller();
    if has(who, pipeline.id, &pipeline.owner, level) {
        return Ok(());
    }
    Err(denied(who, &pipeline.name, &pipeline.owner, level))
}

/// The error for a role that lacks `level` on a pipeline (42501).
pub fn denied(who: pg_sys::Oid, pipeline: &str, owner: &str, level: Level) -> Error {
    let hint = match level {
        Level::Owner => format!("Ask its owner \"{owner}\" or a superuser."),
        _ => format!(
            "Its owner can run SELECT pipeline_grant({}, {}, '{}').",
            crate::postgres::quote::literal(pipeline),
            crate::postgres::quote::literal(&role::name(who)),
            level.name(),
        ),
    };
    Error::new(Code::Forbidden, format!("permission denied for pipeline \"{pipeline}\""))
        .detail(format!(
            "The call needs level \"{}\"; the caller \"{}\" does not have it.",
            level.name(),
            role::name(who)
        ))
        .hint(hint)
}

const ANYWHERE: &str = "SELECT DISTINCT grantee, level FROM backfill.grant_data
    UNION SELECT DISTINCT owner, 'owner' FROM backfill.pipeline_data";

/// Refuses the call unless the effective caller holds `level` on some pipeline (42501).
pub fn require_anywhere(level: Level) -> Result<()> {
    let who = role::caller();
    let held =
        role::as_ledger(|| spi::query(ANYWHERE, &[], |row| (row.at::<String>(1), row.at::<String>(2))));
    let suffices = |granted: &str| Level::parse(granted).is_none_or(|granted| granted >= level);
    if role::is_superuser(who)
        || held.iter().any(|(holder, granted)| {
            suffices(granted) && role::find(holder).is_some_and(|holder| role::has_rights_of(who, holder))
        })
    {
        return Ok(());
    }
    Err(Error::new(Code::Forbidden, "permission denied for the effects of all pipelines")
        .detail(format!(
            "The call needs level \"{}\" on a pipeline; the caller \"{}\" has it on none.",
            level.name(),
            role::name(who)
        ))
        .hint(format!(
            "The owner of a pipeline can run SELECT pipeline_grant(pipeline, {}, '{}').",
            crate::postgres::quote::literal(&role::name(who)),
            level.name()
        )))
}

/// The level that each function which writes needs. EXECUTE on them is granted with the level.
pub const FUNCTIONS: [(&str, Level); 47] = [
    ("backfill_claim", Level::Work),
    ("backfill_heartbeat", Level::Work),
    ("backfill_finish", Level::Work),
    ("backfill_fail", Level::Work),
    ("backfill_release", Level::Work),
    ("backfill_stage", Level::Work),
    ("backfill_work", Level::Work),
    ("effect_done", Level::Work),
    ("effect_emit", Level::Work),
    ("effect_take", Level::Work),
    ("fence_check", Level::Work),
    ("replace_partition", Level::Work),
    ("replace_or_keep", Level::Work),
    ("quarantine_accept", Level::Operate),
    ("quarantine_discard", Level::Operate),
    ("backfill_plan", Level::Operate),
    ("backfill_approve", Level::Operate),
    ("backfill_cancel", Level::Operate),
    ("backfill_pause", Level::Operate),
    ("backfill_resume", Level::Operate),
    ("backfill_retry", Level::Operate),
    ("backfill_adjust", Level::Operate),
    ("backfill_extend", Level::Operate),
    ("backfill_publish", Level::Operate),
    ("backfill_revert", Level::Operate),
    ("backfill_verify", Level::Operate),
    ("window_skip", Level::Operate),
    ("window_unskip", Level::Operate),
    ("window_lock", Level::Operate),
    ("window_unlock", Level::Operate),
    ("window_mark_stale", Level::Operate),
    ("window_adopt", Level::Operate),
    ("window_unadopt", Level::Operate),
    ("pipeline_pause", Level::Operate),
    ("pipeline_resume", Level::Operate),
    ("pipeline_alter", Level::Owner),
    ("pipeline_audit", Level::Owner),
    ("pipeline_audit_drop", Level::Owner),
    ("pipeline_rename", Level::Owner),
    ("version_compatible", Level::Owner),
    ("version_compatible_drop", Level::Owner),
    ("pipeline_drop", Level::Owner),
    ("pipeline_grant", Level::Owner),
    ("pipeline_revoke", Level::Owner),
    ("fence_protect", Level::Owner),
    ("fence_unprotect", Level::Owner),
    // CREATE TRIGGER, which fence_protect runs as its caller, needs it.
    ("fence_guard", Level::Owner),
];

const SIGNATURES: &str = "SELECT f.oid::pg_catalog.regprocedure::pg_catalog.text
    FROM pg_catalog.pg_extension e
    JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
        AND d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
    JOIN pg_catalog.pg_proc f ON f.oid = d.objid
    WHERE e.extname = 'pg_backfill' AND f.proname = ANY ($1)";

/// What the role may do anywhere: the highest level that it was granted, or owner of something.
const HIGHEST: &str = "SELECT g.level FROM backfill.grant_data g
        JOIN backfill.pipeline_data p ON p.pipeline_id = g.pipeline_id AND p.dropped_at IS NULL
        WHERE g.grantee = $1
    UNION ALL
    (SELECT 'owner' FROM backfill.pipeline_data p WHERE p.owner = $1 AND p.dropped_at IS NULL LIMIT 1)";

/// Gives a role EXECUTE on the functions of its highest level and of those below it, and takes it away on the
/// others. Runs as the ledger's owner, under the lock of definitions: two such calls write the same rows.
pub fn execute_grants(grantee: &str) {
    let Some(oid) = role::find(grantee) else { return };
    if role::is_superuser(oid) {
        return;
    }
    let level = spi::query(HIGHEST, &[grantee.into()], |row| row.at::<String>(1))
        .iter()
        .filter_map(|level| if level == "owner" { Some(Level::Owner) } else { Level::parse(level) })
        .max();
    let role = crate::postgres::quote::identifier(grantee);
    let signatures = |wanted: &dyn Fn(Level) -> bool| -> String {
        let names: Vec<String> = FUNCTIONS
            .iter()
            .filter(|(_, level)| wanted(*level))
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let found = spi::query(SIGNATURES, &[names.into()], |row| row.at::<String>(1));
        found.join(", ")
    };
    spi::execute(&format!("REVOKE EXECUTE ON ROUTINE {} FROM {role}", signatures(&|_| true)));
    if let Some(level) = level.filter(|level| *level > Level::Read) {
        let granted = signatures(&|needed| needed <= level);
        spi::execute(&format!("GRANT EXECUTE ON ROUTINE {granted} TO {role}"));
    }
}
